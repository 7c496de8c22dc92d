"""The checks by replay: tests of the definition of DP-SGD on the user's own step."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lightning_audit.checks.check import Check, FaultRule
from lightning_audit.checks.noise import BATCH_NORMALISED
from lightning_audit.checks.replay_findings import Finding, Reason, not_asked, unanswered
from lightning_audit.checks.replayed_noise import REPLAY_NOISE, NoiseLog, NoiseLook
from lightning_audit.results.audit_report import CheckResult

# --- The checks by replay: tests of the definition of DP-SGD on the user's own step.

#: What to look at in the code, by clipping fault.
CLIPPING_ADVICE = {
    "clip_after_average": "where gradients are summed or averaged: each sample's gradient must be "
    "clipped before that, by its own norm",
    "no_clipping": "whether the step that clips per-sample gradients runs at all, and whether what "
    "it returns is what is summed",
    "clipping_norm_too_large": "whether gradients are clipped to the max_grad_norm that the "
    "accountant and the noise use",
    "clip_per_tensor": "whether a sample's norm is taken over all tensors together; if L tensors "
    "are clipped separately, each must be clipped to max_grad_norm / sqrt(L)",
    "clipping_misses_tensors": "whether the norm by which a sample is clipped is taken over all "
    "trainable tensors",
    "clipping_norm_of_the_batch": "what the clipping norm of a step is computed from: a median, "
    "mean or quantile of the batch's own norms is private; clip at max_grad_norm, or use Opacus' "
    "adaptive clipping, which adds noise to its counts",
    "parts_count_differently": "where the clipped sums of the parts are added up: a sum that "
    "shares its memory with p.grad, that is added twice, or that is not set to zero after the step",
    "record_counts_twice": "whether views, augmentations or time steps of a record, or a layer "
    "that is used several times, give per-sample gradients that are clipped separately",
}


def _told(kind: str, name: str, headline: str, sentence: str) -> FaultRule:
    """Return the rule of a clipping fault that a few more replays distinguish from others."""
    return FaultRule(
        name,
        sentence,
        CLIPPING_ADVICE[name],
        headline=headline,
        rank=0.55,
        explains_groups=("replay", "clipping", "leakage"),
        applies=lambda seen: seen.get("kind") == kind,
    )


#: Division by the records at hand, which a few more replays show, or the state after a step.
_DIVIDED = dataclasses.replace(
    BATCH_NORMALISED.faults[0],
    rank=0.52,
    explains_groups=(*BATCH_NORMALISED.faults[0].explains_groups, "replay"),
    applies=lambda seen: seen.get("kind") == "divisor",
)

#: A fault that canaries can show as well has the same name there.
OF_CLIPPING = (
    _DIVIDED,
    _told(
        "sum",
        "clip_after_average",
        "The mean of the batch is clipped instead of each gradient",
        "clipping after averaging: the batch's mean gradient is clipped, not each sample's "
        "gradient before the sum",
    ),
    _told(
        "none",
        "no_clipping",
        "Gradients are not clipped",
        "no clipping: gradients pass with their full norm",
    ),
    _told(
        "norm",
        "clipping_norm_too_large",
        "Gradients are clipped at more than `max_grad_norm`",
        "clipping norm too large: gradients are clipped at more than max_grad_norm",
    ),
    _told(
        "tensors",
        "clip_per_tensor",
        "Each tensor is clipped separately",
        "clipping per tensor: each tensor is clipped to max_grad_norm separately",
    ),
    _told(
        "some",
        "clipping_misses_tensors",
        "Clipping leaves some tensors out",
        "clipping misses some tensors: gradients in them pass with their full norm, and those in "
        "others are clipped",
    ),
    _told(
        "batch",
        "clipping_norm_of_the_batch",
        "The clipping norm depends on the batch",
        "clipping norm made of the batch: the norm at which a gradient is clipped depends on the "
        "other gradients of its batch, and grows with them",
    ),
    _told(
        "parts",
        "parts_count_differently",
        "Parts of a split batch count differently",
        "parts of a split batch count differently: a record adds more in one of them than in "
        "another",
    ),
    _told(
        "rows",
        "record_counts_twice",
        "One record counts more than once in a step",
        "a record counts more than once: several per-sample gradients are computed from it, and "
        "clipped separately",
    ),
)

REPLAY_SENSITIVITY = Check(
    "replay.sensitivity",
    "replayed without a record, or with one more, a step's release moves by more than clipping "
    "allows",
    title="Replay with one record changed",
    failed_title="Replay exceeds the clipping norm",
    meaning="Replaying a step with the same noise, but with one record removed, added or replaced, "
    "moved the released gradient by more than clipping allows.",
    look_at="Check everything that one record can change between the batch and the noise: "
    "clipping factors, sums, several rows of one record, losses over the batch.",
    topic="Clipping",
    group="replay",
    always=True,
    wrong=lambda seen: seen["findings"] > 0,
    blocks=unanswered,
    private=True,
    public=("message",),
    fine="no record that was left out, put in or replaced moves the release by more than clipping "
    "allows",
    faults=(
        *(dataclasses.replace(rule, rank=rule.rank + 0.02) for rule in OF_CLIPPING),
        FaultRule(
            "one_record_moves_too_much",
            "no bounded sensitivity: with the same noise, one record moves what a step releases "
            "by more than the clipping norm",
            "everything between the batch and the noise that one record can change: clipping "
            "factors, sums, several rows of one record, losses over the batch",
            headline="One record moves a step by more than the clipping norm",
            rank=1,
            explains_groups=("replay", "clipping", "leakage"),
        ),
    ),
)

REPLAY_CLIPPING = Check(
    "replay.clipping",
    "a crafted per-sample gradient adds more to a step's release than the clipping norm",
    title="Clipping of crafted gradients",
    failed_title="Crafted gradients escape clipping",
    meaning="A per-sample gradient that the audit crafted, for example a huge one, added more than "
    "the clipping norm to a replayed step.",
    look_at="Check the norm that is used for clipping, and whether any rows, sizes or batches are "
    "exempt from it.",
    topic="Clipping",
    group="replay",
    always=True,
    wrong=lambda seen: seen["findings"] > 0,
    blocks=unanswered,
    private=True,
    public=("message",),
    fine="no crafted gradient adds more than the clipping norm",
    faults=(
        *OF_CLIPPING,
        FaultRule(
            "some_gradients_not_clipped",
            "clipping that can be passed: some per-sample gradients add more than the clipping "
            "norm, even if those of this batch do not",
            "the norm that clips, and the rows, sizes and batches that it leaves out",
            headline="Some gradients escape clipping",
            rank=2,
            explains_groups=("clipping", "leakage"),
        ),
    ),
)

REPLAY_RELEASE = Check(
    "replay.release",
    "after the same release the training continues differently with a record than without it, or "
    "records decide whether a step is taken, or its noise_multiplier",
    title="State after a replayed step",
    failed_title="Records leak past the noise",
    meaning="Given the same noisy gradient, the training continues differently with a record than "
    "without it, or records decide whether a step is taken or how much noise it gets.",
    look_at="Look for state that is computed from raw gradients, inputs or losses: momentum, "
    "learning rates, skipped steps, `noise_multiplier`, statistics, weights changed elsewhere.",
    topic="What the update uses",
    group="replay",
    always=True,
    wrong=lambda seen: seen["findings"] > 0,
    blocks=unanswered,
    private=True,
    public=("parameters", "message"),  # names, of a violation alone
    fine="after the same release the training continues the same with a record and without it",
    faults=(
        dataclasses.replace(_DIVIDED, rank=0.51),
        FaultRule(
            "steps_depend_on_records",
            "steps are taken or skipped by the records of their batch: whether the weights change "
            "reveals these records without noise, and no accountant counts that",
            "what decides whether optimizer.step() is called: a loss, a gradient or an output must "
            "not; step on every batch, or by the number of batches, steps or epochs",
            headline="Records decide whether a step is taken",
            rank=-11,
            explains_groups=("replay", "leakage"),
            applies=lambda seen: seen.get("decides") == "step",
        ),
        FaultRule(
            "noise_set_by_records",
            "the noise of a step is set by records: noise_multiplier follows a loss or other "
            "values without noise, so the schedule itself reveals them, and no accountant's "
            "epsilon holds",
            "what sets optimizer.noise_multiplier: the number of steps or epochs may, as in "
            "opacus.schedulers, and what was released; a loss of training records must not",
            headline="Records decide how much noise a step gets",
            rank=-11,
            explains=(REPLAY_NOISE.name,),
            explains_groups=("replay", "leakage"),
            applies=lambda seen: seen.get("decides") == "noise",
        ),
        FaultRule(
            "more_than_the_release",
            "more than the release is used: the state after a step depends on a record, "
            "without noise",
            "what is computed from raw gradients, inputs or losses and kept: momentum, learning "
            "rates, clipping norms, statistics, weights that are changed elsewhere",
            headline="The training uses more than the noisy gradient",
            rank=3,
            explains_groups=("leakage",),
        ),
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

    def describe(self) -> str:
        """Return the answer in one line."""
        if self.reason:
            return f"not asked: {self.reason}"
        if not self.findings:
            return f"nothing found, {self.asked} asked"
        worst = max(self.findings, key=lambda finding: finding.size)
        return f"{len(self.findings)} of {self.asked}: {worst.describe()}"


@dataclass(frozen=True)
class _Words:
    """Texts of a check by replay if something was found.

    Args:
        wrong: the message.
        advice: what to look at.
    """

    wrong: str
    advice: str


_WORDS: Mapping[str, tuple[Check, _Words]] = {
    REPLAY_SENSITIVITY.name: (
        REPLAY_SENSITIVITY,
        _Words(
            "one record changes what a step releases by too much ({finding})",
            "look at everything between the batch and the noise that one record can change: "
            "clipping factors, sums, several rows of one record, losses over the batch",
        ),
    ),
    REPLAY_CLIPPING.name: (
        REPLAY_CLIPPING,
        _Words(
            "a per-sample gradient adds more than the clipping norm ({finding})",
            "look at the norm that clips, and at the rows, sizes and batches that it leaves out",
        ),
    ),
    REPLAY_RELEASE.name: (
        REPLAY_RELEASE,
        _Words(
            "the state after a step depends on a record in addition to the release ({finding})",
            "look for what is computed from raw gradients, inputs or losses and kept: momentum, "
            "learning rates, clipping norms, statistics, weights that are changed elsewhere",
        ),
    ),
}
#: Messages of `replay.release` if records decide a setting of a step.
_DECIDED = {
    "step": "whether a step is taken depends on the records of its batch ({finding})",
    "noise": "the noise_multiplier of a step depends on records ({finding})",
}
#: Names of the checks that these answers decide.
REPLAY_CHECKS = tuple(_WORDS)


@dataclass
class _Told:
    """Summary of one test over all examinations."""

    asked: int = 0
    findings: int = 0
    step: int | None = None
    size: float | None = None
    allowed: float = 0.0
    finding: str = ""
    alike: bool = True
    in_one_tensor: bool = False
    passes_whole: bool = False
    kind: str = ""
    decides: str = ""
    tensors: tuple[str, ...] = ()
    reason: str = ""


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
    _told: dict[str, _Told] = field(
        default_factory=lambda: {name: _Told() for name in REPLAY_CHECKS}
    )

    def found(self, significance: float) -> bool:
        """Return whether something was found.

        Args:
            significance: of the whole run.
        """
        findings = any(told.findings for told in self._told.values())
        return findings or self.noise.found(significance)

    @property
    def leaks_into_weights(self) -> bool:
        """Whether weights or optimizer state after a step depended on more than its release."""
        return self._told[REPLAY_RELEASE.name].finding.startswith(("parameters", "optimizer state"))

    def asked(self, name: str) -> int:
        """Return the number of neighboring batches that a test replayed."""
        return self._told[name].asked

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
            if (told := self._told.get(name)) is not None:
                _add(told, step, answer)

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
        asked = [self._result(name, told) for name, told in self._told.items()]
        noise = self.noise.result(significance, self.off or Reason.NOT_EXAMINED)
        return [*asked, noise]

    def _result(self, name: str, told: _Told) -> CheckResult:
        check, words = _WORDS[name]
        if not told.asked:
            return not_asked(check, told.reason or self.off or Reason.NOT_EXAMINED)
        finding = told.finding
        evidence: dict[str, Any] = {
            "examined": len(self.steps),
            "asked": told.asked,
            "findings": told.findings,
        }
        if told.findings:
            evidence |= {
                "step": told.step,
                "size": told.size,
                "allowed": told.allowed,
                "finding": finding,
                "alike": told.alike,
                "in_one_tensor": told.in_one_tensor,
                "passes_whole": told.passes_whole,
                "kind": told.kind,
                "decides": told.decides,
                "parameters": list(told.tensors),
            }
        return check.judged(
            evidence,
            check.fine,
            _DECIDED.get(told.decides, words.wrong).format(finding=finding),
            words.advice,
        )


def _add(told: _Told, step: int, answer: Answer) -> None:
    told.asked += answer.asked
    told.findings += len(answer.findings)
    if answer.reason:
        told.reason = answer.reason
    if answer.findings and told.step is None:
        worst = max(answer.findings, key=lambda finding: finding.size)
        told.step, told.size, told.allowed = step, worst.rounded, worst.allowed
        told.finding, told.decides = worst.describe(), worst.decides
        told.tensors = worst.tensors
        told.alike = _alike(answer.findings)
        # If earlier steps were clipped as claimed, it is none of these faults.
        told.kind = answer.kind if told.asked == answer.asked else ""
        told.in_one_tensor = any(found.in_one_tensor for found in answer.findings)
        told.passes_whole = any(
            found.whole is not None
            and not found.in_one_tensor
            and found.size > _WHOLE * found.whole
            for found in answer.findings
        )


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


COUPLING = Check(
    "coupling",
    "a record's gradient depends on the others in its batch",
    title="Independence of record gradients",
    failed_title="Records change each other's gradients",
    meaning="A record changes the gradients of other records, so clipping its own gradient does "
    "not bound what it adds.",
    look_at="Look for layers and losses that work across the batch: BatchNorm, batch statistics, "
    "contrastive losses, packed sequences with `enforce_sorted=False`; and for `collate_fn`, "
    "transforms and transfer hooks that pad, pack, mix or standardize across records.",
    topic="Clipping",
    always=True,
    wrong=lambda seen: seen["step"] is not None,
    blocks=_of_coupling,
    private=True,
    public=("before", "met_in", "shared", "message", "attention"),
    fine="no record's gradient depended on the others in its batch",
    faults=(
        FaultRule(
            "attention_mixes_places",
            "records are not independent: Opacus' DPMultiheadAttention(batch_first=True) lets "
            "padding past its mask",
            "the attention layer: see docs/opacus.md, or pad all batches to one length",
            headline="Padding gets past the mask of Opacus' attention",
            rank=-1,
            explains_groups=("clipping", "replay", "leakage"),
            applies=lambda seen: bool(seen.get("attention")),
        ),
        FaultRule(
            "records_coupled",
            "records are not independent: a record changes the gradients of others, so that "
            "clipping its own gradient does not bound what it adds",
            "layers and losses that work across the batch: batch normalization, statistics of the "
            "batch, contrastive losses; layers that sort the batch, such as packed sequences; and "
            "what collates or augments several records together",
            headline="Records change each other's gradients",
            rank=-1,
            explains_groups=("clipping", "replay", "leakage"),
        ),
    ),
)


_BEFORE = (
    "mask what was padded, or pad all batches to one length; mix, pack and standardize within a "
    "record; train on the records of the batch alone"
)
_ACROSS = (
    "look for BatchNorm or statistics over the batch, a contrastive loss, mixed records, or a loss "
    "that is averaged over something other than the number of records (class weights, tokens that "
    "are not ignored); use GroupNorm or LayerNorm. Opacus' recurrent layers support packed "
    "sequences only in batches that are sorted by length: with enforce_sorted=False they clip "
    "parts of several records together"
)

#: Where records meet if the step reads others than those of its batch.
THE_STEP = "the step itself"

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
    """

    replays: int = 0
    change: float | None = None
    step: int | None = None
    reason: str = ""
    where: str = ""
    before: str = ""
    shared: int = 1

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
        if not self.replays:
            return not_asked(COUPLING, self.reason or off or Reason.NOT_EXAMINED)
        names = ("replays", "change", "step")
        evidence: dict[str, Any] = {name: getattr(self, name) for name in names}
        if self.before:
            evidence["before"] = self.before
        if self.shared > items:
            evidence["shared"] = self.shared
        size = "" if self.change is None else f" by {self.change:g} of its norm"
        met = f"a record's gradient changed{size} with the other records of its batch"
        seen, advice = f"in step {(self.step or 0) + 1} {met}", _ACROSS
        if self.where:
            seen = f"records meet before the step, in {self.where}: {met}"
            advice, evidence["met_in"] = _BEFORE, self.where
            if self.where == THE_STEP:
                seen = f"{self.where} reads records that are not in its batch"
            elif attention:
                evidence["attention"] = attention
                advice = f"`{attention}` lets padding past its mask, see docs/opacus.md; {_BEFORE}"
        return COUPLING.judged(
            evidence,
            COUPLING.fine,
            f"{seen}, so that one record changes the gradients of others, which clipping does not "
            "bound",
            advice,
        )


#: The checks of this subject, in the order of the report.
CHECKS = (COUPLING, REPLAY_SENSITIVITY, REPLAY_CLIPPING, REPLAY_RELEASE)
