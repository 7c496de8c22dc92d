"""Entries of a step that share their noise: `reuse.entries`."""

from __future__ import annotations

import dataclasses
from typing import Any

from lightning_audit.checks.base.check import FaultRule
from lightning_audit.checks.noise.noise_seen import NoiseStep
from lightning_audit.checks.randomness.noise_recurrence import EXPLAINED, RECURRENCE
from lightning_audit.results.audit_report import CheckResult
from lightning_audit.stats.dependence.alike_entries import AlikeBet


class SharedEntries:
    """`reuse.entries`: entries of a step whose noise is that of others.

    Args:
        significance: of the whole run.
    """

    def __init__(self, significance: float) -> None:
        self._past = AlikeBet()
        self._test = REUSE_ENTRIES.test(significance)
        self._found: dict[str, Any] = {"left": 1.0, "distance": 0, "mirror": 0}

    def update(self, step: NoiseStep) -> None:
        """Add the noise of a step's block, which has the same entries at every step."""
        whole, bet = step.seen.whole, self._past
        if whole is None or whole.block is None:
            return
        bet.update(whole.block)
        before = self._test.log_e
        self._test.update(bet.log_e, step.number)
        if self._test.log_e > before:
            self._found = {"left": bet.left, "distance": bet.distance, "mirror": bet.mirror}

    def result(self, lack: str) -> CheckResult:
        """Result of the check; ``lack`` is why no noise was seen."""
        return REUSE_ENTRIES.result(
            self._test,
            REUSE_ENTRIES.fine,
            "entries of a step differ by less than noise of their own makes them: as if draws "
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
    needs="of no step whole tensors were read beside their clipped sums",
    fine="no entries of a step share their noise",
    faults=(
        FaultRule(
            "noise_numbers_twice",
            "noise re-used: the same numbers stand at several entries of one step's noise",
            "the shape that the noise is drawn with, and whether it is repeated, mirrored or "
            "rolled to that of the gradient",
            rank=0.6,
            explains_groups=("reuse", "channel", "leakage"),
            applies=lambda seen: seen["left"] < EXPLAINED,
        ),
    ),
    reads="noise",
    init=lambda _, significance: SharedEntries(significance),
)

CHECKS = (REUSE_ENTRIES,)
