"""Does each record's gradient depend on that record alone?"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from lightning_audit.checks.check import Check, FaultRule
from lightning_audit.results.audit_report import CheckResult

COUPLING = Check(
    "coupling",
    "a record's gradient depends on the others in its batch (with `replay_neighbours=True`)",
    wrong=lambda seen: seen["step"] is not None,
    faults=(
        FaultRule(
            "records_coupled",
            "records are not independent: a record changes the gradients of others, so that "
            "clipping its own does not bound what it adds",
            "layers and losses that work over the batch: batch normalisation, statistics of the "
            "batch, contrastive losses; and layers that order the batch anew, such as packed "
            "sequences",
            rank=-1,
            explains_groups=("clipping", "leakage"),
        ),
    ),
)

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
    """What replays of batches showed.

    Args:
        replays: batches that were replayed and compared.
        change: largest relative change of a gradient that should have stayed.
        tolerance: what rounding may do.
        step: step at which a gradient changed by more, None if none did.
        reason: why a batch could not be compared; empty if all could.
    """

    replays: int = 0
    change: float = 0.0
    tolerance: float = _TOLERANCE
    step: int | None = None
    reason: str = ""

    @property
    def violated(self) -> bool:
        """Whether a gradient depended on other records."""
        return self.step is not None

    def take(self, change: float, tolerance: float, step: int) -> None:
        """Take in a comparison."""
        self.replays += 1
        self.change, self.tolerance = max(self.change, change), tolerance
        if change > tolerance and self.step is None:
            self.step = step

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        return asdict(self)

    def load(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint's state."""
        for field in fields(self):
            if field.name in state:
                setattr(self, field.name, state[field.name])

    def result(self) -> CheckResult:
        """Result of `coupling`."""
        evidence = self.state()
        if not self.replays and not self.violated:
            message = self.reason or "no batch with two records or more was replayed"
            return COUPLING.not_run(message, evidence)
        return COUPLING.judged(
            evidence,
            f"in {self.replays} batches no record's gradient depended on the others",
            f"at step {self.step} a record's gradient changed by {self.change:.2g} of its norm "
            "with the other records of its batch, so that one record moves the gradients of "
            "others, which clipping does not bound",
            "look for BatchNorm or statistics over the batch, a contrastive loss, mixed "
            "records, or a loss that is averaged over something else than the number of "
            "records (class weights, tokens that are not ignored); use GroupNorm or LayerNorm. "
            "Opacus' recurrent layers take packed sequences only in batches that are sorted by "
            "length: with enforce_sorted=False they clip parts of several records together",
        )
