"""The report directory of one training, and the details of its report."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from lightning_audit.accounting.history import StepHistory
from lightning_audit.checks.check import REGISTRY, Evidence, evidence_in, headlines
from lightning_audit.checks.disclosure import coarse
from lightning_audit.checks.monitor import AuditMonitor
from lightning_audit.config import AuditConfig
from lightning_audit.files import reason_of, remove_partials
from lightning_audit.hooks.boundary import where
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
    CheckResult,
    OperatingPoint,
    UnauditableTraining,
    items_words,
)
from lightning_audit.results.report_details import (
    PLAIN_LOOP,
    Assumption,
    CheckGrowth,
    ClaimedValue,
    CourseRow,
    Ended,
    ExaminationTold,
    RunAbout,
    TensorNoise,
    for_plain_loop,
)
from lightning_audit.run.measured import measured_epsilon
from lightning_audit.session.step import AuditSession
from lightning_audit.stats.binomial import clopper_pearson_lower, clopper_pearson_upper
from lightning_audit.stats.canary_bets import ProvedPart
from lightning_audit.stats.noise_tests import limits_of_each
from lightning_audit.stats.tradeoff import GaussianTradeoff

if TYPE_CHECKING:
    from lightning_audit.run.facts import RunFacts

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


# --- How the e-values of the checks grew, as far as it may leave the process.

#: Most points of a check.
MOST_POINTS = 12
_Points = list[tuple[int, float]]


def with_threshold(check: CheckResult, significance: float) -> CheckResult:
    """Return the check with the log e-value at which it flags.

    Args:
        check: its result; its share is that of one of several optimizers, if it is of one.
        significance: of the whole run.
    """
    if check.log_e_value is None or not check.share:
        return check
    return dataclasses.replace(check, log_e_threshold=-math.log(check.share * significance))


def growth_of(
    checks: Sequence[CheckResult], tests: Iterable[tuple[str, Evidence]]
) -> dict[str, CheckGrowth]:
    """Return how the e-value of each check grew that has one and observed something.

    Args:
        checks: results as the report shows them, with their thresholds.
        tests: label of the optimizer, or empty, and test, of all checks by e-process.

    Returns:
        By name of the check; if several optimizers have it, of the one closest to its threshold.
    """
    shown = {(c.name, c.optimizer): c for c in checks if c.status != "not_run"}
    found: dict[str, CheckGrowth] = {}
    for label, test in tests:
        check = shown.get((test.name, label))
        if check is None or check.log_e_threshold is None or not test.observed:
            continue
        private = REGISTRY[check.name].private
        points = _coarse(test.growth, check.log_e_threshold) if private else [*test.growth]
        told = _thinned(points, check.log_e_threshold)
        growth = CheckGrowth(check.log_e_threshold, tuple(told), label)
        if check.name not in found or _height(growth) > _height(found[check.name]):
            found[check.name] = growth
    return found


def _height(growth: CheckGrowth) -> float:
    return max((log_e / growth.threshold for _, log_e in growth.growth), default=0.0)


def _coarse(points: Iterable[tuple[int, float]], threshold: float) -> _Points:
    """Return the points at which the e-value reached a power of ten, for numbers of the data."""
    told: _Points = []
    last = 0.0
    for step, log_e in points:
        if (rounded := coarse(log_e, threshold)) > last:
            told.append((step, rounded))
            last = rounded
    return told


def _thinned(points: _Points, threshold: float) -> _Points:
    """Return the first and the last point, the first above the threshold, and some between."""
    if len(points) <= MOST_POINTS:
        return points
    crossed = next((i for i, (_, log_e) in enumerate(points) if log_e >= threshold), 0)
    between = MOST_POINTS - 2
    kept = {round(i * (len(points) - 1) / between) for i in range(between + 1)} | {crossed}
    return [points[i] for i in sorted(kept)]


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


# --- The claim that was audited, each part with its source, and what the epsilons rest on.

#: Parts that `PrivacyClaim` states, if the user does.
_STATED = (
    "noise_multiplier",
    "max_grad_norm",
    "expected_batch_size",
    "sample_rate",
    "sampling",
    "adjacency",
)
_SPENT = {
    "noise": "each step adds Gaussian noise of the stated size, independent of all other steps",
    "clipping": "clipping bounds what one record adds to a step by max_grad_norm",
    "release": "the update uses the noisy gradients alone, and nothing else is released",
}
_BATCHES = {
    "poisson": "each record joins each batch independently, with the stated sample rate",
    "shuffled": "each record enters one step an epoch at most",
}
_NEIGHBORS = {
    "add_remove": "neighboring data sets differ by one record, added or removed",
    "replace_one": "neighboring data sets differ by one replaced record",
}
_NOT_EXCLUDED = {
    "constant": "a fault has the same size, relative to the claim, in all steps",
    "power": "what this run would have flagged with a power of 95 % is excluded, at the observed "
    "gradient variance",
    "kinds": "noise that is too small and clipping at too large a norm, and no other fault",
}


def claim_of(run: RunFacts) -> dict[str, ClaimedValue]:
    """Return each part of the claim, with its source; parts that are unknown are None.

    The number of records is included only if batches are shuffled: with Poisson sampling it is
    private. The same for a divisor that is computed from it, if the user states it as private.
    """
    read = {
        "noise_multiplier": (_noise(run.sessions), "optimizer"),
        "max_grad_norm": (_norms(run.sessions), "optimizer"),
        "expected_batch_size": (_divisors(run), "optimizer"),
        "sample_rate": (_one([own.sample_rate for own in run.audits.facts]), "accountant"),
        "records": (_records(run), "loader"),
        "sampling": ("poisson", "accountant" if run.accountants else "default"),
        "adjacency": (run.config.adjacency, "default"),
        "accountant": (_accountants(run), "optimizer"),
    }
    stated = run.config.claim.to_dict() if run.config.claim else {}
    user = {name: stated[name] for name in _STATED if stated.get(name) is not None}
    return {
        name: ClaimedValue(user[name], "user") if name in user else ClaimedValue(value, source)
        for name, (value, source) in read.items()
    }


def claimed_mu(history: Sequence[tuple[float, float | None, int]]) -> float | None:
    """Return the claimed mu of the step with the least noise; None without steps or noise."""
    least = min((phase[0] for phase in history), default=0.0)
    return 1.0 / least if least > 0.0 else None


def assumptions_of(report: AuditReport, config: AuditConfig) -> dict[str, tuple[Assumption, ...]]:
    """Return what ``epsilon_spent`` and ``epsilon_not_excluded`` rest on, if they are known."""
    # The epsilon that holds with an allowed finding is that of one step an epoch.
    allowed = any("spent" in REGISTRY[name].refutes for name in report.epsilon_refuted_by)
    of_both = {
        "batches": _BATCHES["shuffled" if config.shuffled or allowed else "poisson"],
        "neighbors": _NEIGHBORS[config.adjacency] + items_words(config.items),
    }
    told = {
        "epsilon_spent": (report.epsilon_spent, {**_SPENT, **of_both}),
        "epsilon_not_excluded": (report.epsilon_not_excluded, {**_NOT_EXCLUDED, **of_both}),
    }
    return {
        name: tuple(Assumption(*item) for item in sentences.items())
        for name, (value, sentences) in told.items()
        if value is not None
    }


def _one(values: Sequence[Any]) -> Any:
    """Return the value if all optimizers have the same, else all; None if none is known."""
    if not values or all(value is None for value in values):
        return None
    return values[0] if all(value == values[0] for value in values) else list(values)


def _noise(sessions: Sequence[AuditSession]) -> Any:
    """Return the least noise multiplier of the steps, or that of the coming one."""
    return _one([min(_multipliers(session), default=None) for session in sessions])


def _multipliers(session: AuditSession) -> Iterator[float]:
    history = session.monitor.history
    yield from (phase.noise_multiplier for phase in history)
    if not history and (claim := session.planner.known_claim()) is not None:
        yield claim.noise_multiplier


def _norms(sessions: Sequence[AuditSession]) -> Any:
    claims = [session.planner.known_claim() for session in sessions]
    return _one([None if claim is None else claim.max_grad_norm for claim in claims])


def _divisors(run: RunFacts) -> Any:
    if run.config.private_size:
        return None
    return _one([own.expected_batch_size for own in run.audits.facts])


def _records(run: RunFacts) -> int | None:
    public = run.config.shuffled and not run.config.private_size
    return run.lints.loader.records if public and run.lints.loader is not None else None


def _accountants(run: RunFacts) -> Any:
    names = [str(link.accountant.mechanism()) for link in run.accountants]
    return _one(names)


# --- Limits of the error rates at each operating point, and whether they fit the claim.


def with_limits(
    points: Iterable[OperatingPoint], claimed_mu: float | None, significance: float
) -> tuple[OperatingPoint, ...]:
    """Return the points with the limits of their rates.

    Args:
        points: counts at each threshold.
        claimed_mu: of the step with the least noise; None if no noise is claimed.
        significance: probability that the four limits of a point miss its rates.
    """
    curve = None if claimed_mu is None else GaussianTradeoff(claimed_mu)
    return tuple(_limited(point, curve, significance / 4.0) for point in points)


def _limited(point: OperatingPoint, curve: GaussianTradeoff | None, share: float) -> OperatingPoint:
    fpr = _limits(point.fp, point.fp + point.tn, share)
    fnr = _limits(point.fn, point.fn + point.tp, share)
    outside = False
    if curve is not None and fpr is not None and fnr is not None:
        inverted = 1.0 - curve(1.0 - fpr[0])
        outside = bool(fnr[1] < curve(fpr[1]) or fnr[0] > inverted)
    return dataclasses.replace(point, fpr=fpr, fnr=fnr, outside=outside)


def _limits(errors: int, trials: int, share: float) -> tuple[float, float] | None:
    """Return the limits of a rate, each wrong with probability ``share``; None without a trial."""
    if not trials:
        return None
    return (
        float(clopper_pearson_lower(errors, trials, share)),
        float(clopper_pearson_upper(errors, trials, share)),
    )


# --- What was read of each tensor's noise, as rows of the report.

#: Most rows of tensors that are not flagged.
MOST_UNFLAGGED = 50


def rows_of(
    monitor: AuditMonitor, sizes: Mapping[str, int], optimizer: str = ""
) -> list[TensorNoise]:
    """Return a row for each tensor of a private optimizer.

    Args:
        monitor: the current checks.
        sizes: number of entries by name of the tensor.
        optimizer: its label, if there are several.
    """
    noise, header = monitor.witness_noise, monitor.header
    flagged = {*noise.flagged_tensors()}
    lower, upper = limits_of_each(noise.sums.count, noise.sums.squares)
    return [
        TensorNoise(
            name=name,
            size=sizes[name],
            entries=header.witnesses[j],
            reads=int(noise.sums.count[j]),
            ratio=float(np.sqrt(noise.sums.mean_square[j])) if noise.sums.count[j] else None,
            lower=float(lower[j]) if lower[j] > 0.0 else None,
            upper=float(upper[j]) if np.isfinite(upper[j]) else None,
            flagged=name in flagged,
            optimizer=optimizer,
        )
        for j, name in enumerate(header.tensors)
    ]


def capped(rows: Iterable[TensorNoise]) -> tuple[tuple[TensorNoise, ...], int]:
    """Return the flagged tensors and those with the least noise, and how many are left out."""
    every = sorted(rows, key=lambda row: (not row.flagged, row.ratio is None, row.ratio or 0.0))
    flagged = sum(row.flagged for row in every)
    kept = every[: flagged + MOST_UNFLAGGED]
    return tuple(kept), len(every) - len(kept)


# --- Fills the details of a report, from which its views are rendered.

_LACKS = "the report lacks its {}, which failed ({}); the verdict does not depend on that"


def filled(report: AuditReport, run: RunFacts) -> AuditReport:
    """Return the report with its details.

    A detail that fails adds a note, and the verdict stays.

    Args:
        report: with verdict, checks and epsilons.
        run: the run.
    """
    parts = (_faults, _thresholds, _growth, _tensors, _operating_points, _claim, _course)
    for part in (*parts, _as_measured):
        try:
            report = part(report, run)
        except Exception as error:
            failed, line = where(error)
            name = part.__name__.removeprefix("_")
            _log.warning("privacy audit: details failed: %s (%s:%d)", name, failed, line)
            report = replace(report, notes=(*report.notes, _LACKS.format(name, failed)))
    in_loop = report.run is not None and report.run.strategy == PLAIN_LOOP
    return for_plain_loop(report) if in_loop else report


def _thresholds(report: AuditReport, run: RunFacts) -> AuditReport:
    significance = run.config.significance
    return replace(
        report, checks=tuple(with_threshold(check, significance) for check in report.checks)
    )


def _growth(report: AuditReport, run: RunFacts) -> AuditReport:
    return replace(report, tests=growth_of(report.checks, _tests(run)))


def _tensors(report: AuditReport, run: RunFacts) -> AuditReport:
    rows, left_out = capped(
        row
        for session, own in zip(run.sessions, run.audits.facts, strict=False)
        for row in rows_of(
            session.monitor, {slot.name: slot.numel for slot in session.step.layout}, own.label
        )
    )
    return replace(report, tensors=rows, tensors_left_out=left_out)


def _operating_points(report: AuditReport, run: RunFacts) -> AuditReport:
    mu, level = claimed_mu(report.history), run.config.bound_significance
    points = with_limits(report.operating_points, mu, level)
    return replace(report, claimed_mu=mu, operating_points=points)


def _claim(report: AuditReport, run: RunFacts) -> AuditReport:
    return replace(
        report,
        claim=claim_of(run),
        settings_given=run.config.given,
        assumptions=assumptions_of(report, run.config),
    )


def _course(report: AuditReport, run: RunFacts) -> AuditReport:
    about = run.course.about
    now, loader = about.now, run.lints.loader
    return replace(
        report,
        course=tuple(about.rows),
        ended=about.ended(report.steps, run.course.break_off),
        planned_steps=about.planned_steps,
        run=replace(now, data=loader.data) if now and loader else now,
        examinations=tuple(about.examinations),
        published=tuple(run.course.fence.published),
    )


def _as_measured(report: AuditReport, run: RunFacts) -> AuditReport:
    if run.config.mechanism_alone:
        return report
    about = run.config.adjacency, run.course.fits.counted(run.config), run.config.items
    return replace(report, epsilon_measured=measured_epsilon(report, *about))


def _faults(report: AuditReport, run: RunFacts) -> AuditReport:
    """Return the report with headlines of its faults and places in the user's code."""
    verdict = report.verdict
    known = headlines() if verdict.faults else {}
    faults = tuple(
        replace(
            fault,
            headline=known.get(fault.name) or REGISTRY[fault.finding].heading(failed=True),
        )
        for fault in verdict.faults
    )
    verdict = replace(verdict, faults=faults)
    if run.code:
        verdict = run.code.in_verdict(verdict, source=run.config.source_in_report)
    return replace(report, verdict=verdict)


def _tests(run: RunFacts) -> Iterator[tuple[str, Evidence]]:
    """Yield every test of the run, with the label of its optimizer if there are several."""
    for session, own in zip(run.sessions, run.audits.facts, strict=False):
        yield from ((own.label, test) for test in session.recorder.tests)
    yield from (
        ("", test) for test in evidence_in([run.lints.batches, run.ledger, run.course.examined])
    )
