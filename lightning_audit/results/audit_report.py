"""The report of an audit: plain, frozen and JSON-able, with no heavy import.

A report holds the verdict, every check with its evidence, the bounds, and the inputs from which
each number can be computed again; the observations themselves are in separate files.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from lightning_audit._version import DOCUMENTATION
from lightning_audit.files import MOST_BYTES, read_text, replacing, visible
from lightning_audit.results import report_json
from lightning_audit.results.report_details import (
    PLAIN_LOOP,
    Assumption,
    CheckGrowth,
    ClaimedValue,
    CodePlace,
    CourseRow,
    Ended,
    ExaminationTold,
    MeasuredEpsilon,
    PassBlocker,
    RunAbout,
    TensorNoise,
    as_now,
)
from lightning_audit.results.report_details import OperatingPoint as OperatingPoint
from lightning_audit.results.report_json import ReportError as ReportError

# --- The verdict of an audit, with the faults that may explain it, as data and as text.

Outcome = Literal["PASS", "VIOLATION", "INCONCLUSIVE"]
Kind = Literal["mechanism", "epsilon", "accounting"]

#: The first that is violated is the verdict's.
KINDS: tuple[Kind, ...] = ("mechanism", "epsilon", "accounting")

#: Remark of a summary on a violation that loses no privacy.
SAME_FACTOR = (
    "noise and clipping are off by the same factor, so this loses no privacy by itself, but the "
    "mechanism is not the stated one"
)
#: Exit codes of the gate.
EXIT_CODES: Mapping[Outcome, int] = {"PASS": 0, "VIOLATION": 1, "INCONCLUSIVE": 2}


@dataclass(frozen=True)
class Place:
    """Where a fault was seen, as far as that is known.

    Args:
        parameters: names of the parameters that show it; empty where all do, or none is known.
        step: optimizer step, from 0, at which it was first seen; None if unknown.
        process: rank of the process, None if all show it.
        optimizer: which of several private optimizers; empty where there is no other.
        code: the user's own code to look at; empty where it is none of theirs.
    """

    parameters: tuple[str, ...] = ()
    step: int | None = None
    process: int | None = None
    optimizer: str = ""
    code: tuple[CodePlace, ...] = ()


@dataclass(frozen=True)
class LikelyFault:
    """What may be wrong in the code, given what the checks found.

    Args:
        name: a short identifier that stays the same, such as "clip_after_average".
        sentence: what is wrong, in words.
        finding: name of the check that shows it.
        look_at: what to look at in the code, as a noun phrase.
        evidence: the numbers that support it.
        place: where it was seen.
        consequences: names of the other violated checks that it explains.
        headline: what is wrong, in a few words, with its size if that is known as an interval;
            empty in earlier reports.
        seen: the end of ``sentence`` that says what was measured; empty if nothing was.
    """

    name: str
    sentence: str
    finding: str
    look_at: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    place: Place = Place()
    consequences: tuple[str, ...] = ()
    headline: str = ""
    seen: str = ""

    def shares_finding(self, other: LikelyFault) -> bool:
        """Whether the same check of the same optimizer shows both: one of them is the cause."""
        whose = {self.place.optimizer, other.place.optimizer}
        return self.finding == other.finding and (len(whose) == 1 or "" in whose)


@dataclass(frozen=True)
class Verdict:
    """The answer of an audit.

    Args:
        outcome: PASS, VIOLATION or INCONCLUSIVE.
        kind: for a violation, which claim is false.
        summary: what was seen, in a sentence; of a violation the root, and names of what it does
            not explain.
        fault: the likeliest fault in words; empty if none. It is taken of ``faults`` if not given.
        advice: what to do next; empty where ``look_at`` of the root says it.
        pass_blockers: what keeps an inconclusive audit from a pass; shown under "Missing".
        faults: what may be wrong, the root first. One with another finding than those before it is
            a further finding, which none of those explains.
        allowed: findings that the user allows, which the first line names.
        holds: which epsilon holds with them, in words; empty where nothing is allowed.

    Raises:
        ValueError: ``fault`` is not the sentence of the first of ``faults``.
    """

    outcome: Outcome
    kind: Kind | None
    summary: str
    fault: str = ""
    advice: str = ""
    pass_blockers: tuple[str, ...] = ()
    faults: tuple[LikelyFault, ...] = ()
    allowed: tuple[str, ...] = ()
    holds: str = ""

    def __post_init__(self) -> None:
        if not self.faults:
            return
        first = self.faults[0].sentence
        if self.fault not in ("", first):
            raise ValueError(f"fault={self.fault!r} must be {first!r}, as faults has it.")
        object.__setattr__(self, "fault", first)

    @property
    def root(self) -> LikelyFault | None:
        """The fault that the verdict leads with; None where no check is violated."""
        return self.faults[0] if self.faults else None

    @property
    def further(self) -> tuple[LikelyFault, ...]:
        """The first fault of each finding that the root does not explain."""
        return tuple(
            fault
            for i, fault in enumerate(self.faults)
            if not any(fault.shares_finding(before) for before in self.faults[:i])
        )[1:]

    @property
    def exit_code(self) -> int:
        """0 for PASS, 1 for VIOLATION, 2 for INCONCLUSIVE."""
        return EXIT_CODES[self.outcome]


def section_of(check: str) -> str:
    """Return the address of the section on a check in the documentation."""
    return f"{DOCUMENTATION}/checks/#{quote(check)}"


def items_words(items: int) -> str:
    """Return the items of a record that an epsilon covers, to follow its delta; empty for one."""
    return f", with up to {items} items a record" if items > 1 else ""


def first_of(names: Sequence[str], most: int = 5) -> str:
    """Return the first names, and how many more there are.

    Example:
        >>> first_of(["a", "b", "c"], 2), first_of(["a", "b"], 2)
        ('a, b and 1 more', 'a, b')
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


