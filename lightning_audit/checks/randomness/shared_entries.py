"""Check that entries of a step do not share their noise: `reuse.entries`."""

from __future__ import annotations

import dataclasses
from typing import Any

from lightning_audit.checks.base.check import FaultRule
from lightning_audit.checks.noise.noise_seen import NoiseStep
from lightning_audit.checks.randomness.noise_recurrence import EXPLAINED, RECURRENCE
from lightning_audit.results.audit_report import CheckResult
from lightning_audit.stats.dependence.alike_entries import AlikeBet


class SharedEntries:
    """Statistic of `reuse.entries`: finds entries of a step that have the noise of other entries.

    Args:
        significance: of the whole run.
    """

    def __init__(self, significance: float) -> None:
        self._past = AlikeBet()
        self._test = REUSE_ENTRIES.test(significance)
        self._found: dict[str, Any] = {"left": 1.0, "distance": 0, "mirror": 0}

    def update(self, step: NoiseStep) -> None:
        """Update with the noise of a step's block, which has the same entries at every step."""
        whole, bet = step.seen.whole, self._past
        if whole is None or whole.block is None:
            return
        bet.update(whole.block)
        before = self._test.log_e
        self._test.update(bet.log_e, step.number)
        if self._test.log_e > before:
            self._found = {"left": bet.left, "distance": bet.distance, "mirror": bet.mirror}

    def result(self, lack: str) -> CheckResult:
        """Return the check's result; ``lack`` is the reason why no noise was read."""
        return REUSE_ENTRIES.result(
            self._test,
            REUSE_ENTRIES.fine,
            "entries of a step differ by less than independent noise makes them: as if draws "
            f"were tiled, mirrored or repeated (at distance {self._found['distance']}, or about "
            f"half of {self._found['mirror']})",
            "look for a noise drawn with too small a shape and repeated, tiled, flipped or "
            "expanded to that of the gradient",
            self._found,
            lack,
        )


REUSE_ENTRIES = dataclasses.replace(
    RECURRENCE,
    name="reuse.entries",
    weight=5,
    finds="entries of a step that share their noise: tiled, mirrored, repeated along an axis",
    title="Repeats within one step",
    failed_title="Noise is tiled or mirrored",
    meaning="Entries of a step share noise that is tiled, mirrored or repeated, so combinations of "
    "them have no noise.",
    look_at="Check the shape that the noise is drawn with, and whether it is repeated, mirrored or "
    "rolled to that of the gradient.",
    topic="Fresh randomness",
    needs="no step's whole tensors were read together with their clipped sums",
    fine="no entries of a step share their noise",
    faults=(
        FaultRule(
            "noise_numbers_twice",
            "noise re-used: several entries of one step's noise have the same numbers",
            "the shape that the noise is drawn with, and whether it is repeated, mirrored or "
            "rolled to that of the gradient",
            headline="Several entries of a step get the same noise",
            rank=0.6,
            explains_groups=("reuse", "channel", "leakage"),
            applies=lambda seen: seen["left"] < EXPLAINED,
        ),
    ),
    reads="noise",
    init=lambda _, significance: SharedEntries(significance),
)

CHECKS = (REUSE_ENTRIES,)
