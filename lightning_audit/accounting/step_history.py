"""The claims of the steps so far, in order."""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise

from lightning_audit.accounting.phases import Phase, merge


class StepHistory:
    """The claims of the steps, with each run of equal claims kept once."""

    def __init__(self) -> None:
        self._sigmas: list[float] = []
        self._rates: list[float | None] = []
        # Number of the last step of each run, counted from 1.
        self._ends: list[int] = []

    def add(self, noise_multiplier: float, sample_rate: float | None) -> None:
        """Add a step; a rate of zero, at which no record would join, counts as unknown."""
        sample_rate = sample_rate or None
        step = self._ends[-1] + 1 if self._ends else 1
        if self._ends and (self._sigmas[-1], self._rates[-1]) == (noise_multiplier, sample_rate):
            self._ends[-1] = step
            return
        self._sigmas.append(noise_multiplier)
        self._rates.append(sample_rate)
        self._ends.append(step)

    def noise_at(self, step: int | None = None) -> float:
        """Return the noise multiplier of a step, counted from 1; None: the last; 0 if none."""
        if not self._ends:
            return 0.0
        return self._sigmas[-1 if step is None else bisect_left(self._ends, step)]

    def runs(self, steps: int | None = None) -> tuple[Phase, ...]:
        """Return the runs of equal steps, in order, of the first ``steps`` steps; None: of all."""
        last = len(self._ends) if steps is None else bisect_left(self._ends, steps) + 1
        ends = [0, *self._ends[:last]]
        if steps is not None:
            ends[-1] = min(ends[-1], steps)
        counts = (end - begin for begin, end in pairwise(ends))
        return tuple(map(Phase, self._sigmas, self._rates, counts))

    def phases(self, steps: int | None = None) -> tuple[Phase, ...]:
        """Return `runs` with equal phases added up, in the order of their first appearance."""
        return tuple(merge(self.runs(steps)))
