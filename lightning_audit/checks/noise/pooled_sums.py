"""Sums of squares of tensors or canaries over the steps, and those after a step that flagged."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from lightning_audit.layout import FloatArray
from lightning_audit.stats.evalues.noise_scale import (
    INTERVAL_SIGNIFICANCE,
    chosen_upper,
    noise_log_e,
    units_upper,
)

#: Least number of steps before and after an onset; ratio of noise below which it is clearly less.
_SEVERAL, _LESS = 3, 0.9


class PooledSums:
    """Sums of squares of several units, also pooled over units with recent mean square below 1.

    The choice of units to pool depends on earlier steps alone, so the pooled test stays valid, and
    units with large data do not mask the others.

    Args:
        units: number of units (tensors, or canaries).
    """

    _DECAY = 0.9
    #: Clip the mean square at 2x the claim: one high-variance step must not mask later ones.
    _LOUDEST = 2.0

    def __init__(self, units: int) -> None:
        self.count = np.zeros(units)
        self.squares = np.zeros(units)
        self.pooled_count = 0.0
        self.pooled_squares = 0.0
        # No unit is pooled at the first step: nothing is known of it yet.
        self._recent = np.ones(units)

    def update(self, counts: FloatArray, squares: FloatArray) -> None:
        """Update with a step's number of terms and sum of squares of each unit, ``[n]`` each."""
        chosen = self._recent < 1.0
        self.pooled_count += float(counts[chosen].sum())
        self.pooled_squares += float(squares[chosen].sum())
        self.count += counts
        self.squares += squares
        mean = squares / np.maximum(counts, 1.0)
        heard = np.where(counts > 0, np.minimum(mean, self._LOUDEST), self._recent)
        self._recent = self._DECAY * self._recent + (1 - self._DECAY) * heard

    @property
    def mean_square(self) -> FloatArray:
        """Mean square of each unit so far, ``[n]``; 1 for a unit that was not read."""
        return np.where(self.count > 0, self.squares / np.maximum(self.count, 1.0), 1.0)

    @property
    def unit_log_e(self) -> FloatArray:
        """Log e-value of each unit."""
        return noise_log_e(self.count, self.squares)

    @property
    def pooled_log_e(self) -> float:
        """Log e-value of the pooled sums."""
        return float(noise_log_e(self.pooled_count, self.pooled_squares))

    def noise_upper(self, significance: float = INTERVAL_SIGNIFICANCE) -> float:
        """Upper limit of the noise over its claim; see `lightning_audit.stats.evalues.noise_scale`.

        Half of the stake is on all units together, and half is on each unit alone. The pooled sums
        are not used: they omit steps in which every unit had a large mean square, and would compare
        the noise of the other steps with the signal of all steps.
        """
        return units_upper(self.count, self.squares, significance)

    def largest_upper(self, units: Iterable[int]) -> float:
        """Return the largest upper limit of the noise over its claim among the given units.

        The units may be chosen by their readings; see `chosen_upper`. Infinite without a unit.
        """
        among = len(self.count)
        limits = (chosen_upper(self.count[j], self.squares[j], among) for j in units)
        return max(limits, default=math.inf)


class Onset:
    """Mean squares of the tensors before the first step that `noise.step` flags, and since then.

    Args:
        units: number of tensors.
    """

    #: Mean squares of the flagged step: that step is chosen by its readings, later ones are not.
    #: Checkpoints of earlier versions have none.
    _chosen: FloatArray | float = 0.0

    def __init__(self, units: int) -> None:
        self.steps = 0
        #: Number of steps since the flag whose own e-value is above 1.
        self.quiet = 0
        # Number of steps before; the tensors' mean squares before and since, summed over steps.
        self._before, self._squares = 0, np.zeros((2, units))

    def update(self, mean_squares: FloatArray, *, quiet: bool, flagged: bool) -> None:
        """Update with a step, and with whether a step has been flagged by now."""
        self.steps += flagged
        self.quiet += flagged and quiet
        self._before += not flagged
        if self.steps == 1 and flagged:
            self._chosen = mean_squares
        self._squares[int(flagged)] += mean_squares

    def ratios(self) -> dict[int, float]:
        """Return tensor -> noise and data over the claim since, if it was as claimed before.

        Empty unless at least `_SEVERAL` steps came before the flag and at least as many since, and
        the own e-value of each step since is above 1.
        """
        if self.steps < _SEVERAL or self.quiet < self.steps or self._before < _SEVERAL:
            return {}
        before, since = np.sqrt(self._squares / [[self._before], [self.steps]])
        smaller = np.flatnonzero((since < _LESS) & (since < _LESS * before) & (before > _LESS))
        return {int(j): float(since[j]) for j in smaller}

    def upper(self, counts: FloatArray, units: Sequence[int]) -> float:
        """Return an upper limit of the noise over its claim in each given tensor, after the flag.

        The limit comes from a confidence sequence that starts at a step which the past determines.
        The tensors may be chosen by their readings, since the limits of all tensors hold at once.

        Args:
            counts: coordinates that a step reads of each tensor, ``[n]``.
            units: the tensors.
        """
        sums = PooledSums(len(counts))
        sums.count = counts * max(self.steps - 1, 0)
        sums.squares = counts * (self._squares[1] - self._chosen)
        return sums.largest_upper(units)
