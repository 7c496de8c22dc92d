"""The report directory of one training, and the circumstances of the training."""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from lightning_audit.files import reason_of, remove_partials
from lightning_audit.record.report_directory import (
    PAGE_NAME,
    RECORD_NAME,
    REPORT_NAME,
    DirectoryLock,
    all_beside,
    claim,
    lock_of,
    put_back,
    set_aside,
)
from lightning_audit.record.store import run_of
from lightning_audit.results.audit_report import (
    AuditReport,
    UnauditableTraining,
)

# --- The report directory of one training, and the files that could not be written into it.

_log = logging.getLogger(__name__)
_Made = TypeVar("_Made")


class ReportFiles:
    """The report directory of one training, locked against other trainings.

    A directory that is not writable is refused before the training. A file that cannot be written
    later is reported, and does not stop the training.

    Args:
        asked: the requested directory; relative to the current working directory.
    """

    def __init__(self, asked: str | os.PathLike[str]) -> None:
        self._asked = asked
        self._base = Path(asked)
        self._lock: DirectoryLock | None = None
        #: Where an earlier training's report was moved.
        self._aside: Path | None = None
        #: Notes for the report.
        self.notes: list[str] = []
        #: What could not be written, as text, by file name.
        self.unwritten: dict[str, str] = {}

    @property
    def directory(self) -> Path:
        """The directory of this training's files."""
        return self._lock.directory if self._lock else self._base

    def shown(self, name: str) -> Path | None:
        """Return a file's path to display; None if the file could not be written."""
        if name in self.unwritten or self._lock is None:
            return None
        path = self.directory / name
        with contextlib.suppress(OSError, ValueError):  # not below the cwd, or there is no cwd
            path = path.relative_to(Path.cwd())
        return path

    def acquire(self, *, again: bool = False) -> None:
        """Lock the directory for this training, and move an earlier report aside.

        Args:
            again: whether this training resumes, so that the report in it may be its own.

        Raises:
            UnauditableTraining: the directory cannot be made, or is not writable.
        """
        try:
            base = Path(os.path.abspath(self._asked))
            self._lock = claim(base)
            self._prepare(again=again)
        except OSError as error:
            self.release()
            raise UnauditableTraining(
                f"the audit cannot write its report to {os.fspath(self._asked)!r} ({error}); "
                "give another directory as report_dir."
            ) from error
        self._base = base
        self._note_directory(base)

    def _prepare(self, *, again: bool = False) -> None:
        with tempfile.TemporaryFile(dir=self.directory):
            pass
        remove_partials(self.directory)
        if not again:
            self.set_report_aside()

    def set_report_aside(self) -> None:
        """Move an earlier run's report aside, so that no gate reads it; its record remains."""
        self._aside = set_aside(self.directory, but_the_record=True)

    def _note_directory(self, first: Path) -> None:
        assert self._lock is not None
        notes = []
        if self.directory != first:
            notes.append(
                f"{first} belongs to another training that has not ended; this one's report is in "
                f"{self.directory}"
            )
        if not self._lock.by_lock:
            notes.append(
                f"the file system of {self.directory} has no locks: the file "
                f"{self._lock.path.name} in it keeps other trainings out; remove it if this "
                "process is killed"
            )
        for note in notes:
            if note not in self.notes:
                _log.warning("privacy audit: %s", note)
        self.notes = notes

    def change_to(self, run: str) -> None:
        """Change to the directory in which a resumed run began.

        Args:
            run: the run's name, which its record contains.
        """
        at = [d for d in all_beside(self._base) if run_of(d / RECORD_NAME) == run]
        if not at or self.directory in at:
            return
        try:
            lock = lock_of(at[0])
            if lock is not None:
                if self._aside is not None:  # this training writes no report here
                    put_back(self._aside)
                self.release()
                self._lock = lock
                self._prepare()
        except OSError as error:
            _log.warning("privacy audit: cannot resume the run in %s: %s", at[0], reason_of(error))
        self._note_directory(at[0])

    def write(self, name: str, write: Callable[[Path], _Made], *, beside: bool) -> _Made | None:
        """Write a file of this training; a failure is logged once and does not stop the training.

        Args:
            name: of the file.
            write: writes the file, given its path.
            beside: whether the directory holds other files of this training.

        Returns:
            What ``write`` returns, None if the file could not be written.
        """
        try:
            self._acquire_again(own=beside)
            made = write(self.directory / name)
        except OSError as error:
            sentence = f"{self.directory / name} could not be written: {reason_of(error)}"
            if self.unwritten.get(name) != sentence:
                _log.warning("privacy audit: %s; the training continues", sentence)
            self.unwritten[name] = sentence
            return None
        self.unwritten.pop(name, None)
        return made

    def write_page(self, report: AuditReport) -> None:
        """Write a report's page next to it; a failure is logged and does not stop the training.

        The report needs no note of a failure: `lightning-audit report` writes the page again.
        """
        if self._lock is None or REPORT_NAME in self.unwritten:
            return
        page = self.directory / PAGE_NAME
        try:
            from lightning_audit.report.page import write_page  # loads Jinja

            write_page(report, page)
        except Exception as error:
            _log.warning(
                "privacy audit: %s could not be written (%s: %s); `lightning-audit report` writes "
                "it from the report",
                *(page, type(error).__name__, reason_of(error)),
            )

    def _acquire_again(self, *, own: bool) -> None:
        """Lock the directory again if it was removed; another training may have taken it."""
        if self._lock is None:  # the audit failed before it took the directory
            self.acquire(again=False)
        assert self._lock is not None
        if self._lock.holds:
            return
        again = claim(self._lock.directory)
        self._lock.release()
        self._lock = again
        if not own:
            set_aside(again.directory)

    def release(self) -> None:
        """Unlock the directory for other trainings."""
        if self._lock is not None:
            self._lock.release()
