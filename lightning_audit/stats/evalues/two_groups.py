"""Means and spread of readings with and without the canary, under one claimed noise."""

from __future__ import annotations

import numpy as np

from lightning_audit.stats._arguments import Floats
from lightning_audit.stats.evalues.sequential import PredictableCentre


class TwoGroups:
    """Accumulates standardized readings for `mu_noncentral_t`, for the first noise multiplier only.

    Args:
        canaries: Number of readings in a step.
    """

    def __init__(self, canaries: int) -> None:
        self._centre = PredictableCentre((canaries,))
        self._n, self._sum, self._squares = np.zeros(2), np.zeros(2), 0.0
        self.noise_multiplier: float | None = None
        self.frozen = False

    def update(self, coins: Floats, readings: Floats, noise_multiplier: float) -> None:
        """Update with one step; ignored after the first change of the noise multiplier."""
        if self.noise_multiplier is None:
            self.noise_multiplier = noise_multiplier
        # The t statistic assumes one variance.
        self.frozen = self.frozen or noise_multiplier != self.noise_multiplier
        if self.frozen:
            return
        x = (readings - self._centre.value) / noise_multiplier
        for group, chosen in enumerate((coins < 0.5, coins > 0.5)):
            self._n[group] += chosen.sum()
            self._sum[group] += x[chosen].sum()
        self._squares += float(x @ x)
        self._centre.update(readings - coins)

    @property
    def statistics(self) -> tuple[int, int, float, float]:
        """(Readings in, readings out, difference of means, squares within), in units of sigma."""
        means = self._sum / np.maximum(self._n, 1.0)
        # Rounding can leave a tiny negative sum of squares when all readings agree.
        within = max(self._squares - float(self._n @ means**2), 0.0)
        return int(self._n[1]), int(self._n[0]), float(means[1] - means[0]), within