def outcome_in_words(verdict: Verdict) -> str:
    """The outcome, with the kind of a violation and what the user allows."""
    kind = f" ({verdict.kind})" if verdict.kind else ""
    names = ", ".join(verdict.allowed)
    allowed = f" except {names} (allowed)" if names and verdict.outcome == "PASS" else ""
    if names and not allowed:
        allowed = f", with {names} allowed"
    return f"{verdict.outcome}{kind}{allowed}"


def describe(verdict: Verdict) -> str:
    """A verdict in a few lines of text; of a report from elsewhere, no line can pose as two."""
    holds = f"; {verdict.holds}" if verdict.holds else ""
    lines = [f"{outcome_in_words(verdict)}{holds}: {verdict.summary}"]
    if verdict.fault:
        seen = verdict.root.seen if verdict.root else ""
        known = seen.removeprefix("the noise is ") in verdict.summary
        fault = verdict.fault.removesuffix(f": {seen}") if known else verdict.fault
        lines.append(f"Likely fault: {fault}")
    if root := verdict.root:
        lines += _details(root, verdict.advice)
        lines += [
            f"Or: {_briefly(fault, root.place)}"
            for fault in verdict.faults[1:]
            if fault.shares_finding(root)
        ]
        lines += [f"Also: {_further(fault)}" for fault in verdict.further]
    lines.extend(f"Missing: {item}" for item in verdict.pass_blockers)
    if verdict.advice:
        lines.append(f"Next: {verdict.advice}")
    return "\n".join(visible(line) for line in lines)


class HasVerdict:
    """A result of an audit that has a verdict, as text and as a bool."""

    verdict: Verdict

    @property
    def passed(self) -> bool:
        """Whether the verdict is PASS."""
        return self.verdict.outcome == "PASS"

    def __str__(self) -> str:
        return describe(self.verdict)


