"""Whether noise is drawn twice: by several processes, or by a training that goes on after a stop.

Noise generators that start and end in one state have drawn the same.
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Sequence
from typing import Any

from lightning_audit.checks.integrity import noise_restarted_result
from lightning_audit.dpsgd.protocol import DPSGDStep

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


class NoiseStart:
    """Whether a resumed training's noise starts as that of its beginning did."""

    def __init__(self) -> None:
        #: State of the noise generator before the first step of the training.
        self.first: str | None = None
        #: Whether a resumed training began with it again; None if it never stopped.
        self.restarted: bool | None = None
        #: Whether it was looked in this process.
        self.seen = False

    def look(self, step: DPSGDStep, steps: int, *, warns: bool) -> None:
        """Before this process's first step: see where the noise generator stands.

        Args:
            step: the adapter.
            steps: how many steps there were, in earlier processes too.
            warns: whether this process is to say that noise comes again.
        """
        self.seen = True
        state = step.noise_state()
        if not steps:
            self.first = state
            return
        again = state is not None and state == self.first
        self.restarted = bool(self.restarted) or again
        if again and warns:
            warnings.warn(noise_restarted_result(restarted=True).message, stacklevel=2)

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        return {"first": self.first, "restarted": self.restarted}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint's state."""
        self.first, self.restarted = state["first"], state["restarted"]
