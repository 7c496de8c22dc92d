"""Whether noise is drawn twice by several processes.

Noise generators that start and end in one state have drawn the same. What is known of a generator's
state is a secret of the mechanism: it stays in memory.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

#: Steps that are looked at, from the first on.
STEPS = 3


class NoiseDraws:
    """What one process's noise generator did in the first steps."""

    def __init__(self) -> None:
        #: A number for what was drawn in each step, equal for equal draws; 0 if nothing was.
        self.numbers = [0] * STEPS
        self._before: str | None = None

    def start(self, state: str | None) -> None:
        """Before clipping and noise: the generator's state, None if it shows none."""
        self._before = state

    def end(self, step: int, state: str | None) -> None:
        """After the noise of a step: the generator's state."""
        before, self._before = self._before, None
        if step < STEPS and before is not None and state is not None and state != before:
            self.numbers[step] = zlib.crc32(f"{before} {state}".encode()) or 1


def equal_draws(told: Sequence[Sequence[int]]) -> bool:
    """Whether two processes drew the same in a step, by the `NoiseDraws.numbers` of each."""
    for numbers in zip(*told, strict=True):
        drawn = [number for number in numbers if number]
        if len(set(drawn)) < len(drawn):
            return True
    return False