def _details(root: LikelyFault, advice: str) -> list[str]:
    """What is known of the root, each in a line if there is anything to say."""
    said = ("noise_ratio", "noise_ratio_upper") if "noise_ratio" in root.evidence else ()
    known = {k: v for k, v in root.evidence.items() if v not in ("", None) and k not in said}
    parts = {
        "Where": _in_words(replace(root.place, code=())),
        "Code": ", ".join(place.pointer for place in root.place.code),
        "Evidence": ", ".join(f"{k} {_shown(_from_one(k, v))}" for k, v in known.items()),
        "Look at": "" if advice else root.look_at,
        "Explains": ", ".join(root.consequences),
    }
    return [f"  {title}: {text}" for title, text in parts.items() if text]


def _briefly(fault: LikelyFault, beside: Place = Place()) -> str:
    place = "" if fault.place == beside else _in_words(fault.place)
    return f"{fault.sentence} ({place})" if place else fault.sentence


def _further(fault: LikelyFault) -> str:
    """A finding that the root does not explain, in a line."""
    follows = f"; explains: {', '.join(fault.consequences)}" if fault.consequences else ""
    look_at = f"; look at: {fault.look_at}" if fault.look_at else ""
    return f"{fault.finding}: {_briefly(fault)}{look_at}{follows}"


def _in_words(place: Place) -> str:
    parts = [place.optimizer] if place.optimizer else []
    if place.parameters:
        parts.append(first_of([f"`{name}`" for name in place.parameters]))
    if place.process is not None:
        parts.append(f"process {place.process}")
    if place.step is not None:
        parts.append(f"first seen in step {place.step + 1}")
    if place.code:
        parts.append(", ".join(one.pointer for one in place.code))
    return ", ".join(parts)


def _from_one(name: str, value: Any) -> Any:
    """Numbers of steps as people count them, from 1; in the report they count from 0."""
    numbers = name.endswith("steps") and isinstance(value, list | tuple)
    return [n + 1 if isinstance(n, int) else n for n in value] if numbers else value


def _shown(value: Any) -> str:
    """A number in three digits, the first five entries of a table."""
    if isinstance(value, Mapping):
        return f"({first_of([f'{name} {_shown(item)}' for name, item in value.items()])})"
    if isinstance(value, list | tuple):
        return ", ".join(_shown(item) for item in value)
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def measured_words(report: AuditReport, *, source: bool = False) -> str:
    """Return the epsilon of the measured noise and clipping in words; empty if it is unknown.

    Args:
        report: of the training.
        source: whether to add what was measured.
    """
    found = report.epsilon_measured
    if found is None:
        return ""
    value = f"epsilon at least {found.lower:.3g}"
    if found.lower > 100.0:
        value = "epsilon above 100"
    elif found.about is not None and found.upper is not None and math.isfinite(found.upper):
        about = float(f"{found.about:.2g}")
        value = f"epsilon about {about:g} ({found.lower:.3g} to {found.upper:.3g}, 99 %)"
    steps = f"{found.steps:,} {'planned ' if found.planned else ''}step{'s' * (found.steps != 1)}"
    over = f"over the {steps}{'' if found.planned else ' so far'}"
    if found.planned and found.steps > report.steps and report.history:
        over += f" at noise multiplier {report.history[-1][0]:.3g}"
    if not found.planned and report.epsilon_spent is not None:
        over += f", where {report.epsilon_spent:.3g} is computed"
    alike = "steps and small tensors" if found.least_noise else "steps and tensors"
    alike = "steps" if found.of else alike
    if found.most is not None:
        over += f", about {found.most:.2g} for records whose gradient lies in `{found.least_noise}`"
    of = f" for {found.of}" if found.of else ""
    measured = f": {found.measured}" if source else ""
    return (
        f"{value} {over}{of}, if all {alike} are alike and everything else is as stated{measured}"
    )


# --- What an audit over many trainings counted: the part of its report that other reports lack.


