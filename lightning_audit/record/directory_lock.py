"""Locks a report directory for one training at a time; the lock ends with the process."""

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

#: File locked by the training that owns the directory; it remains afterwards, without meaning.
LOCK_NAME = ".lock"
#: On a file system without locks: file created by the training that owns the directory, and removed
#: at its end. A training that is killed leaves it.
MARK_NAME = ".taken"

#: Error codes for a lock that another process holds.
_HELD_BY_ANOTHER = (errno.EACCES, errno.EAGAIN, errno.EDEADLK)


class DirectoryLock:
    """Ownership of a report directory until `release`, or until the process ends.

    Args:
        directory: the directory.
        path: the lock file or the mark.
        descriptor: file descriptor of that file.
        by_lock: whether the file is locked, which ends with the process; if not, its existence
            excludes other trainings.
    """

    def __init__(self, directory: Path, path: Path, descriptor: int, *, by_lock: bool) -> None:
        self.directory = directory
        self.path = path
        self.by_lock = by_lock
        self._descriptor = descriptor
        # Also released if the training is garbage-collected without an end.
        self._end = weakref.finalize(self, _let_go, descriptor, None if by_lock else path)
        _held.add(self)

    @property
    def holds(self) -> bool:
        """Whether this training still owns the directory: it was not removed or replaced.

        Raises:
            OSError: the directory cannot be read.
        """
        if not self._end.alive:
            return False
        try:
            return os.path.samestat(os.lstat(self.path), os.fstat(self._descriptor))
        except (FileNotFoundError, NotADirectoryError):
            return False

    def release(self) -> None:
        """Release the directory for another training."""
        self._end()

    def forget(self) -> None:
        """Close the inherited descriptor in a forked process; the parent keeps the lock."""
        if self._end.detach() is not None:
            os.close(self._descriptor)


def claim(base: Path) -> DirectoryLock:
    """Lock a directory for a training that reports to ``base``.

    This is ``base``, or ``base/run-2``, ``base/run-3``... if another training owns it.

    Args:
        base: report directory, an absolute path; created if absent.

    Raises:
        OSError: nothing can be created or opened there.
    """
    base.mkdir(parents=True, exist_ok=True)
    places = (beside(base, number) for number in itertools.count(2))
    for place in itertools.chain([base], places):
        with contextlib.suppress(FileExistsError):  # a file of this name: try the next one
            place.mkdir(exist_ok=True)
            # A symbolic link may lead to another directory.
            if (place == base or not place.is_symlink()) and (lock := lock_of(place)):
                return lock
    raise AssertionError("the numbers do not end")


def lock_of(directory: Path) -> DirectoryLock | None:
    """Lock an existing directory; return None if another training owns it.

    Raises:
        OSError: nothing can be created or opened there.
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
        lock.release()  # the directory was removed and created again meanwhile


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
    # Do not follow a link, and do not block on a pipe or device of this name.
    flags = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    return os.open(path, os.O_RDWR | os.O_CREAT | flags | more, 0o666)


def _locked(descriptor: int) -> bool:
    """Lock a file; return False if another process has locked it.

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


if hasattr(os, "register_at_fork"):  # a loader's workers may outlive a killed training
    os.register_at_fork(after_in_child=_forget_all)
