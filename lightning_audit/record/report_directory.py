"""What lies in a report directory: the files of a run, earlier runs, and runs beside it."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path

from lightning_audit import _validate

RECORD_NAME = "observations.bin"
ARCHIVE_NAME = "observations.npz"
REPORT_NAME = "report.json"
FIGURE_NAME = "report.png"
#: Records of a run, of its first optimizer and of further ones.
_RECORDS = re.compile(r"observations(-\d+)?\.bin")
_FILES = re.compile(rf"{_RECORDS.pattern}|observations(-\d+)?\.npz")
_EARLIER = re.compile(r"previous-\d+")
#: Directories of trainings that found the one above them taken.
_BESIDE = re.compile(r"run-(\d+)")


def record_name(number: int = 1) -> str:
    """File name of the record of a run's first, second... optimizer."""
    return RECORD_NAME if number == 1 else f"observations-{number}.bin"


def archive_name(number: int = 1) -> str:
    """File name of the same record as .npz."""
    return ARCHIVE_NAME if number == 1 else f"observations-{number}.npz"


def archive_of(record: str) -> str:
    """File name of the .npz of a record.

    Raises:
        ValueError: it is no name of a record; one with a folder in it would lead elsewhere.
    """
    if not _RECORDS.fullmatch(record):
        raise ValueError(
            f"record={_validate.shown(record)} must be {RECORD_NAME} or observations-N.bin."
        )
    return record.removesuffix(".bin") + ".npz"


def beside(directory: Path, number: int) -> Path:
    """The directory of the second, third... training that is to report to a directory at once."""
    return directory / f"run-{number}"


def all_beside(directory: Path) -> list[Path]:
    """A report directory and those in it of trainings that found it taken."""
    own = [p for p in directory.glob("run-*") if not p.is_symlink()]
    numbers = [int(match[1]) for p in own if (match := _BESIDE.fullmatch(p.name))]
    return [directory, *(beside(directory, number) for number in sorted(numbers))]


def set_aside(
    directory: Path, *, but_the_record: bool = False, only: Collection[str] | None = None
) -> Path | None:
    """Move an earlier run's files into a numbered folder beside them; None if there are none.

    Args:
        directory: a report directory.
        but_the_record: leave the observations, for a run that may go on with them.
        only: names of the files that are moved, None for all.
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
    # What was left for a run that might have gone on belongs to the report moved before it.
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
    """Undo `set_aside`, which gave this folder."""
    for path in sorted(folder.iterdir()):
        os.replace(path, folder.parent / path.name)
    folder.rmdir()


def _found(directory: Path) -> list[str]:
    """Names of a run's files in a directory: those of the first optimizer first."""
    names = [RECORD_NAME, ARCHIVE_NAME, REPORT_NAME, FIGURE_NAME]
    others = [p.name for p in directory.glob("observations-*") if _FILES.fullmatch(p.name)]
    # A link that leads nowhere is in the way, too.
    return [name for name in (*names, *sorted(others)) if os.path.lexists(directory / name)]


def trainings_in(folder: str | os.PathLike[str]) -> Iterator[str]:
    """The directories of all trainings in a folder, itself included.

    Left out is what was set aside for a later training, ``previous-*``. A link to a directory is
    looked into, but not below, since links may lead round in circles.

    Raises:
        OSError: a directory cannot be read, so that it is not known what lies in it.
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
    """Whether a report or a record lies in a directory; not where it is none."""
    return os.path.isdir(directory) and any(
        name == REPORT_NAME or _RECORDS.fullmatch(name) for name in os.listdir(directory)
    )