@dataclass(frozen=True)
class TrainingsSeen:
    """What an audit over many trainings counted, and what follows from the counts.

    Each training has fair coins of its own: whether its data set holds a canary. Errors are wrong
    guesses of coins, by a rule learnt from the trainings before it in the plan. All counts are
    functions of the audit's coins and of the trained models.

    Args:
        claim: the claim in words.
        form: "mechanism" of noise multiplier, sample rate and steps; "tradeoff" of a trade-off
            function; "epsilon" of (epsilon, delta).
        pair: how the two data sets of a training differ.
        least_error: least mean error rate that the claim allows.
        errors: number of wrong guesses; all guesses in failed trainings are wrong.
        guesses: number of guesses.
        trainings: number of trainings, from the first of the plan.
        failures: number of those that failed.
        planned: number of trainings of the plan.
        canaries: number of canaries in each training.
        significance: probability of a VIOLATION although the claim is true.
        log_e_value: largest natural logarithm of the e-value of all looks. With several canaries
            in a training, half of the significance is for the bets, so that it is of half the
            e-value, and half for one look at all coins at the planned end; if that refutes the
            claim, it is ``log(1 / significance)``.
        refuted_after: number of trainings at which the claim was refuted; None if it is not.
        error_upper: upper limit of the mean error rate at any number of looks.
        error_upper_at_end: upper limit by one look at the planned end; None before it.
        mu_lower: the training is not Gaussian DP with a smaller mu; at any number of looks. For a
            Gaussian claim it is computed from the scores too, else from `error_upper`.
        ratio_lower: leakage over claim is at least this; at any number of looks. None if the claim
            is of no mechanism.
        trainings_more: further trainings after which the claim is refuted if errors remain
            as frequent; None if they are not rarer than the claim allows, or it is refuted.
        trainings_to_pass: trainings after which a PASS is expected if errors remain as frequent:
            the attack is then shown to see half of the claimed strength, and one of twice that
            strength would be found with 95 % power; None if there is no such number.
    """

    claim: str
    form: Literal["mechanism", "tradeoff", "epsilon"]
    pair: Literal["add_remove", "replace_one"]
    least_error: float
    errors: int
    guesses: int
    trainings: int
    failures: int
    planned: int
    canaries: int
    significance: float
    log_e_value: float
    refuted_after: int | None
    error_upper: float
    error_upper_at_end: float | None
    mu_lower: float
    ratio_lower: float | None
    trainings_more: int | None
    trainings_to_pass: int | None


# --- The report of an audit: plain, frozen and JSON-able, with no heavy import.

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


#: Name of a training's bound by one look at its planned end.
AT_END = "at_end"


