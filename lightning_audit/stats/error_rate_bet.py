"""How much does a step leak at least: bets on the errors of guessing the canaries' coins."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import special

from lightning_audit.stats.coin_bet import chances_of_sides
from lightning_audit.stats.sequential import PredictableCentre, is_look, log_mean_exp

FloatArray = NDArray[np.float64]

#: Stakes over which `ErrorRateBet` mixes.
ERROR_STAKES: FloatArray = np.array([0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64])


class ErrorRateBet:
    r"""E-processes for "every step is (r / sigma_t)-GDP", for a whole grid of r at once.

    A step that is mu-GDP lets nobody guess with ``FNR + FPR`` below ``2 Phi(-mu/2)``. The guess
    here is "in" when the centred reading exceeds one half; ``wrong`` is 1 for a wrong guess. A
    guess counts by ``w(b) = min(p, 1 - p) / P(b) <= 1``, so that both worlds weigh alike however
    rare one is, and with ``e = Phi(-r / (2 sigma_t))``

    .. math:: \mathbb E\, w(b)\, (e - \text{wrong})
        = \min(p, 1 - p)\, (2 e - \mathrm{FNR} - \mathrm{FPR}) \le 0

    The wealth is multiplied by ``1 + .99 * stake * X / (1 - e)``, X the mean of ``w (e - wrong)``
    over the step's canaries, which is at least ``-(1 - e)``; for fair coins w is 1. Betting on the
    step's mean needs no independence of its canaries; nothing is assumed about the mechanism but
    the trade-off function. The e-value decreases in ``r``, because ``w (e - wrong) / (1 - e)``
    increases with e, so the rejected values are an interval from zero.

    Args:
        shape: shape of a step's readings, canaries on the last axis.
        ratios: the grid of r, increasing, ``[m]``.
        coin_probability: known probability p in (0, 1) that a canary is in.

    Raises:
        ValueError: ``coin_probability`` is not in (0, 1).
    """

    # Weight of a guess, by coin; those of fair ones, where a snapshot has none.
    _weights = np.ones(2)

    def __init__(
        self, shape: tuple[int, ...], ratios: FloatArray, coin_probability: float = 0.5
    ) -> None:
        chance = chances_of_sides(coin_probability)
        self._weights = chance.min() / chance
        self.ratios = np.asarray(ratios, dtype=np.float64)
        self._centre = PredictableCentre(shape)
        self._log_wealth = np.zeros((*shape[:-1], len(self.ratios), len(ERROR_STAKES)))
        self._best = np.full((*shape[:-1], len(self.ratios)), 0.0)
        self._steps = 0

    def update(self, coins: FloatArray, readings: FloatArray, noise_multiplier: float) -> None:
        """Take in one step and its claimed noise multiplier."""
        guesses = readings - self._centre.value > 0.5
        weights = self._weights[coins.astype(np.intp)]
        weight = np.mean(weights, axis=-1)
        wrong = np.mean(weights * (guesses != (coins > 0.5)), axis=-1)
        floor = special.ndtr(-self.ratios / (2.0 * noise_multiplier))
        gain = (floor * weight[..., None] - wrong[..., None]) / (1.0 - floor)
        self._log_wealth += np.log1p(0.99 * ERROR_STAKES * gain[..., None])
        self._centre.update(readings - coins)
        self._steps += 1
        if is_look(self._steps):
            self._best = np.maximum(self._best, self.log_e)

    @property
    def log_e(self) -> FloatArray:
        """Log e-value of each ratio now, ``[..., m]``."""
        return log_mean_exp(self._log_wealth)

    def ratio_lower(self, significance: float) -> FloatArray:
        """Largest ratio rejected at any `look` so far at ``significance``; 0 where none was.

        At all times together, with probability ``1 - significance``: not every step was
        (r / sigma_t)-GDP for any r up to the returned value.
        """
        rejected = np.sum(self._best >= -np.log(significance), axis=-1)
        grid = np.concatenate([[0.0], self.ratios])
        return np.asarray(grid[rejected], dtype=np.float64)
