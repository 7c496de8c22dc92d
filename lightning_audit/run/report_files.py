"""The report directory of one training, and the circumstances of the training."""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from lightning_audit.accounting.history import StepHistory
from lightning_audit.config import AuditConfig
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
from lightning_audit.results.report_details import (
    CourseRow,
    Ended,
    ExaminationTold,
    RunAbout,
)
from lightning_audit.session.step import AuditSession
from lightning_audit.stats.canary_bets import ProvedPart

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


# --- The circumstances of a training: where and how it ran, its epochs' ends, and how it ended.

#: Most rows of the course.
MOST_ROWS = 200
#: Largest part of the time since the last bound on mu that the next one may take.
_SHARE = 0.01


@dataclass
class Circumstances:
    """The circumstances of a training.

    Args:
        about: what is known when it begins.
        planned_steps: of the whole training; None if unknown.
        ended_by: why it ended, see `Ended`; empty while it runs.
        rows: of the course.
        examinations: of steps by replay.
    """

    about: RunAbout | None = None
    planned_steps: int | None = None
    ended_by: str = ""
    rows: list[CourseRow] = field(default_factory=list)
    examinations: list[ExaminationTold] = field(default_factory=list)
    #: Number of epochs from one row to the next.
    _every: int = 1
    _began: float = field(default_factory=time.perf_counter)
    # When the last bound on mu was computed, and the seconds that it took.
    _bounded_at: float = 0.0
    _took: float = 0.0

    @property
    def now(self) -> RunAbout | None:
        """The circumstances, with the seconds so far."""
        seconds = time.perf_counter() - self._began
        return None if self.about is None else replace(self.about, seconds=seconds)

    def ended(self, steps: int, break_off: str) -> Ended | None:
        """Return how the training ended; None while it runs.

        Args:
            steps: that were taken.
            break_off: why it broke off, or empty.
        """
        reason = "broke off" if break_off else self.ended_by
        return Ended(steps, reason) if reason else None

    def end_epoch(
        self,
        epoch: int,
        sessions: Sequence[AuditSession],
        config: AuditConfig,
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        """Add a row for the end of an epoch; a resumed epoch replaces its row.

        Args:
            epoch: its number, from 0.
            sessions: of the private optimizers.
            config: of the audit.
            metrics: of this epoch's end; None to compute the bound on mu here, if that is cheap.
        """
        if epoch % self._every or not sessions:
            return
        monitors = [session.monitor for session in sessions]
        row = CourseRow(
            step=sum(monitor.steps for monitor in monitors),
            epoch=epoch,
            mu_lower=self._mu(sessions, config) if metrics is None else metrics.get("mu_lower"),
            log_e=max(monitor.log_e_value for monitor in monitors),
            observations=sum(monitor.sensitivity.observations for monitor in monitors),
        )
        self.rows = [*(old for old in self.rows if old.epoch < epoch), row]
        if len(self.rows) > MOST_ROWS:
            self._every *= 2
            self.rows = [old for old in self.rows if old.epoch % self._every == 0]

    def _mu(self, sessions: Sequence[AuditSession], config: AuditConfig) -> float | None:
        """Return the largest bound on mu if that is cheap, else None."""
        begun = time.perf_counter()
        dear = self._took > _SHARE * (begun - self._bounded_at)
        if dear or config.mechanism_alone:
            return None
        level = config.bound_significance / len(sessions)
        monitors = [session.monitor for session in sessions]
        mus = [proved_mu(m.leakage.front(level), m.claims) for m in monitors if m.canary_steps]
        self._bounded_at = time.perf_counter()
        self._took = self._bounded_at - begun
        return max(mus, default=None)

    def state(self) -> dict[str, Any]:
        """Return the rows for a checkpoint; examined steps depend on the data."""
        return {"every": self._every, "rows": [asdict(row) for row in self.rows]}

    def load(self, state: Mapping[str, Any]) -> None:
        """Load a checkpoint's rows; checkpoints of earlier versions have none."""
        self._every = int(state.get("every", 1))
        self.rows = [CourseRow(**row) for row in state.get("rows", ())]


def proved_mu(front: Sequence[ProvedPart], claims: StepHistory) -> float:
    """Return the lower bound on the leakiest step's mu.

    Args:
        front: what is proved for the steps up to each look.
        claims: of the steps.
    """
    # Each ratio with the noise multiplier at the step up to which it was proved.
    at_looks = ((part.ratio, claims.noise_at(part.steps)) for part in front)
    return max((ratio / sigma for ratio, sigma in at_looks if sigma > 0), default=0.0)
