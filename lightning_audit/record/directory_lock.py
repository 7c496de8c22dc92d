"""A report directory belongs to one training at a time, by a lock that ends with its process."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import sys
import weakref
from pathlib import Path

from lightning_audit.record.report_directory import beside

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

#: Locked by the training that has the directory; it stays when that has ended, and says nothing.
LOCK_NAME = ".lock"
#: Where the file system has no locks: made by the training that has the directory, and removed at
#: its end. One that was killed leaves it.
MARK_NAME = ".taken"

#: What a lock that another holds is answered with.
_HELD_BY_ANOTHER = (errno.EACCES, errno.EAGAIN, errno.EDEADLK)


class DirectoryLock:
    """A report directory that is this training's until `release`, or until its process ends.

    Args:
        directory: the directory.
        path: the file that shows whose it is.
        descriptor: that file, open.
        by_lock: whether the file is locked, which ends with the process; if not, its being there
            is what keeps others out.
    """

    def __init__(self, directory: Path, path: Path, descriptor: int, *, by_lock: bool) -> None:
        self.directory = directory
        self.path = path
        self.by_lock = by_lock
        self._descriptor = descriptor
        # A training that is forgotten without an end lets go, too.
        self._end = weakref.finalize(self, _let_go, descriptor, None if by_lock else path)
        _held.add(self)

    @property
    def holds(self) -> bool:
        """Whether the directory is still this one's: nobody removed it, or put another there.

        Raises:
            OSError: that cannot be told.
        """
        if not self._end.alive:
            return False
        try:
            return os.path.samestat(os.lstat(self.path), os.fstat(self._descriptor))
        except (FileNotFoundError, NotADirectoryError):
            return False

    def release(self) -> None:
        """Let another training have the directory."""
        self._end()

    def forget(self) -> None:
        """In a forked process: close what it inherited, which leaves the lock to the other one."""
        if self._end.detach() is not None:
            os.close(self._descriptor)


def claim(base: Path) -> DirectoryLock:
    """A directory for a training that is to report to ``base``.

    It is ``base``, or ``base/run-2``, ``base/run-3``... where another training has it.

    Args:
        base: where the report is to go, an absolute path; made if absent.

    Raises:
        OSError: nothing can be made or opened there.
    """
    base.mkdir(parents=True, exist_ok=True)
    places = (beside(base, number) for number in itertools.count(2))
    for place in itertools.chain([base], places):
        with contextlib.suppress(FileExistsError):  # a file, which is in nobody's way
            place.mkdir(exist_ok=True)
            # What others may have linked here is no directory of this training.
            if (place == base or not place.is_symlink()) and (lock := lock_of(place)):
                return lock
    raise AssertionError("the numbers do not end")


def lock_of(directory: Path) -> DirectoryLock | None:
    """The lock of a directory that is there; None where another training has it.

    Raises:
        OSError: nothing can be made or opened there.
    """
    path = directory / LOCK_NAME
    while True:
        descriptor = _opened(path)
        try:
            if not _locked(descriptor):
                os.close(descriptor)
                return None
        except OSError:  # a file system without locks
            os.close(descriptor)
            return _marked(directory)
        lock = _lock(directory, path, descriptor, by_lock=True)
        if lock.holds:
            return lock
        lock.release()  # the directory was removed and made again in between


def _marked(directory: Path) -> DirectoryLock | None:
    path = directory / MARK_NAME
    try:
        descriptor = _opened(path, os.O_EXCL)
    except FileExistsError:
        return None
    return _lock(directory, path, descriptor, by_lock=False)


def _lock(directory: Path, path: Path, descriptor: int, *, by_lock: bool) -> DirectoryLock:
    try:
        return DirectoryLock(directory, path, descriptor, by_lock=by_lock)
    except BaseException:
        _let_go(descriptor, None if by_lock else path)
        raise


def _opened(path: Path, more: int = 0) -> int:
    # A link is not followed, and a pipe or a device in the file's place is not waited for.
    flags = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    return os.open(path, os.O_RDWR | os.O_CREAT | flags | more, 0o666)


def _locked(descriptor: int) -> bool:
    """Lock a file; False where another has it.

    Raises:
        OSError: the file system has no locks.
    """
    try:
        if sys.platform == "win32":
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _HELD_BY_ANOTHER:
            return False
        raise
    return True


def _let_go(descriptor: int, mark: Path | None) -> None:
    own = False
    with contextlib.suppress(OSError):
        own = mark is not None and os.path.samestat(os.lstat(mark), os.fstat(descriptor))
    with contextlib.suppress(OSError):
        os.close(descriptor)
        if mark is not None and own:
            mark.unlink()


_held: weakref.WeakSet[DirectoryLock] = weakref.WeakSet()


def _forget_all() -> None:
    for lock in list(_held):
        lock.forget()


if hasattr(os, "register_at_fork"):  # a loader's processes outlive a training that is killed
    os.register_at_fork(after_in_child=_forget_all)
