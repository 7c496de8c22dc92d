"""Answers of examinations by replay, and the results of the checks by replay."""

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
from lightning_audit.record.kept import Kept
from lightning_audit.results.audit_report import CheckResult

#: A gradient that adds less than this fraction of its norm was clipped, at some norm.
_WHOLE = 0.9
#: Norms within this factor count as equal.
_ALIKE = 1.5
#: Reason if no step was examined at all.
NOT_EXAMINED = "no step was examined"


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
        reason: why the test was not run; empty if it was.
    """

    asked: int = 0
    findings: tuple[Finding, ...] = ()
    reason: str = ""
    noise: NoiseLook | None = None
    kept: Any = None
    alone: bool = False
    kind: str = ""

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
    reason: str = ""


@dataclass
class ExaminationLog(Kept):
    """Log of the examinations of a run.

    Args:
        steps: numbers of the examined steps, from 0.
        off: why no step is examined, or empty.
        between_epochs: number of epochs after which weights changed outside of steps, which no
            replay covers.
        cost: see `AuditReport.examination_cost`.
    """

    # Neither which steps were examined nor what was seen: both depend on the data.
    KEPT = ("between_epochs",)

    steps: list[int] = field(default_factory=list)
    off: str = ""
    between_epochs: int = 0
    cost: dict[str, float] = field(default_factory=dict)
    #: Steps after which the state follows from their release alone.
    alone: list[int] = field(default_factory=list)
    noise: NoiseLog = field(default_factory=NoiseLog)
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
