"""The checks by replay: tests of the definition of DP-SGD on the user's own step."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lightning_audit.checks.check import CLIPPED, Check, Fault
from lightning_audit.checks.noise import BATCH_NORMALISED, DIVIDED_BY_BATCH
from lightning_audit.checks.replay_findings import Finding, Reason, not_asked, unanswered
from lightning_audit.checks.replayed_noise import REPLAY_NOISE, NoiseLog, NoiseLook
from lightning_audit.results.audit_report import CheckResult

# --- The checks by replay: tests of the definition of DP-SGD on the user's own step.

#: Faults of clipping by their kind, which canaries or a few more replays show.
CLIPPING: Mapping[str, Fault] = {
    "sum": Fault(
        "clip_after_average",
        "The mean of the batch is clipped instead of each gradient",
        "clipping after averaging: the batch's mean gradient is clipped, not each sample's "
        "gradient before the sum",
        "where gradients are summed or averaged: each sample's gradient must be clipped before "
        "that, by its own norm",
    ),
    "none": Fault(
        "no_clipping",
        "Gradients are not clipped",
        "no clipping: gradients pass with their full norm",
        "whether the step that clips per-sample gradients runs at all, and whether what it returns "
        "is what is summed",
    ),
    "norm": Fault(
        "clipping_norm_too_large",
        "Gradients are clipped at more than `max_grad_norm`",
        "clipping norm too large: gradients are clipped at more than max_grad_norm",
        "whether gradients are clipped to the max_grad_norm that the accountant and the noise use",
    ),
    "tensors": Fault(
        "clip_per_tensor",
        "Each tensor is clipped separately",
        "clipping per tensor: each tensor is clipped to max_grad_norm separately",
        "whether a sample's norm is taken over all tensors together; if L tensors are clipped "
        "separately, each must be clipped to max_grad_norm / sqrt(L)",
    ),
    "some": Fault(
        "clipping_misses_tensors",
        "Clipping leaves some tensors out",
        "clipping misses some tensors: gradients in them pass with their full norm, and those in "
        "others are clipped",
        "whether the norm by which a sample is clipped is taken over all trainable tensors",
    ),
    "batch": Fault(
        "clipping_norm_of_the_batch",
        "The clipping norm depends on the batch",
        "clipping norm made of the batch: the norm at which a gradient is clipped depends on the "
        "other gradients of its batch, and grows with them",
        "what the clipping norm of a step is computed from: a median, mean or quantile of the "
        "batch's own norms is private; clip at max_grad_norm, or use Opacus' adaptive clipping, "
        "which adds noise to its counts",
    ),
    "parts": Fault(
        "parts_count_differently",
        "Parts of a split batch count differently",
        "parts of a split batch count differently: a record adds more in one of them than in "
        "another",
        "where the clipped sums of the parts are added up: a sum that shares its memory with "
        "p.grad, that is added twice, or that is not set to zero after the step",
    ),
    "rows": Fault(
        "record_counts_twice",
        "One record counts more than once in a step",
        "a record counts more than once: several per-sample gradients are computed from it, and "
        "clipped separately",
        "whether views, augmentations or time steps of a record, or a layer that is used several "
        "times, give per-sample gradients that are clipped separately",
    ),
}
#: Division by the records at hand, which a few more replays show, or the state after a step.
_DIVIDED = DIVIDED_BY_BATCH.rule(
    0.52,
    ("clipping", "reuse", "leakage", "replay"),
    "kind",
    "divisor",
    explains=BATCH_NORMALISED.faults[0].explains,
)
#: A fault that canaries can show as well has the same name there.
OF_CLIPPING = (
    _DIVIDED,
    *(fault.rule(0.55, CLIPPED, "kind", kind) for kind, fault in CLIPPING.items()),
)

REPLAY_SENSITIVITY = Check(
    "replay.sensitivity",
    title="Replay with one record changed",
    failed_title="Replay exceeds the clipping norm",
    meaning="Replaying a step with the same noise, but with one record removed, added or replaced, "
    "moved the released gradient by more than clipping allows.",
    look_at="everything between the batch and the noise that one record can change: clipping "
    "factors, sums, several rows of one record, losses over the batch",
    topic="Clipping",
    group="replay",
    always=True,
    wrong=lambda seen: seen["findings"] > 0,
    blocks=unanswered,
    private=True,
    public=("message",),
    fine="no record that was left out, put in or replaced moves the release by more than clipping "
    "allows",
    message="one record changes what a step releases by too much ({finding})",
    faults=(
        *(dataclasses.replace(rule, rank=rule.rank + 0.02) for rule in OF_CLIPPING),
        Fault(
            "one_record_moves_too_much",
            "One record moves a step by more than the clipping norm",
            "no bounded sensitivity: with the same noise, one record moves what a step releases "
            "by more than the clipping norm",
        ).rule(1, CLIPPED),
    ),
)

REPLAY_CLIPPING = dataclasses.replace(
    REPLAY_SENSITIVITY,
    name="replay.clipping",
    title="Clipping of crafted gradients",
    failed_title="Crafted gradients escape clipping",
    meaning="A per-sample gradient that the audit crafted, for example a huge one, added more than "
    "the clipping norm to a replayed step.",
    look_at="the norm that is used for clipping, and the rows, sizes and batches that it leaves "
    "out",
    fine="no crafted gradient adds more than the clipping norm",
    message="a per-sample gradient adds more than the clipping norm ({finding})",
    faults=(
        *OF_CLIPPING,
        Fault(
            "some_gradients_not_clipped",
            "Some gradients escape clipping",
            "clipping that can be passed: some per-sample gradients add more than the clipping "
            "norm, even if those of this batch do not",
        ).rule(2, ("clipping", "leakage")),
    ),
)

#: Messages of `replay.release`, by what records decide.
_DEPENDS = {
    "": "the state after a step depends on a record in addition to the release ({finding})",
    "step": "whether a step is taken depends on the records of its batch ({finding})",
    "noise": "the noise_multiplier of a step depends on records ({finding})",
}

REPLAY_RELEASE = dataclasses.replace(
    REPLAY_SENSITIVITY,
    name="replay.release",
    title="State after a replayed step",
    failed_title="Records leak past the noise",
    meaning="Given the same noisy gradient, the training continues differently with a record than "
    "without it, or records decide whether a step is taken or how much noise it gets.",
    look_at="what is computed from raw gradients, inputs or losses and kept: momentum, learning "
    "rates, clipping norms, skipped steps, `noise_multiplier`, statistics, weights that are "
    "changed elsewhere",
    topic="What the update uses",
    public=("parameters", "message"),  # names, of a violation alone
    fine="after the same release the training continues the same with a record and without it",
    message=lambda seen: _DEPENDS[seen["decides"]].format(**seen),
    faults=(
        dataclasses.replace(_DIVIDED, rank=0.51),
        Fault(
            "steps_depend_on_records",
            "Records decide whether a step is taken",
            "steps are taken or skipped by the records of their batch: whether the weights change "
            "reveals these records without noise, and no accountant counts that",
            "what decides whether optimizer.step() is called: a loss, a gradient or an output must "
            "not; step on every batch, or by the number of batches, steps or epochs",
        ).rule(-11, ("replay", "leakage"), "decides", "step"),
        Fault(
            "noise_set_by_records",
            "Records decide how much noise a step gets",
            "the noise of a step is set by records: noise_multiplier follows a loss or other "
            "values without noise, so the schedule itself reveals them, and no accountant's "
            "epsilon holds",
            "what sets optimizer.noise_multiplier: the number of steps or epochs may, as in "
            "opacus.schedulers, and what was released; a loss of training records must not",
        ).rule(-11, ("replay", "leakage"), "decides", "noise", explains=(REPLAY_NOISE.name,)),
        Fault(
            "more_than_the_release",
            "The training uses more than the noisy gradient",
            "more than the release is used: the state after a step depends on a record, "
            "without noise",
        ).rule(3, ("leakage",)),
    ),
)


# --- Answers of examinations by replay, and the results of the checks by replay.

#: A gradient that adds less than this fraction of its norm was clipped, at some norm.
_WHOLE = 0.9
#: Norms within this factor count as equal.
_ALIKE = 1.5


@dataclass(frozen=True)
class Answer:
    """Result of one test of an examined step.

    Args:
        asked: number of neighboring batches that were replayed.
        findings: those that differ by too much, the largest difference first.
        noise: look at the noise; None for tests of other properties.
        kept: values that later steps are compared with, in memory only; None if there are none.
        alone: whether the state after the step follows from its release alone, for any noise.
        kind: which fault it is, see `clipping_kind`, `sensitivity_kind`, `examine_release`; empty
            if a few more replays do not show it.
        where: the code in which records meet before a step; empty if they do not.
        before: why that could not be tested; empty if it was.
        shared: how many items of the data set read one record.
        reason: why the test was not run; empty if it was.
        repeated: whether the step itself was run again: one that was not answers no question.
        seconds: that the test took.
    """

    asked: int = 0
    findings: tuple[Finding, ...] = ()
    reason: str = ""
    noise: NoiseLook | None = None
    kept: Any = None
    alone: bool = False
    kind: str = ""
    where: str = ""
    before: str = ""
    shared: int = 1
    repeated: bool = True
    seconds: float = 0.0

    def describe(self) -> str:
        """Return the answer in one line."""
        if self.reason:
            return f"not asked: {self.reason}"
        if not self.findings:
            return f"nothing found, {self.asked} asked"
        return f"{len(self.findings)} of {self.asked}: {self.worst.describe()}"

    @property
    def worst(self) -> Finding:
        """The largest difference, if there is a finding."""
        return max(self.findings, key=lambda finding: finding.size)


#: The checks that these answers decide.
_ANSWERED = (REPLAY_SENSITIVITY, REPLAY_CLIPPING, REPLAY_RELEASE)
#: Their names.
REPLAY_CHECKS = tuple(check.name for check in _ANSWERED)


@dataclass
class _Summary:
    """Summary of one check over all examinations; the evidence is that of the first finding."""

    check: Check
    asked: int = 0
    findings: int = 0
    evidence: dict[str, Any] = field(default_factory=dict)
    reason: str = ""
    in_weights: bool = False

    def take(self, step: int, answer: Answer) -> None:
        """Update with the answer at a step."""
        self.asked += answer.asked
        self.findings += len(answer.findings)
        self.reason = answer.reason or self.reason
        if answer.findings and not self.evidence:
            worst = answer.worst
            self.in_weights = worst.in_weights
            self.evidence = {
                "step": step,
                "size": worst.rounded,
                "allowed": worst.allowed,
                "finding": worst.describe(),
                "alike": _alike(answer.findings),
                "in_one_tensor": any(found.in_one_tensor for found in answer.findings),
                "passes_whole": any(
                    found.whole is not None
                    and not found.in_one_tensor
                    and found.size > _WHOLE * found.whole
                    for found in answer.findings
                ),
                # If earlier steps were clipped as claimed, it is none of these faults.
                "kind": answer.kind if self.asked == answer.asked else "",
                "decides": worst.decides,
                "parameters": list(worst.tensors),
            }

    def result(self, examined: int, off: str) -> CheckResult:
        """Return the result of the check.

        Args:
            examined: number of examined steps.
            off: why no step is examined, or empty.
        """
        if not self.asked:
            return not_asked(self.check, self.reason or off or Reason.NOT_EXAMINED)
        numbers = {"examined": examined, "asked": self.asked, "findings": self.findings}
        return self.check.judged({**numbers, **self.evidence})


@dataclass
class ExaminationLog:
    """Log of the examinations of a run.

    Args:
        steps: numbers of the examined steps, from 0.
        off: why no step is examined, or empty.
        cost: see `AuditReport.examination_cost`.
    """

    steps: list[int] = field(default_factory=list)
    off: str = ""
    cost: dict[str, float] = field(default_factory=dict)
    #: Steps after which the state follows from their release alone.
    alone: list[int] = field(default_factory=list)
    noise: NoiseLog = field(default_factory=NoiseLog)
    #: Whether the release of a step was one number times a direction that no record changed.
    one_number: bool = False
    _summaries: dict[str, _Summary] = field(
        default_factory=lambda: {check.name: _Summary(check) for check in _ANSWERED}
    )

    def found(self, significance: float) -> bool:
        """Return whether something was found.

        Args:
            significance: of the whole run.
        """
        findings = any(summary.findings for summary in self._summaries.values())
        return findings or self.noise.found(significance)

    @property
    def leaks_into_weights(self) -> bool:
        """Whether weights or optimizer state after a step depended on more than its release."""
        return self._summaries[REPLAY_RELEASE.name].in_weights

    def asked(self, name: str) -> int:
        """Return the number of neighboring batches that a test replayed."""
        return self._summaries[name].asked

    def take(self, step: int, answers: Mapping[str, Answer]) -> None:
        """Add an examination.

        Args:
            step: number of the step, from 0.
            answers: by check, of the tests that were due.
        """
        if step not in self.steps:
            self.steps.append(step)
        for name, answer in answers.items():
            if answer.alone:
                self.alone.append(step)
            if name == REPLAY_NOISE.name:
                self.noise.take(step, answer.noise, answer.reason)
            if name in self._summaries:
                self._summaries[name].take(step, answer)

    def spend(self, seconds: float, step_times: float) -> None:
        """Add the time of an examination, whose number of replays depends on the batch.

        Args:
            seconds: that it took.
            step_times: the same in units of the time of a step.
        """
        if self.cost:
            self.cost["later"] += seconds
        else:
            self.cost = {"first": seconds, "first_step_times": step_times, "later": 0.0}

    def results(self, significance: float) -> list[CheckResult]:
        """Return the results of the checks by replay.

        Args:
            significance: of the whole run.
        """
        found = [one.result(len(self.steps), self.off) for one in self._summaries.values()]
        return [*found, self.noise.result(significance, self.off or Reason.NOT_EXAMINED)]


def _alike(findings: Sequence[Finding]) -> bool:
    """Return whether the gradients that were clipped at too large a norm have one norm."""
    clipped = [f.size for f in findings if f.whole is not None and f.size < _WHOLE * f.whole]
    return not clipped or max(clipped) <= _ALIKE * min(clipped)


# --- The check `coupling`: whether each record's gradient depends on that record alone.


def _of_coupling(found: CheckResult) -> str:
    if (shared := found.evidence.get("shared")) is None:
        return unanswered(found)
    return (
        f"one row of the data set is read by up to {shared} items, so that a record "
        f"is up to {shared} of those for which epsilon is composed; state "
        f"PrivacyClaim(items_per_record={shared}), or give each item rows of its own"
    )


#: Where records meet if the step reads others than those of its batch.
THE_STEP = "the step itself"


def _coupled(seen: Mapping[str, Any]) -> str:
    size = "" if seen["change"] is None else f" by {seen['change']:g} of its norm"
    met = f"a record's gradient changed{size} with the other records of its batch"
    where = seen.get("met_in")
    if divisor := seen.get("divided_by"):
        met = f"the loss is divided by {divisor}, of which its records have unequal shares"
    elif where == THE_STEP:
        met = f"{where} reads records that are not in its batch"
    elif where:
        attention = seen.get("attention")
        past = f", and `{attention}` lets padding past its mask" if attention else ""
        met = f"records meet before the step, in {where}{past}: {met}"
    else:
        met = f"in step {seen['step'] + 1} {met}"
    return (
        f"{met}, so that one record changes the gradients of others, which clipping does not bound"
    )


_COUPLED = Fault(
    "records_coupled",
    sentence="records are not independent: a record changes the gradients of others, so that "
    "clipping its own gradient does not bound what it adds",
)

COUPLING = Check(
    "coupling",
    title="Independence of record gradients",
    failed_title="Records change each other's gradients",
    meaning="A record changes the gradients of other records, so clipping its own gradient does "
    "not bound what it adds.",
    look_at="layers and losses that work across the batch: BatchNorm and statistics of the batch "
    "(use GroupNorm or LayerNorm), contrastive losses, mixed records, a mean over anything but the "
    "number of records (class weights, tokens that are not ignored), packed sequences with "
    "`enforce_sorted=False`, of which Opacus' recurrent layers clip parts of several records "
    "together; and `collate_fn`, transforms and transfer hooks that pad, pack, mix or standardize "
    "across records",
    topic="Clipping",
    always=True,
    wrong=lambda seen: seen["step"] is not None,
    blocks=_of_coupling,
    private=True,
    public=("before", "met_in", "shared", "message", "attention", "divided_by"),
    fine="no record's gradient depended on the others in its batch",
    message=_coupled,
    faults=(
        Fault(
            "attention_mixes_places",
            "Padding gets past the mask of Opacus' attention",
            "records are not independent: Opacus' DPMultiheadAttention(batch_first=True) lets "
            "padding past its mask",
            "the attention layer: see docs/opacus.md, or pad all batches to one length",
        ).rule(-1, CLIPPED, applies=lambda seen: bool(seen.get("attention"))),
        dataclasses.replace(
            _COUPLED,
            look_at="`collate_fn`, transforms and transfer hooks that pad, pack, mix or "
            "standardize several records together: mask what was padded, or pad all batches to one "
            "length; mix, pack and standardize within a record; train on the records of the batch "
            "alone",
        ).rule(-1, CLIPPED, applies=lambda seen: bool(seen.get("met_in"))),
        dataclasses.replace(
            _COUPLED,
            look_at="`compute_loss`: return the mean over records of each record's own mean",
        ).rule(-1, CLIPPED, applies=lambda seen: bool(seen.get("divided_by"))),
        _COUPLED.rule(-1, CLIPPED),
    ),
)


#: Relative change of a gradient above which it depends on other records. Batches of one shape are
#: computed in the same way row by row, so correct trainings show 0, or rounding if shapes depend on
#: the data: at most a few hundred units in the last place of float32, or about twenty of TF32
#: (2**-11) and of bfloat16 (2**-8). Coupling changes gradients by tens of percent, because about
#: half of the batch is replaced.
_TOLERANCE, _LOW = 0.01, 0.1


def tolerance_of(*, low_precision: bool) -> float:
    """Return the relative change above which a gradient depends on other records."""
    return _LOW if low_precision else _TOLERANCE


@dataclass
class Coupling:
    """Examinations of a record's gradient with other records in the batch.

    Args:
        replays: number of batches that were replayed and compared.
        change: relative change of a gradient, in two digits; None if none exceeded the tolerance.
        step: step at which a gradient changed by more than the tolerance; None if none did.
        reason: why a batch could not be compared; empty if all could.
        where: the code before the step in which records meet; empty if they meet in the step.
        before: why it could not be tested whether they meet there; empty if it was.
        shared: how many items of the data set read one record.
        divisor: what divides the loss, of which the records of a batch have unequal shares; empty
            if nothing like it is known.
    """

    replays: int = 0
    change: float | None = None
    step: int | None = None
    reason: str = ""
    where: str = ""
    before: str = ""
    shared: int = 1
    divisor: str = ""

    def take(self, step: int, answer: Answer) -> None:
        """Update with the answer at a step."""
        self.replays += answer.asked
        self.reason = answer.reason or self.reason
        self.shared = max(self.shared, answer.shared)
        self.before = answer.before or (self.before if answer.reason else "")
        if answer.findings and self.step is None:
            self.step, self.change = step, answer.findings[0].rounded
            self.where = answer.where

    def result(self, off: str = "", items: int = 1, attention: str = "") -> CheckResult:
        """Return the result of `coupling`.

        Args:
            off: why nothing is examined, or empty.
            items: of a record, for which epsilon is claimed.
            attention: layer that lets padding past its mask, see `mixing_attention`; or empty.
        """
        if self.divisor:
            known = {"change": None, "step": 0, "divided_by": self.divisor}
            return COUPLING.judged(known)
        if not self.replays:
            return not_asked(COUPLING, self.reason or off or Reason.NOT_EXAMINED)
        names = ("replays", "change", "step")
        evidence: dict[str, Any] = {name: getattr(self, name) for name in names}
        if self.before:
            evidence["before"] = self.before
        if self.shared > items:
            evidence["shared"] = self.shared
        if self.where:
            evidence["met_in"] = self.where
            if attention and self.where != THE_STEP:
                evidence["attention"] = attention
        return COUPLING.judged(evidence)


#: The checks of this subject, in the order of the report.
CHECKS = (COUPLING, REPLAY_SENSITIVITY, REPLAY_CLIPPING, REPLAY_RELEASE)