def at_end(bounds: Sequence[EpsilonBound]) -> float | None:
    """Return a training's lower bound by one look at its planned end; None if there is none."""
    return next((bound.epsilon_lower for bound in bounds if bound.name == AT_END), None)


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
        reason: name of the reason for which it was not run, see `checks.replay_findings`; empty
            if it was run, or for a reason without a name.
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
    reason: str = ""


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
        spread: smallest standard deviation of a tensor's gradient over the claimed noise.
        lost_explained: whether ``pass_blockers`` say why steps were lost.
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
    spread: float = 1.0
    lost_explained: bool = False


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
        epsilon_measured: of the noise and the clipping that were found, an estimate; None where
            neither is at fault, or not in a known ratio.
        published: names of values that the training logs and that records decide, as replays show.
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
    epsilon_measured: MeasuredEpsilon | None = None
    published: tuple[str, ...] = ()
    schema_version: int = SCHEMA_VERSION

    @property
    def claim_ended_it(self) -> bool:
        """Whether the training was stopped because its next step would exceed the claim."""
        return self.ended is not None and self.ended.reason == "budget"

    @property
    def records(self) -> tuple[str, ...]:
        """File names of all observations, in the report's folder."""
        return (*((self.record,) if self.record else ()), *self.other_records)

    @property
    def of_items(self) -> str:
        """The items of a record that the epsilons cover, as text; empty for one."""
        stated = (self.settings.get("claim") or {}).get("items_per_record")
        return items_words(stated if isinstance(stated, int) else 1)

    @property
    def claim_holds(self) -> bool:
        """Whether nothing that is allowed lets the epsilon exceed the claim."""
        claimed, spent = self.claimed_epsilon, self.epsilon_spent
        kept = claimed is not None and spent is not None and spent <= claimed
        return kept or not self.epsilon_refuted_by

    @property
    def epsilon_that_holds(self) -> float | None:
        """The claimed epsilon; that of the steps if allowed findings refute the claim."""
        return self.claimed_epsilon if self.claim_holds else self.epsilon_spent

    @property
    def epsilon_lower(self) -> float | None:
        """The largest of the bounds that hold at all looks, None if no epsilon was composed."""
        anytime = [b for b in self.bounds if b.looks == "anytime"]
        values = [b.epsilon_lower for b in anytime if b.epsilon_lower is not None]
        return max(values, default=None)

    @property
    def epsilon_lower_at_end(self) -> float | None:
        """The bound by one look at the planned end, decided before the first step.

        None before that end, and where `epsilon_lower` is the only bound. It holds with the
        confidence of its own significance, and not together with `epsilon_lower`.
        """
        if self.trainings is None:
            return at_end(self.bounds)
        ends = [b.epsilon_lower for b in self.bounds if b.looks == "single"]
        return max((each for each in ends if each is not None), default=None)

    def _repr_html_(self) -> str:
        """Return verdict, epsilons and findings as a table, for a notebook."""
        from markupsafe import escape

        names = ("claimed_epsilon", "epsilon_spent", "epsilon_lower", "delta")
        rows: list[tuple[str, str]] = [(self.verdict.outcome, self.verdict.summary)]
        rows += [(name, f"{getattr(self, name) or 0.0:.4g}") for name in names]
        rows += [(c.name, c.message) for c in self.checks if c.status == "violated"]
        cells = (f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in rows)
        return f"<table>{''.join(cells)}</table>"

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
        path: where it was saved; None if it was not.
    """

    def __init__(self, report: AuditReport, path: str | os.PathLike[str] | None = None) -> None:
        lines = [describe(report.verdict)]
        if measured := measured_words(report):
            lines.append(f"Measured: {visible(measured)}")
        if root := report.verdict.root:
            lines.append(f"More: {section_of(root.finding)}")
        if path is not None:
            lines.append(f"Report: lightning-audit show {visible(os.fspath(path))}")
        super().__init__("\n".join(lines))
        self.report, self.path = report, path

    def __reduce__(self) -> tuple[Any, ...]:
        # Spawned processes hand their exceptions over as pickles.
        return type(self), (self.report, self.path)


class PrivacyViolation(_EndedByVerdict):
    """The training does not have the privacy that it claims."""


class InconclusiveAudit(_EndedByVerdict):
    """The audit could not have seen a violation, and `on_inconclusive` is "raise"."""


class ClaimUsedUp(RuntimeError):
    """The training was stopped before it exceeded its claim, and `on_budget` is "raise".

    No claim is false, but the model is not trained as planned.

    Args:
        report: the audit's report.
    """

    def __init__(self, report: AuditReport) -> None:
        claimed, planned = report.claimed_epsilon, report.planned_steps
        of = f" of {planned:,} planned steps" if planned else ""
        loop = report.run is not None and report.run.strategy == PLAIN_LOOP
        ends = ", in a loop with `if audit.should_stop: break`" if loop else ""
        super().__init__(
            f"the training was stopped after {report.steps:,}{of or ' steps'}: one more exceeds "
            f"claimed_epsilon={claimed:g} at delta {report.delta:g}. Plan fewer steps, raise "
            "noise_multiplier or lower the sample rate; on_budget='stop' keeps the "
            f"model of these steps{ends}. The audit says {report.verdict.outcome}."
        )
        self.report = report

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.report,)


#: Errors that a front end raises at a training's end.
OF_VERDICTS = (PrivacyViolation, InconclusiveAudit, ClaimUsedUp)


# --- What is raised where a training cannot be audited; a front end translates it into its own.


class UnauditableTraining(Exception):
    """This training cannot be audited as it is; the message says what to change."""
