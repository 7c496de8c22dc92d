"""The check `coupling`: whether each record's gradient depends on that record alone."""

from __future__ import annotations

from dataclasses import dataclass

from lightning_audit.checks.base.check import Check, FaultRule
from lightning_audit.checks.replay.replay_answers import NOT_EXAMINED, Answer
from lightning_audit.checks.replay.unanswered import unanswered
from lightning_audit.results.audit_report import CheckResult

COUPLING = Check(
    "coupling",
    "a record's gradient depends on the others in its batch",
    title="Independence of record gradients",
    failed_title="Records change each other's gradients",
    meaning="A record changes the gradients of other records, so clipping its own gradient does "
    "not bound what it adds.",
    look_at="Look for layers and losses that work across the batch: BatchNorm, batch statistics, "
    "contrastive losses, packed sequences with `enforce_sorted=False`.",
    topic="Clipping",
    always=True,
    wrong=lambda seen: seen["step"] is not None,
    blocks=unanswered,
    private=True,
    fine="no record's gradient depended on the others in its batch",
    faults=(
        FaultRule(
            "records_coupled",
            "records are not independent: a record changes the gradients of others, so that "
            "clipping its own gradient does not bound what it adds",
            "layers and losses that work across the batch: batch normalization, statistics of the "
            "batch, contrastive losses; and layers that sort the batch, such as packed sequences",
            headline="Records change each other's gradients",
            rank=-1,
            explains_groups=("clipping", "replay", "leakage"),
        ),
    ),
)

CHECKS = (COUPLING,)

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
    """

    replays: int = 0
    change: float | None = None
    step: int | None = None
    reason: str = ""

    def take(self, step: int, answer: Answer) -> None:
        """Update with the answer at a step."""
        self.replays += answer.asked
        self.reason = answer.reason or self.reason
        if answer.findings and self.step is None:
            self.step, self.change = step, answer.findings[0].rounded

    def result(self, off: str = "") -> CheckResult:
        """Return the result of `coupling`.

        Args:
            off: why nothing is examined, or empty.
        """
        if not self.replays:
            return COUPLING.not_run(f"not asked: {self.reason or off or NOT_EXAMINED}")
        size = "" if self.change is None else f" by {self.change:g} of its norm"
        return COUPLING.judged(
            {"replays": self.replays, "change": self.change, "step": self.step},
            COUPLING.fine,
            f"at step {(self.step or 0) + 1} a record's gradient changed{size} "
            "with the other records of its batch, so that one record changes the gradients of "
            "others, which clipping does not bound",
            "look for BatchNorm or statistics over the batch, a contrastive loss, mixed "
            "records, or a loss that is averaged over something other than the number of "
            "records (class weights, tokens that are not ignored); use GroupNorm or LayerNorm. "
            "Opacus' recurrent layers support packed sequences only in batches that are sorted by "
            "length: with enforce_sorted=False they clip parts of several records together",
        )
