"""How much does a step leak at least: bets on the errors of guessing the canaries' coins."""

from __future__ import annotations

import numpy as np
from scipy import special

from lightning_audit.stats._arguments import Floats
from lightning_audit.stats.evalues.coin_bet import chances_of_sides
from lightning_audit.stats.evalues.sequential import (
    PredictableCentre,
    largest_rejected,
    log_mean_exp,
)

#: Stakes over which `ErrorRateBet` mixes: what a right guess adds to the wealth, before its price.
ERROR_STAKES: Floats = np.geomspace(0.04, 8.0, 7)


class ErrorRateBet:
    r"""E-processes for "the steps are (r / sigma_t)-GDP", for a whole grid of r at once.

    A step that is mu-GDP lets nobody guess with ``TPR + TNR`` above ``2 Phi(mu/2)``. The guess
    here is "in" when the centred reading exceeds one half. A right guess counts by
    ``w(b) = min(p, 1 - p) / P(b) <= 1``, so that both worlds weigh alike however rare one is; V is
    the mean of what the right guesses of a step count, and

    .. math:: \mathbb E\, V = \min(p, 1 - p)\, (\mathrm{TPR} + \mathrm{TNR})
        \le g_t(r) = 2 \min(p, 1 - p)\, \Phi(r / (2 \sigma_t))

    For fair coins w is 1 and V the share of right guesses. For others ``h (mean w - E w)`` is
    taken off, whose mean is zero, with h = Phi(1 / (2 sigma_t)): the coins' own luck. With U what
    is left of V, the e-value of r is

    .. math:: E_T(r) = \operatorname{mean}_\kappa
        \prod_{t \le T} \frac{1 + \kappa U_t}{1 + \kappa\, g_t(r)}

    Betting on a step's mean needs no independence of its canaries; nothing is assumed about the
    mechanism but the trade-off function. The e-value decreases in r, so the rejected values are an
    interval from zero.

    Proved, with v_t the mean of U_t given the past: the average over kappa of the products of
    ``(1 + kappa U_t) / (1 + kappa v_t)`` is one martingale for all r, so that with probability
    ``1 - significance`` no r is rejected, at any time, for which ``sum log(1 + kappa v_t)`` is at
    most ``sum log(1 + kappa g_t(r))`` at each kappa. Where every step so far was (rho_t /
    sigma_t)-GDP with rho_t that vary, v_t is at most g_t(rho_t), and both logarithm and Phi are
    concave above zero: **at all times together, what is rejected lies below a weighted mean of the
    rho_t so far**, the plain mean where sigma_t is constant. The rho_t may depend on the past. With
    equal rho_t: not every step was (r / sigma_t)-GDP.

    Args:
        shape: shape of a step's readings, canaries on the last axis.
        ratios: the grid of r, increasing, ``[m]``.
        coin_probability: known probability p in (0, 1) that a canary is in.

    Raises:
        ValueError: ``coin_probability`` is not in (0, 1).
    """

    def __init__(
        self, shape: tuple[int, ...], ratios: Floats, coin_probability: float = 0.5
    ) -> None:
        chance = chances_of_sides(coin_probability)
        self._weights = chance.min() / chance
        self._fair = 2.0 * float(chance.min())
        # Rarer coins pay less by the guess and take higher stakes; up to 1 - fair is taken off V,
        # and the wealth stays above zero.
        self._stakes = ERROR_STAKES / (self._fair + ERROR_STAKES * (1.0 - self._fair))
        self.ratios = np.asarray(ratios, dtype=np.float64)
        self._centre = PredictableCentre(shape)
        self._growth = np.zeros((*shape[:-1], len(self._stakes)))
        self._price = np.zeros((len(self.ratios), len(self._stakes)))
        # Price of a step at the noise multiplier for which it was computed last.
        self._price_now, self._priced_at = self._price, 0.0

    def update(self, coins: Floats, readings: Floats, noise_multiplier: float) -> None:
        """Take in one step and its claimed noise multiplier."""
        right = (readings - self._centre.value > 0.5) == (coins > 0.5)
        weights = self._weights[coins.astype(np.intp)]
        luck = np.mean(weights, axis=-1) - self._fair
        known = float(special.ndtr(0.5 / noise_multiplier))
        gain = np.mean(weights * right, axis=-1) - known * luck
        self._growth = self._growth + np.log1p(self._stakes * gain[..., None])
        if noise_multiplier != self._priced_at:
            most = self._fair * special.ndtr(self.ratios / (2.0 * noise_multiplier))
            self._price_now = np.log1p(np.outer(most, self._stakes))
            self._priced_at = noise_multiplier
        self._price = self._price + self._price_now
        self._centre.update(readings - coins)

    @property
    def log_e(self) -> Floats:
        """Log e-value of each ratio now, ``[..., m]``."""
        return log_mean_exp(self._growth[..., None, :] - self._price)

    def ratio_lower(self, significance: float) -> Floats:
        """The largest ratio that is rejected now, by its e-value now; 0 where none is."""
        return largest_rejected(self.ratios, self.log_e, significance)
