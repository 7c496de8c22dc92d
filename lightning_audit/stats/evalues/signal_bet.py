"""Lower bound on what a canary adds: bets on its coin, for a grid of signals at once."""

from __future__ import annotations

import numpy as np

from lightning_audit.stats._arguments import Floats
from lightning_audit.stats.evalues.coin_bet import CoinBet, chances_of_sides
from lightning_audit.stats.evalues.sequential import (
    PredictableCentre,
    largest_rejected,
    log_mean_exp,
)

#: Slopes over which `SignalBet` mixes, per standard deviation of the residual. Each is twice the
#: one before, so that one exponential gives them all.
SIGNAL_SLOPES: Floats = np.array([0.02, 0.04, 0.08, 0.16, 0.32])


class SignalBet:
    r"""E-processes for "a canary adds at most s", for a whole grid of s at once.

    `CoinBet` with a varying signal. After s is subtracted from a reading z, the rest is
    independent of the coin b if the canary adds s, and too small for b = 1 if it adds less, *for
    any* data and noise. The bet of slope a multiplies the wealth by

    .. math:: \frac{1}{P(b) + P(1 - b)\, e^{-(2 b - 1) (a x + (p - 1/2) a^2)}}, \qquad
        x = \frac{(z - \bar z) - s (b - \bar b)}{\hat\sigma}

    with centers and scale from the past; the scale is that of the residuals of the claimed signal,
    the same for every s, capped at `REACH`. Its mean over the coin is one if the canary adds s, for
    every x. As each canary's center of b is between 0 and 1, ``(2 b - 1) x`` decreases in s, and so
    does the e-value: the rejected values form an interval from zero.

    Proved (own proof): if no canary ever adds more than s, the probability that s is ever rejected
    is at most the significance. So at all times together some step exceeded the largest rejected
    signal, for any data and any noise.

    Args:
        shape: Shape of a step's readings, canaries on the last axis.
        signals: The grid of s, increasing, in units of the clipping norm, ``[m]``.
        initial_scale: The claimed standard deviation of a reading, used until there is data.
        coin_probability: Known probability p in (0, 1) that a canary is in.

    Raises:
        ValueError: If ``coin_probability`` is not in (0, 1).

    References:
        Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting", JRSS B
        86, 2024, arXiv:2010.09686 (confidence sequences by betting).
    """

    #: Residuals are capped at this many standard deviations, so that no exponential overflows.
    REACH = 100.0

    def __init__(
        self,
        shape: tuple[int, ...],
        signals: Floats,
        initial_scale: float = 1.0,
        coin_probability: float = 0.5,
    ) -> None:
        chance = chances_of_sides(coin_probability)
        self.signals = np.asarray(signals, dtype=np.float64)
        self._of_side, self._of_other = chance, chance[::-1].copy()
        # By slope and coin: the cost of centering two unequal groups.
        self._drift = np.exp(-np.outer(SIGNAL_SLOPES**2, [0.5 - chance[1], chance[1] - 0.5]))
        self._log_wealth = np.zeros((len(SIGNAL_SLOPES), *shape[:-1], len(self.signals)))
        # Totals of the readings and of the coins.
        self._totals = np.zeros((2, *shape))
        self._steps = 0
        self._squares = np.full(shape[:-1], CoinBet.PRIOR * initial_scale**2)
        self._count = CoinBet.PRIOR

    def update(self, coins: Floats, readings: Floats) -> None:
        """Update with one step: coins (0 or 1) and readings, both of the shape given."""
        now = np.stack([readings, coins])
        z, b = now - self._centres
        side = (2.0 * coins - 1.0) / np.sqrt(self._squares / self._count)[..., None]
        x = (side * z)[..., None, :] - self.signals[:, None] * (side * b)[..., None, :]
        x = np.minimum(np.maximum(x, -self.REACH), self.REACH)
        power = np.empty((len(SIGNAL_SLOPES), *x.shape))
        np.exp(-SIGNAL_SLOPES[0] * x, out=power[0])
        for j in range(1, len(power)):
            np.multiply(power[j - 1], power[j - 1], out=power[j])
        coin = coins.astype(np.intp)
        power *= (self._of_other[coin] * self._drift[:, coin])[..., None, :]
        power += self._of_side[coin][..., None, :]
        # A product with ones sums a short last axis in a third of the time.
        self._log_wealth -= np.log(power, out=power) @ np.ones(x.shape[-1])
        self._totals += now
        self._steps += 1
        self._squares = self._squares + ((z - b) ** 2).sum(axis=-1)
        self._count += readings.shape[-1]

    @property
    def _centres(self) -> Floats:
        """Past means of each canary, shrunk to those of all, as in `CoinBet`."""
        prior, totals = PredictableCentre.PRIOR, self._totals
        share = prior / (max(self._steps, 1) * totals.shape[-1])
        pooled = share * totals.sum(axis=-1, keepdims=True)
        return np.asarray((totals + pooled) / (self._steps + prior))

    @property
    def log_e(self) -> Floats:
        """Log e-value of each signal so far, ``[..., m]``."""
        return log_mean_exp(self._log_wealth, axis=0)

    def signal_lower(self, significance: float) -> Floats:
        """Return the largest signal that is rejected now; 0 if none is."""
        return largest_rejected(self.signals, self.log_e, significance)
