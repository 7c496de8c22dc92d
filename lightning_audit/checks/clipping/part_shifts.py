"""Shifts of canaries, by the part of a split batch that they enter."""

from __future__ import annotations

import math

import numpy as np

from lightning_audit.layout import FloatArray
from lightning_audit.stats.evalues.coin_bet import CoinBet
from lightning_audit.stats.evalues.sequential import PredictableCentre

#: Least difference of the shifts of parts that count differently, and in standard errors.
_GAP, _ERRORS = 0.25, 3.0


class ShiftEstimate:
    """Estimate of the canaries' signal: mean residual of those that are in, minus that of the rest.

    Args:
        canaries: number of canaries of a step.
    """

    def __init__(self, canaries: int) -> None:
        self._centre = PredictableCentre((canaries,))
        # out, in: number, sum and sum of squares of residuals.
        self.sums = np.zeros((2, 3))

    def update(self, coins: FloatArray, readings: FloatArray) -> FloatArray:
        """Update with a step; return its centered residuals."""
        residual = readings - coins
        centred = np.asarray(residual - self._centre.value)
        self._centre.update(residual)
        for group in (0, 1):
            x = centred[coins == group]
            self.sums[group] += (len(x), x.sum(), x @ x)
        return centred

    @property
    def shift(self) -> float:
        """Estimated signal: 1 for a correct implementation, 0 for canaries without effect."""
        means = self.sums[:, 1] / np.maximum(self.sums[:, 0], 1.0)
        return float(1.0 + means[1] - means[0])

    @property
    def std(self) -> float:
        """Standard deviation of a reading around its group's mean, in units of the signal."""
        numbers, sums, squares = self.sums.T
        within = squares - sums**2 / np.maximum(numbers, 1.0)
        freedom = float(numbers.sum()) - 2.0
        return math.sqrt(max(float(within.sum()), 0.0) / freedom) if freedom > 0 else math.nan

    @property
    def error(self) -> float:
        """Standard error of the shift; infinite until both groups were observed."""
        numbers = self.sums[:, 0]
        if numbers.min() < 2:
            return math.inf
        return self.std * math.sqrt(float((1.0 / numbers).sum()))


class PartShifts:
    """Bets and shifts of canaries in earlier parts of a batch, and of those in its last part.

    If parts count differently, their average may look correct. So each kind of part has its own
    bet, from the first step on whose canaries enter an earlier part. The part is drawn before the
    step, and each bet is constant in steps of the other kind. So each bet is an e-process in the
    filtration of all steps, and so is their average.

    Args:
        earlier: the bet of earlier parts.
        last: the bet of last parts.
        canaries: number of canaries of a step.
    """

    def __init__(self, earlier: CoinBet, last: CoinBet, canaries: int) -> None:
        self._bets = [earlier, last]
        self.earlier, self.last = ShiftEstimate(canaries), ShiftEstimate(canaries)

    def update(self, coins: FloatArray, readings: FloatArray, *, earlier: bool) -> None:
        """Update with one step."""
        self._bets[0 if earlier else 1].update(coins, readings)
        (self.earlier if earlier else self.last).update(coins, readings)

    @property
    def differ(self) -> bool:
        """Whether the shifts of earlier parts and of last parts differ."""
        gap = abs(self.earlier.shift - self.last.shift)
        return gap > max(_GAP, _ERRORS * math.hypot(self.earlier.error, self.last.error))

    @property
    def log_e(self) -> float:
        """Log of the mean of the two e-values."""
        earlier, last = (float(bet.log_e) for bet in self._bets)
        return float(np.logaddexp(earlier, last)) - math.log(2.0)
