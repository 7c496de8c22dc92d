"""The report of an audit: plain, frozen and JSON-able, with no heavy import.

A report holds the verdict, every check with its evidence, the bounds, and the inputs from which
each number can be computed again; the observations themselves are in separate files.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from lightning_audit.files.bounded import read_text
from lightning_audit.files.json_reader import MOST_BYTES
from lightning_audit.files.printable import visible
from lightning_audit.files.replacing import replacing
from lightning_audit.results import report_json
from lightning_audit.results.report_details import (
    Assumption,
    CheckGrowth,
    ClaimedValue,
    CourseRow,
    Ended,
    ExaminationTold,
    PassBlocker,
    RunAbout,
    TensorNoise,
    as_now,
)
from lightning_audit.results.report_details import OperatingPoint as OperatingPoint
from lightning_audit.results.report_json import ReportError as ReportError
from lightning_audit.results.trainings_seen import TrainingsSeen
from lightning_audit.results.verdict import EXIT_CODES as EXIT_CODES
from lightning_audit.results.verdict import KINDS as KINDS
from lightning_audit.results.verdict import Kind as Kind
from lightning_audit.results.verdict import LikelyFault as LikelyFault
from lightning_audit.results.verdict import Outcome as Outcome
from lightning_audit.results.verdict import Place as Place
from lightning_audit.results.verdict import Verdict as Verdict
from lightning_audit.results.verdict import describe as describe

#: Version of the report's layout; raised when a reader of the old one would misread the new one.
#: A release may add fields without raising it: older releases ignore them.
SCHEMA_VERSION = 6


@dataclass(frozen=True)
class EpsilonBound:
    """A proved lower bound on epsilon.

    Args:
        name: the method.
        epsilon_lower: the bound, None where the composition is unknown.
        delta: the delta that it goes with.
        mu_lower: the bound on one step's mu.
        significance: probability that the bound is wrong.
        interpretation: confidence or credible.
        threshold: fixed beforehand, or searched on the same data.
        looks: anytime, or for a single look.
        assumptions: what it rests on.
        epsilon_step_lower: the bound on one step's epsilon at ``delta`` (at 0 for "katz"), None
            where the method bounds mu only through a whole run. It is for distinguishing a
            batch with the canary from one without it, unless the assumptions name the subsampled
            game.
    """

    name: str
    epsilon_lower: float | None
    delta: float
    mu_lower: float | None
    significance: float
    interpretation: Literal["confidence", "credible"]
    threshold: Literal["fixed", "searched"]
    looks: Literal["anytime", "single"]
    assumptions: tuple[str, ...]
    epsilon_step_lower: float | None = None


@dataclass(frozen=True)
class CheckResult:
    """One check of one property.

    Args:
        name: the finding's name, as `PrivacyAudit(allow=...)` takes it.
        kind: which claim it is about.
        status: "ok", "violated", "allowed" (violated, acknowledged by the user), "warned" (not as
            stated, but no privacy is lost by it: it fails no gate), "undecided" (violated, but not
            by a fault for certain: it prevents a pass), or "not_run".
        message: what was seen, in a sentence.
        advice: what to look at; empty where nothing is wrong.
        log_e_value: largest natural logarithm of the e-value so far, None for a deterministic one.
        share: its share of the significance, 0 for a deterministic one.
        evidence: the numbers of the message.
        optimizer: label of the private optimizer that it is of; empty where there is no other, or
            it is of the run.
        follows_from: of a violated check, the finding whose fault explains it; empty where it is a
            finding itself.
        log_e_threshold: ``log_e_value`` at which it flags; None for a deterministic one.
    """

    name: str
    kind: Kind
    status: Literal["ok", "violated", "allowed", "warned", "undecided", "not_run"]
    message: str
    advice: str = ""
    log_e_value: float | None = None
    share: float = 0.0
    evidence: Mapping[str, Any] = field(default_factory=dict)
    optimizer: str = ""
    follows_from: str = ""
    log_e_threshold: float | None = None


@dataclass(frozen=True)
class Power:
    """How likely a run was to show a violation of a part of the resolution.

    Args:
        power: probability of a flag within the steps that ran.
        steps_needed: steps at which it reaches 95 %.
        size: the violation: noise, or what a canary adds, as a multiple of what is claimed.
    """

    power: float
    steps_needed: int
    size: float


@dataclass(frozen=True)
class OptimizerSeen:
    """What the verdict uses of one private optimizer in addition to its checks.

    Args:
        label: its number and first parameters; empty where there is no other.
        steps: its steps.
        canaries: canaries of a step.
        canary_steps: steps whose canaries were read.
        lost_steps: steps with a failed injection or a gradient that is not finite.
        noiseless_steps: steps without noise, of which nothing is claimed.
        oversize: norm of the canaries over the clipping norm.
        shift_lower: lower 95 % limit of a canary's signal in clipping norms; None, -inf if unseen.
        power: what the steps could have shown, by part of the resolution; empty during the run.
        released: share of the canaries' square norms on released entries; 1 if not known.
        pass_blockers: what else prevents a pass, as text.
    """

    label: str
    steps: int
    canaries: int
    canary_steps: int
    lost_steps: int
    noiseless_steps: int
    oversize: float
    shift_lower: float | None
    power: Mapping[str, Power]
    released: float
    pass_blockers: tuple[str, ...] = ()


@dataclass(frozen=True)
class AuditReport:
    """Everything an audit has to say about one run.

    Args:
        verdict: the answer.
        checks: every check, violated ones first.
        bounds: lower bounds on epsilon.
        claimed_epsilon: the claim; None if none was made, or the accountant's is refuted.
        epsilon_spent: of the steps that ran, as far as it is known to hold; None if unknown.
        epsilon_refuted_by: findings that the user allows, and that refute claim or composition.
        epsilon_not_excluded: epsilon of the worst mechanism that this run could not have seen.
        delta: the delta of all epsilons.
        steps: optimizer steps seen.
        observations: canary readings that entered the tests.
        history: phases of (noise_multiplier, sample_rate, steps); sample_rate None if unknown.
        composed: phases from which ``epsilon_spent`` is composed; empty for those of ``history``.
            They differ if the accountants recorded steps that cost more, or if the batches are
            shuffled: passes at the sample rate 1.
        power: for each part of the resolution, the probability of a flag and the steps it needs.
        epochs: what was logged at each epoch's end.
        settings: arguments of the audit, seed included.
        environment: versions of the libraries.
        notes: remarks on the run.
        record: file name of the observations, in the report's folder; None if not kept.
        created: when the report was written, in ISO 8601 with the zone.
        complete: False during the run, or if it broke off.
        operating_points: how well the coins were guessed, at several thresholds.
        other_records: those of further private optimizers; all counts are of all of them.
        optimizers: what the verdict uses of each private optimizer in addition to the checks.
        pass_blockers: what else prevents a pass, as text.
        audit_cost: see `RunTime.cost`.
        examination_cost: of that, of examinations by replay; see `ExaminationLog.spend`.
        tests: how the e-value of each check by e-process grew.
        tensors: noise of each tensor: the flagged ones and the 50 others with the least noise.
        tensors_left_out: number of further tensors.
        course: at each epoch's end, 200 rows at most.
        claimed_mu: mu of the step with the least noise, as claimed; None without steps or noise.
        claim: each part of the audited claim and its source.
        ended: how the training ended; None while it runs.
        planned_steps: of the whole training; None if unknown.
        blockers: the verdict's pass_blockers, in the same order, with their numbers.
        run: circumstances of the training; None if the audit failed before it began.
        settings_given: arguments of the audit that are not at their defaults.
        assumptions: what ``epsilon_spent`` and ``epsilon_not_excluded`` rest on, by their names.
        examinations: of steps by replay.
        trainings: what an audit over many trainings counted; None in a report of one training.
        schema_version: layout of this report.
    """

    verdict: Verdict
    checks: tuple[CheckResult, ...]
    bounds: tuple[EpsilonBound, ...]
    claimed_epsilon: float | None
    epsilon_spent: float | None
    epsilon_not_excluded: float | None
    delta: float
    steps: int
    observations: int
    history: tuple[tuple[float, float | None, int], ...]
    power: Mapping[str, Mapping[str, int | float]]
    epochs: tuple[Mapping[str, int | float], ...]
    settings: Mapping[str, Any]
    environment: Mapping[str, str]
    notes: tuple[str, ...] = ()
    record: str | None = None
    created: str = ""
    complete: bool = True
    operating_points: tuple[OperatingPoint, ...] = ()
    other_records: tuple[str, ...] = ()
    optimizers: tuple[OptimizerSeen, ...] = ()
    pass_blockers: tuple[str, ...] = ()
    epsilon_refuted_by: tuple[str, ...] = ()
    composed: tuple[tuple[float, float | None, int], ...] = ()
    audit_cost: Mapping[str, float] = field(default_factory=dict)
    examination_cost: Mapping[str, float] = field(default_factory=dict)
    tests: Mapping[str, CheckGrowth] = field(default_factory=dict)
    tensors: tuple[TensorNoise, ...] = ()
    tensors_left_out: int = 0
    course: tuple[CourseRow, ...] = ()
    claimed_mu: float | None = None
    claim: Mapping[str, ClaimedValue] = field(default_factory=dict)
    ended: Ended | None = None
    planned_steps: int | None = None
    blockers: tuple[PassBlocker, ...] = ()
    run: RunAbout | None = None
    settings_given: tuple[str, ...] = ()
    assumptions: Mapping[str, tuple[Assumption, ...]] = field(default_factory=dict)
    examinations: tuple[ExaminationTold, ...] = ()
    trainings: TrainingsSeen | None = None
    schema_version: int = SCHEMA_VERSION

    @property
    def records(self) -> tuple[str, ...]:
        """File names of all observations, in the report's folder."""
        return (*((self.record,) if self.record else ()), *self.other_records)

    @property
    def epsilon_lower(self) -> float | None:
        """The largest of the bounds that hold at all looks, None if no epsilon was composed."""
        anytime = [b for b in self.bounds if b.looks == "anytime"]
        values = [b.epsilon_lower for b in anytime if b.epsilon_lower is not None]
        return max(values, default=None)

    def to_json(self) -> str:
        """The report as JSON; infinite numbers as the strings "inf" and "-inf"."""
        return report_json.write(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> AuditReport:
        """Read a report.

        Args:
            text: what `to_json` wrote.

        Returns:
            The report; a note names fields that this release ignores.

        Raises:
            ReportError: the text is truncated or not a report, has another layout, a SHA-256 that
                does not match, or a field of another type.
        """
        report: AuditReport
        report, unknown = report_json.read(cls, text, SCHEMA_VERSION, as_now)
        if not unknown:
            return report
        note = f"this release ignores the unknown fields {', '.join(unknown)}"
        return dataclasses.replace(report, notes=(*report.notes, visible(note)))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the report so that a reader sees the old file or the new one, never half.

        A link in the file's place is replaced, and nothing is written through it.
        """
        text = self.to_json() + "\n"
        with replacing(path) as file:
            file.write(text.encode())
        return Path(path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> AuditReport:
        """Read a report from a file.

        Raises:
            ReportError: the file is absent or unreadable, or see `from_json`.
        """
        try:
            text = read_text(path, MOST_BYTES)
        except (OSError, ValueError) as error:
            raise ReportError(f"cannot read {os.fspath(path)!r}: {error}") from error
        return cls.from_json(text)


class _EndedByVerdict(Exception):
    """A training ends by the audit's verdict.

    Args:
        report: the audit's report.
    """

    def __init__(self, report: AuditReport) -> None:
        super().__init__(describe(report.verdict))
        self.report = report

    def __reduce__(self) -> tuple[Any, ...]:
        # Spawned processes hand their exceptions over as pickles.
        return type(self), (self.report,)


class PrivacyViolation(_EndedByVerdict):
    """The training does not have the privacy that it claims."""


class InconclusiveAudit(_EndedByVerdict):
    """The audit could not have seen a violation, and `on_inconclusive` is "raise"."""
