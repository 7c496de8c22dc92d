"""Test whether a canary adds more than clipping allows: bets on its private coin."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from lightning_audit import _validate
from lightning_audit.stats._arguments import Floats
from lightning_audit.stats.evalues.sequential import PredictableCentre, log_mean_exp

#: Slopes over which `CoinBet` mixes, per standard deviation of the residual.
COIN_SLOPES: Floats = np.array([0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6])


def chances_of_sides(coin_probability: float) -> Floats:
    """Return the probabilities of the coin's sides, out and in, ``[2]``."""
    p = _validate.open_unit(
        "coin_probability", coin_probability, "a canary that is always or never in has no coin"
    )
    return np.array([1.0 - p, p])


class CoinBet:
    r"""E-process for "a canary adds at most its claimed signal", by betting on the coins.

    Subtract the claimed signal, ``r = z - signal * b``. If the canary adds exactly what clipping
    allows, ``r`` is independent of the private coin ``b``: a bet on the coin after seeing ``r``
    gains nothing on average, *for any* data term and noise distribution. If it adds more, a large
    ``r`` makes ``b = 1`` more likely. The bet gives ``b = 1`` the probability

    .. math:: \pi(x) = \frac{p\, e^u}{1 - p + p\, e^u}, \qquad u = a x + (p - \tfrac12)\, a^2

    with ``x`` the centered and scaled residual (center and scale from the past), and multiplies the
    wealth by ``pi / p`` if ``b = 1`` and by ``(1 - pi) / (1 - p)`` if not; for a fair coin that is
    ``2 / (1 + exp(-(2 b - 1) a x))``. Its mean over the coin is ``pi + (1 - pi) = 1`` for every
    ``x``; the coins of a step's canaries are independent, so the mean of their product is one as
    well. If the canary adds less than the signal, ``r`` is smaller only for ``b = 1``, where the
    factor increases with it: the wealth shrinks. The second term of ``u`` is there because the
    center is the mean of both groups, which is nearer to the more frequent one. At small effects
    the growth equals that of the likelihood ratio of two normals with unknown means (``p (1 - p) /
    2`` nats an observation times the square of the effect), so robustness costs nothing.

    If the canaries form several groups, nine tenths of the stake are on all of them together and
    one tenth is on the groups, in equal parts, so that a fault of a few directions is detected.
    Each part is an e-process in the filtration of all coins and readings, and so is their average.
    The division costs a few nats compared with the growth of the best part.

    Args:
        shape: Shape of a step's readings, canaries on the last axis.
        signal: The largest shift of a correct implementation, in units of the clipping norm: 1, or
            a little more if low precision rounds the canary.
        initial_scale: The claimed standard deviation of a reading, used until there is data.
        coin_probability: Known probability p in (0, 1) that a canary is in.
        groups: A name for each canary, equal within a group, ``[k]``; None for one group.

    Raises:
        ValueError: If ``coin_probability`` is not in (0, 1).

    References:
        Own proof, above, that the wealth is an e-process; for such bets see Waudby-Smith and
        Ramdas, "Estimating means of bounded random variables by betting", JRSS B 86, 2024,
        arXiv:2010.09686, and for averages of e-processes Vovk and Wang 2021, arXiv:1912.06116.
    """

    #: Weight of the claimed scale against the observed one, in observations.
    PRIOR = 20.0
    #: Fraction of the stake on all canaries together, if there are several groups.
    POOLED = 0.9

    def __init__(
        self,
        shape: tuple[int, ...],
        signal: float = 1.0,
        initial_scale: float = 1.0,
        coin_probability: float = 0.5,
        groups: Sequence[str] | None = None,
    ) -> None:
        chance = chances_of_sides(coin_probability)
        side = np.array([-1.0, 1.0])
        # By coin: minus log of its probability, ``[2]``, and log odds against it, ``[2, slopes]``.
        self._prize = -np.log(chance)
        against = np.log((1.0 - chance) / chance)
        self._odds = against[:, None] - np.outer(side * (chance[1] - 0.5), COIN_SLOPES**2)
        self.signal = signal
        self._total = np.zeros(shape)
        self._steps = 0
        self._log_wealth = np.zeros((*shape[:-1], len(COIN_SLOPES)))
        self._squares = np.full(shape[:-1], self.PRIOR * initial_scale**2)
        self._count = self.PRIOR
        # Canaries of each group, ``[groups, k]``; no groups if there is only one.
        each = groups or ()
        names = tuple(dict.fromkeys(each)) if len(set(each)) > 1 else ()
        self._members = np.array([[g == name for g in each] for name in names], dtype=float)
        self._group_wealth = np.zeros((*shape[:-1], len(names), len(COIN_SLOPES)))

    def update(self, coins: Floats, readings: Floats) -> None:
        """Update with one step: coins (0 or 1) and readings, both of the shape given."""
        residuals = readings - self.signal * coins
        centred = residuals - self._centre
        scale = np.sqrt(self._squares / self._count)
        x = (2.0 * coins - 1.0) * centred / scale[..., None]
        side = coins.astype(np.intp)
        odds = self._odds[side] - x[..., None] * COIN_SLOPES
        gains = self._prize[side][..., None] - np.logaddexp(0.0, odds)
        self._log_wealth += gains.sum(axis=-2)
        if len(self._members):
            self._group_wealth += self._members @ gains
        self._total += residuals
        self._steps += 1
        self._squares = self._squares + np.sum(centred**2, axis=-1)
        self._count += readings.shape[-1]

    @property
    def _centre(self) -> Floats:
        """Past mean of each canary, shrunk to that of all: an excess is common to them."""
        prior = PredictableCentre.PRIOR
        pooled = np.mean(self._total, axis=-1, keepdims=True) / max(self._steps, 1)
        return np.asarray((self._total + prior * pooled) / (self._steps + prior))

    @property
    def log_e(self) -> Floats:
        """Log e-value so far, of the leading shape."""
        pooled = log_mean_exp(self._log_wealth)
        if not len(self._members):
            return pooled
        of_groups = log_mean_exp(log_mean_exp(self._group_wealth))
        together = np.logaddexp(
            pooled + math.log(self.POOLED), of_groups + math.log1p(-self.POOLED)
        )
        return np.asarray(together, dtype=np.float64)
