"""Does each record's gradient depend on that record alone?"""

from __future__ import annotations

from dataclasses import dataclass

from lightning_audit.checks.base.check import Check, FaultRule
from lightning_audit.checks.replay.replay_answers import NOT_EXAMINED, Answer
from lightning_audit.checks.replay.replay_checks import unanswered
from lightning_audit.results.audit_report import CheckResult

COUPLING = Check(
    "coupling",
    "a record's gradient depends on the others in its batch",
    always=True,
    wrong=lambda seen: seen["step"] is not None,
    blocks=unanswered,
    private=True,
    fine="no record's gradient depended on the others in its batch",
    faults=(
        FaultRule(
            "records_coupled",
            "records are not independent: a record changes the gradients of others, so that "
            "clipping its own does not bound what it adds",
            "layers and losses that work over the batch: batch normalisation, statistics of the "
            "batch, contrastive losses; and layers that order the batch anew, such as packed "
            "sequences",
            rank=-1,
            explains_groups=("clipping", "replay", "leakage"),
        ),
    ),
)

CHECKS = (COUPLING,)

#: Relative change of a gradient above which it is said to depend on other records. Batches of one
#: shape are computed alike row by row, so that sound trainings show 0, or rounding where shapes
#: depend on the data: at most a few hundred units in the last place of float32, or some twenty of
#: TF32 (2**-11) and of bfloat16 (2**-8). What is looked for changes gradients by tens of percent,
#: because about half of the batch is replaced.
_TOLERANCE, _LOW = 0.01, 0.1


def tolerance_of(*, low_precision: bool) -> float:
    """Relative change above which a gradient is said to depend on other records."""
    return _LOW if low_precision else _TOLERANCE


@dataclass
class Coupling:
    """What examinations showed of the gradients of records beside others.

    Args:
        replays: batches that were replayed and compared.
        change: relative change of a gradient that should have stayed, by two digits; None where
            none was above the tolerance.
        step: step at which a gradient changed by more, None if none did.
        reason: why a batch could not be compared; empty if all could.
    """

    replays: int = 0
    change: float | None = None
    step: int | None = None
    reason: str = ""

    def take(self, step: int, answer: Answer) -> None:
        """Take in what came of the question at a step."""
        self.replays += answer.asked
        self.reason = answer.reason or self.reason
        if answer.findings and self.step is None:
            self.step, self.change = step, answer.findings[0].rounded

    def result(self, off: str = "") -> CheckResult:
        """Result of `coupling`.

        Args:
            off: why nothing is examined, or empty.
        """
        if not self.replays:
            return COUPLING.not_run(f"not asked: {self.reason or off or NOT_EXAMINED}")
        size = "" if self.change is None else f" by {self.change:g} of its norm"
        return COUPLING.judged(
            {"replays": self.replays, "change": self.change, "step": self.step},
            COUPLING.fine,
            f"at step {self.step} a record's gradient changed{size} "
            "with the other records of its batch, so that one record moves the gradients of "
            "others, which clipping does not bound",
            "look for BatchNorm or statistics over the batch, a contrastive loss, mixed "
            "records, or a loss that is averaged over something else than the number of "
            "records (class weights, tokens that are not ignored); use GroupNorm or LayerNorm. "
            "Opacus' recurrent layers take packed sequences only in batches that are sorted by "
            "length: with enforce_sorted=False they clip parts of several records together",
        )
