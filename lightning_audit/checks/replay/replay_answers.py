"""What examinations by replay came to: answers to their questions, and the checks made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lightning_audit.checks.base.check import Check
from lightning_audit.checks.replay.examined_noise import REPLAY_NOISE, NoiseLog, NoiseLook
from lightning_audit.checks.replay.replay_checks import (
    REPLAY_CLIPPING,
    REPLAY_RELEASE,
    REPLAY_SENSITIVITY,
)
from lightning_audit.checks.replay.replay_findings import Finding
from lightning_audit.results.audit_report import CheckResult

#: A gradient that adds less than this part of its norm was clipped, at some norm.
_WHOLE = 0.9
#: Norms within this factor are one.
_ALIKE = 1.5
#: What was not asked because there was nothing to ask it of.
NOT_EXAMINED = "no step was examined"


@dataclass(frozen=True)
class Answer:
    """What came of a question.

    Args:
        asked: neighbours that were replayed.
        findings: those that are too far off, the farthest first.
        noise: what was seen of the noise; None where it was another question.
        kept: what steps to come are held against, in memory alone; None if nothing is.
        alone: whether all that a step leaves behind was seen to follow from its release alone,
            whatever the step's own noise is.
        kind: which fault it is, see `clipping_kind`, `sensitivity_kind`, `examine_release`; empty
            where a few more replays do not tell.
        reason: why the question was not asked; empty where it was.
    """

    asked: int = 0
    findings: tuple[Finding, ...] = ()
    reason: str = ""
    noise: NoiseLook | None = None
    kept: Any = None
    alone: bool = False
    kind: str = ""

    def describe(self) -> str:
        """What came of it, in a line."""
        if self.reason:
            return f"not asked: {self.reason}"
        if not self.findings:
            return f"nothing found, {self.asked} asked"
        worst = max(self.findings, key=lambda finding: finding.size)
        return f"{len(self.findings)} of {self.asked}: {worst.describe()}"


@dataclass(frozen=True)
class _Words:
    """How a check by replay speaks.

    Args:
        wrong: where something was.
        advice: what to look at.
    """

    wrong: str
    advice: str


_WORDS: Mapping[str, tuple[Check, _Words]] = {
    REPLAY_SENSITIVITY.name: (
        REPLAY_SENSITIVITY,
        _Words(
            "one record moves what a step releases too far ({finding})",
            "look at everything between training_step and the noise that one record can change: "
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
            "what a step leaves behind shows a record beside the release ({finding})",
            "look for what is computed of raw gradients, inputs or losses and kept: momentum, "
            "learning rates, clipping norms, statistics, weights that are changed elsewhere",
        ),
    ),
}
#: How `replay.release` says which of a step's settings its records decide.
_DECIDED = {
    "step": "whether a step is taken depends on the records of its batch ({finding})",
    "noise": "the noise_multiplier of a step depends on records ({finding})",
}
#: Names of the checks that are made of answers.
REPLAY_CHECKS = tuple(_WORDS)


@dataclass
class _Told:
    """What came of one question at all examinations."""

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
    reason: str = ""


@dataclass
class ExaminationLog:
    """What the examinations of a run came to.

    Args:
        steps: that were examined, from 0.
        off: why none is, or empty.
        between_epochs: epochs between which weights changed, where no replay goes.
        cost: see `AuditReport.examination_cost`.
    """

    steps: list[int] = field(default_factory=list)
    off: str = ""
    between_epochs: int = 0
    cost: dict[str, float] = field(default_factory=dict)
    #: Steps of which all that is left behind follows from their release alone.
    alone: list[int] = field(default_factory=list)
    noise: NoiseLog = field(default_factory=NoiseLog)
    _told: dict[str, _Told] = field(
        default_factory=lambda: {name: _Told() for name in REPLAY_CHECKS}
    )

    def found(self, significance: float) -> bool:
        """Whether something was found.

        Args:
            significance: of the whole run.
        """
        findings = any(told.findings for told in self._told.values())
        return findings or self.noise.found(significance)

    def asked(self, name: str) -> int:
        """How many neighbours a question was asked of."""
        return self._told[name].asked

    def take(self, step: int, answers: Mapping[str, Answer]) -> None:
        """Take in an examination.

        Args:
            step: number of the step, from 0.
            answers: to the questions that were due.
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
        """Take in the time of an examination; its replays follow the sizes of batches.

        Args:
            seconds: that it took.
            step_times: the same in times of a step.
        """
        if self.cost:
            self.cost["later"] += seconds
        else:
            self.cost = {"first": seconds, "first_step_times": step_times, "later": 0.0}

    def results(self, significance: float) -> list[CheckResult]:
        """Results of the checks by replay.

        Args:
            significance: of the whole run.
        """
        asked = [self._result(name, told) for name, told in self._told.items()]
        noise = self.noise.result(significance, self.off or NOT_EXAMINED)
        return [*asked, noise]

    def _result(self, name: str, told: _Told) -> CheckResult:
        check, words = _WORDS[name]
        if not told.asked:
            return check.not_run(f"not asked: {told.reason or self.off or NOT_EXAMINED}")
        finding = told.finding
        evidence: dict[str, Any] = {
            "examined": len(self.steps),
            "asked": told.asked,
            "findings": told.findings,
        }
        if check is REPLAY_RELEASE and self.between_epochs:
            evidence["between_epochs"] = self.between_epochs
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
            }
        return check.judged(
            evidence,
            check.fine,
            _DECIDED.get(told.decides, words.wrong).format(finding=finding),
            words.advice,
        )

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds: nothing of which steps were examined, nor of what was seen."""
        return {"between_epochs": self.between_epochs}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint's state."""
        self.between_epochs = state["between_epochs"]


def _add(told: _Told, step: int, answer: Answer) -> None:
    told.asked += answer.asked
    told.findings += len(answer.findings)
    if answer.reason:
        told.reason = answer.reason
    if answer.findings and told.step is None:
        worst = max(answer.findings, key=lambda finding: finding.size)
        told.step, told.size, told.allowed = step, worst.rounded, worst.allowed
        told.finding, told.decides = worst.describe(), worst.decides
        told.alike = _alike(answer.findings)
        # Where earlier steps were clipped as claimed, it is none of these.
        told.kind = answer.kind if told.asked == answer.asked else ""
        told.in_one_tensor = any(found.in_one_tensor for found in answer.findings)
        told.passes_whole = any(
            found.whole is not None
            and not found.in_one_tensor
            and found.size > _WHOLE * found.whole
            for found in answer.findings
        )


def _alike(findings: Sequence[Finding]) -> bool:
    """Whether gradients that are clipped too late are all clipped at one norm."""
    clipped = [f.size for f in findings if f.whole is not None and f.size < _WHOLE * f.whole]
    return not clipped or max(clipped) <= _ALIKE * min(clipped)
