"""Detects processes that draw the same noise.

Noise generators that start and end in the same states have drawn the same noise. A generator's
state is a secret of the mechanism: it is kept in memory only.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

#: Number of steps that are compared, from the first on.
STEPS = 3


class NoiseDraws:
    """Digests of the draws of one process's noise generator in the first steps."""

    def __init__(self) -> None:
        #: Digest of each step's draws, equal for equal draws; 0 if nothing was drawn.
        self.numbers = [0] * STEPS
        self._before: str | None = None

    def start(self, state: str | None) -> None:
        """Store the generator's state before clipping and noise; None if unknown."""
        self._before = state

    def end(self, step: int, state: str | None) -> None:
        """Compute the digest of a step from the generator's state after its noise."""
        before, self._before = self._before, None
        if step < STEPS and before is not None and state is not None and state != before:
            self.numbers[step] = zlib.crc32(f"{before} {state}".encode()) or 1


def equal_draws(told: Sequence[Sequence[int]]) -> bool:
    """Return whether two processes drew the same noise in a step.

    Args:
        told: `NoiseDraws.numbers` of each process.
    """
    for numbers in zip(*told, strict=True):
        drawn = [number for number in numbers if number]
        if len(set(drawn)) < len(drawn):
            return True
    return False
