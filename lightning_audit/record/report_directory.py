"""A report directory: its files, its lock, earlier runs, and concurrent runs."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import weakref
from collections.abc import Collection, Iterator
from pathlib import Path

from lightning_audit import _validate

# --- Layout of a report directory: files of a run, earlier runs, and concurrent runs.

RECORD_NAME = "observations.bin"
ARCHIVE_NAME = "observations.npz"
REPORT_NAME = "report.json"
FIGURE_NAME = "report.png"
PAGE_NAME = "report.html"
#: Records of a run's first optimizer and of further ones.
_RECORDS = re.compile(r"observations(-\d+)?\.bin")
_FILES = re.compile(rf"{_RECORDS.pattern}|observations(-\d+)?\.npz")
_EARLIER = re.compile(r"previous-\d+")
#: Directories of trainings that found the parent directory locked.
_BESIDE = re.compile(r"run-(\d+)")


def record_name(number: int = 1) -> str:
    """Return the file name of the record of a run's first, second... optimizer."""
    return RECORD_NAME if number == 1 else f"observations-{number}.bin"


def archive_name(number: int = 1) -> str:
    """Return the file name of the same record as .npz."""
    return ARCHIVE_NAME if number == 1 else f"observations-{number}.npz"


def archive_of(record: str) -> str:
    """Return the file name of the .npz of a record.

    Raises:
        ValueError: the name is not that of a record; a path with a folder is refused.
    """
    if not _RECORDS.fullmatch(record):
        raise ValueError(
            f"record={_validate.shown(record)} must be {RECORD_NAME} or observations-N.bin."
        )
    return record.removesuffix(".bin") + ".npz"


def beside(directory: Path, number: int) -> Path:
    """Return the directory of the second, third... concurrent training of a report directory."""
    return directory / f"run-{number}"


def all_beside(directory: Path) -> list[Path]:
    """Return a report directory, and those in it of trainings that found it locked."""
    own = [p for p in directory.glob("run-*") if not p.is_symlink()]
    numbers = [int(match[1]) for p in own if (match := _BESIDE.fullmatch(p.name))]
    return [directory, *(beside(directory, number) for number in sorted(numbers))]


def set_aside(
    directory: Path, *, but_the_record: bool = False, only: Collection[str] | None = None
) -> Path | None:
    """Move an earlier run's files into a folder ``previous-N``, and return it; None if no files.

    Args:
        directory: a report directory.
        but_the_record: leave the observations, for a run that may resume them.
        only: names of the files to move; None for all.
    """
    names = [name for name in _found(directory) if only is None or name in only]
    if but_the_record:
        names = [n for n in names if not _RECORDS.fullmatch(n)]
    if not names:
        return None
    number = 1
    while os.path.lexists(directory / f"previous-{number}"):
        number += 1
    folder = directory / f"previous-{number}"
    # Records left for a run that might have resumed belong to the report moved before.
    last = directory / f"previous-{number - 1}"
    only_records = all(_RECORDS.fullmatch(name) for name in names)
    joins = last.is_dir() and not last.is_symlink()
    if only_records and joins and not any(os.path.lexists(last / name) for name in names):
        folder = last
    else:
        folder.mkdir()
    for name in names:
        os.replace(directory / name, folder / name)
    return folder


def put_back(folder: Path) -> None:
    """Undo the `set_aside` that returned this folder."""
    for path in sorted(folder.iterdir()):
        os.replace(path, folder.parent / path.name)
    folder.rmdir()


def _found(directory: Path) -> list[str]:
    """Return the names of a run's files in a directory, those of the first optimizer first."""
    names = [RECORD_NAME, ARCHIVE_NAME, REPORT_NAME, FIGURE_NAME, PAGE_NAME]
    others = [p.name for p in directory.glob("observations-*") if _FILES.fullmatch(p.name)]
    # A broken link also occupies the name.
    return [name for name in (*names, *sorted(others)) if os.path.lexists(directory / name)]


def trainings_in(folder: str | os.PathLike[str]) -> Iterator[str]:
    """Yield the directories of all trainings in a folder, itself included.

    Folders ``previous-*`` of earlier runs are skipped. Linked directories are tested, but not
    their subdirectories, since links may form cycles.

    Raises:
        OSError: a directory cannot be read, so that its contents are unknown.
    """
    waiting = [os.fspath(folder)]
    while waiting:
        directory = waiting.pop()
        if holds_training(directory):
            yield directory
        inner = []
        with os.scandir(directory) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                if _EARLIER.fullmatch(entry.name):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    inner.append(entry.path)
                elif os.path.isdir(entry.path) and holds_training(entry.path):
                    yield entry.path
        waiting += reversed(inner)


def holds_training(directory: str) -> bool:
    """Return whether a path is a directory that contains a report or a record."""
    return os.path.isdir(directory) and any(
        name == REPORT_NAME or _RECORDS.fullmatch(name) for name in os.listdir(directory)
    )


# --- Locks a report directory for one training at a time; the lock ends with the process.

#: File locked by the training that owns the directory; it remains afterwards, without meaning.
LOCK_NAME = ".lock"
#: On a file system without locks: file created by the training that owns the directory, and removed
#: at its end. A training that is killed leaves it.
MARK_NAME = ".taken"


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
        try:
            self._end()
        except BaseException:  # `_end` runs once, and its file would stay locked
            _let_go(self._descriptor, None if self.by_lock else self.path)
            raise

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
    from filelock import lock_descriptor  # a gate locks nothing

    path = directory / LOCK_NAME
    while True:
        descriptor = _opened(path)
        try:
            if not lock_descriptor(descriptor, blocking=False):
                os.close(descriptor)
                return None
            lock = DirectoryLock(directory, path, descriptor, by_lock=True)
        except OSError:  # a file system without locks
            os.close(descriptor)
            return _marked(directory)
        except BaseException:
            _let_go(descriptor, None)
            raise
        if lock.holds:
            return lock
        lock.release()  # the directory was removed and created again meanwhile


def _marked(directory: Path) -> DirectoryLock | None:
    path = directory / MARK_NAME
    try:
        descriptor = _opened(path, os.O_EXCL)
    except FileExistsError:
        return None
    try:
        return DirectoryLock(directory, path, descriptor, by_lock=False)
    except BaseException:
        _let_go(descriptor, path)
        raise


def _opened(path: Path, more: int = 0) -> int:
    # Do not follow a link, and do not block on a pipe or device of this name.
    flags = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    return os.open(path, os.O_RDWR | os.O_CREAT | flags | more, 0o666)


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
