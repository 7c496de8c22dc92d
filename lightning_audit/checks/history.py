"""What was claimed of the steps so far, in their order."""

from __future__ import annotations

#: Phases of (noise_multiplier, sample_rate, steps); the sample rate is None where it is unknown.
Phases = tuple[tuple[float, float | None, int], ...]


class StepHistory:
    """The claims of the steps, each run of equal ones kept once."""

    def __init__(self) -> None:
        self._sigmas: list[float] = []
        self._rates: list[float | None] = []
        self._counts: list[int] = []

    def add(self, noise_multiplier: float, sample_rate: float | None) -> None:
        """Take in a step."""
        last = (self._sigmas[-1], self._rates[-1]) if self._counts else None
        if last == (noise_multiplier, sample_rate):
            self._counts[-1] += 1
            return
        self._sigmas.append(noise_multiplier)
        self._rates.append(sample_rate)
        self._counts.append(1)

    def runs(self, steps: int | None = None) -> Phases:
        """Runs of equal steps in their order, of the first ``steps`` steps; of all for None."""
        found = []
        for sigma, rate, count in zip(self._sigmas, self._rates, self._counts, strict=True):
            if steps is not None:
                count = min(count, steps)
                steps -= count
            if count <= 0:
                break
            found.append((sigma, rate, count))
        return tuple(found)

    def noise_at(self, steps: int | None = None) -> float:
        """Noise multiplier of the last of the first ``steps`` steps; 0 where there is none."""
        runs = self.runs(steps)
        return runs[-1][0] if runs else 0.0

    def phases(self, steps: int | None = None) -> Phases:
        """The same with equal ones added up, in order of first appearance."""
        merged: dict[tuple[float, float | None], int] = {}
        for sigma, rate, count in self.runs(steps):
            merged[sigma, rate] = merged.get((sigma, rate), 0) + count
        return tuple((sigma, rate, count) for (sigma, rate), count in merged.items())
