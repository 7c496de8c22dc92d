r"""Anytime-valid tests: e-processes that may be looked at after every step.

An e-process is a non-negative process whose expectation is at most one at every stopping time
when the null hypothesis holds. By Ville's inequality the probability that it *ever* reaches
``1 / significance`` is then at most ``significance``, whatever the number of looks, and several
e-processes share one significance by weights that add up to one.

Notation of this module: at a step, canary ``i`` has a private coin ``b``, which is 1 ("in") with a
known probability ``p``, 1/2 unless said, and a reading ``z``; a correct DP-SGD gives ``z = b + d +
noise_multiplier * N(0, 1)``, where the data term ``d`` may depend on all that happened before and
on the batch, but not on the coin or the noise. ``r = z - b`` is the residual. Every array may carry
leading axes: independent runs, which is how the simulations of the test-suite drive the very code
that the audit runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from lightning_audit import _validate
from lightning_audit.stats._tilted_chi import log_tilted_chi

FloatArray = NDArray[np.float64]

LN2 = float(np.log(2.0))

#: Precision ratios over which `noise_log_e` mixes: true noise x .97 down to x .15 of the claim.
NOISE_PRECISIONS: FloatArray = 1.0 / np.array([0.97, 0.93, 0.88, 0.8, 0.7, 0.55, 0.35, 0.15]) ** 2

#: Precision ratios over which `excess_log_e` mixes.
EXCESS_PRECISIONS: FloatArray = 1.0 / np.array([1.05, 1.2, 1.5, 2.0, 4.0, 16.0, 64.0, 256.0]) ** 2

#: Slopes over which `CoinBet` mixes, per standard deviation of the residual.
COIN_SLOPES: FloatArray = np.array([0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6])

#: Parts of the wealth that `SingleStepBet` stakes on every step.
STEP_STAKES: FloatArray = 10.0 ** -np.arange(1.0, 7.0)

#: Stakes over which `ErrorRateBet` mixes.
ERROR_STAKES: FloatArray = np.array([0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64])

#: Multiples of the claimed mu over which `two_sample_t_log_e` mixes.
MU_RATIOS: FloatArray = np.array([1.03, 1.06, 1.12, 1.25, 1.5, 2.0, 4.0, 10.0])


def log_mean_exp(values: ArrayLike, axis: int = -1) -> FloatArray:
    """Return the logarithm of the mean of ``exp(values)`` along ``axis``, without overflow."""
    array = np.asarray(values, dtype=np.float64)
    # scipy's logsumexp does the same in ten times the time on the few numbers of a step.
    top = np.max(array, axis=axis, keepdims=True)
    mean = np.mean(np.exp(array - top), axis=axis)
    return np.asarray(np.squeeze(top, axis=axis) + np.log(mean), dtype=np.float64)


def is_look(seen: int) -> bool:
    """Whether a dear e-value is computed after so many steps: each of the first 100, every 10th.

    Looking at fewer times is as valid, and costs a step less.
    """
    return seen <= 100 or seen % 10 == 0


class PredictableCentre:
    """A centre made of the past alone: the sum of past residuals over their number plus ten.

    Centring on the whole sample looks harmless and is not: when the data term follows the past,
    it raises a false alarm in 7-11 % of correct runs at a nominal 5 %.

    Args:
        shape: shape of the residuals of one step, e.g. ``(k,)`` or ``(runs, k)``.
    """

    #: Weight of the prior guess "zero", in observations.
    PRIOR = 10.0

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._total = np.zeros(shape)
        self._count = 0

    @property
    def value(self) -> FloatArray:
        """The centre to use for the coming step, of the shape given at construction."""
        return self._total / (self._count + self.PRIOR)

    def update(self, residuals: FloatArray) -> None:
        """Take in the residuals of the step that just ended."""
        self._total += residuals
        self._count += 1


def noise_log_e(count: ArrayLike, sum_squares: ArrayLike) -> FloatArray:
    r"""Log e-value for "the noise is at least as large as claimed".

    With ``x = (r - c) / sigma_t``, ``c`` any centre that the past determines, the process
    ``prod tau^(1/2) exp(-(tau - 1) x^2 / 2)`` has expectation at most one for *any* data term
    and any true noise of at least ``sigma_t``: a Gaussian puts the least mass on intervals
    around zero when it is widest and off centre (Anderson). It depends on the past through the
    number of terms and the sum of ``x^2`` only, so no state is needed but those two.

    Formula:
        ``log mean_tau exp(count / 2 * log tau - (tau - 1) / 2 * sum_squares)``

    Args:
        count: number of coordinates observed so far, any shape.
        sum_squares: sum of the squared standardised residuals, same shape.

    Returns:
        Log e-value, the broadcast shape of the arguments; flag at ``>= log(1 / significance)``.

    Example:
        >>> round(float(noise_log_e(0, 0.0)), 12)
        0.0
        >>> bool(noise_log_e(400, 400 * 0.64) > 9.2)
        True

    References:
        Anderson 1955; Ville 1939; Robbins 1970 (mixtures).
    """
    return _scale_log_e(count, sum_squares, NOISE_PRECISIONS)


def excess_log_e(count: ArrayLike, sum_squares: ArrayLike) -> FloatArray:
    """Log e-value for "the noise is at most as large as claimed", where nothing but noise is read.

    The same mixture as `noise_log_e`, over `EXCESS_PRECISIONS`: true noise x 1.05 up to x 256.

    Args:
        count: number of coordinates observed so far, any shape.
        sum_squares: sum of the squared noise, in units of the claimed variance, same shape.

    Returns:
        Log e-value, the broadcast shape of the arguments.

    Example:
        >>> bool(excess_log_e(400, 400 * 1.5) > 9.2)
        True
    """
    return _scale_log_e(count, sum_squares, EXCESS_PRECISIONS)


def _scale_log_e(count: ArrayLike, sum_squares: ArrayLike, tau: FloatArray) -> FloatArray:
    n = np.asarray(count, dtype=np.float64)[..., None]
    s = np.asarray(sum_squares, dtype=np.float64)[..., None]
    return log_mean_exp(0.5 * n * np.log(tau) - 0.5 * (tau - 1.0) * s)


def _chances(coin_probability: float) -> FloatArray:
    """Probabilities of the coin's sides, out and in."""
    p = _validate.open_unit(
        "coin_probability", coin_probability, "a canary that is always in, or never, is no coin"
    )
    return np.array([1.0 - p, p])


class CoinBet:
    r"""E-process for "a canary adds at most its claimed signal", by betting on the coins.

    Take the claimed signal out, ``r = z - signal * b``. If the canary adds exactly what clipping
    allows, ``r`` says nothing about the private coin ``b``: whoever bets on the coin after seeing
    ``r`` gains nothing on average, *whatever* the data term and the distribution of the noise
    do. If it adds more, a large ``r`` favours ``b = 1``. The bet gives ``b = 1`` the probability

    .. math:: \pi(x) = \frac{p\, e^u}{1 - p + p\, e^u}, \qquad u = a x + (p - \tfrac12)\, a^2

    with ``x`` the centred and scaled residual (centre and scale from the past), and multiplies the
    wealth by ``pi / p`` if ``b = 1`` and by ``(1 - pi) / (1 - p)`` if not; for a fair coin that is
    ``2 / (1 + exp(-(2 b - 1) a x))``. Its mean over the coin is ``pi + (1 - pi) = 1`` for every
    ``x``; the coins of a step's canaries are independent, so the mean of their product is one as
    well. If the canary adds less than the signal, ``r`` is smaller for ``b = 1`` alone, where the
    factor increases with it: the wealth shrinks. The second part of ``u`` is there because the
    centre is the mean of both groups, which lies nearer to the more frequent one. At small effects
    the growth equals that of the likelihood ratio of two normals with unknown means (``p (1 - p) /
    2`` nats an observation times the square of the effect), so nothing is paid for the robustness.

    Where the canaries are of several groups, nine tenths of the stake are on all of them together
    and one tenth on the groups, in equal parts: a fault that some directions show is not drowned by
    the others. Each part is an e-process in the filtration of all coins and readings, and so is
    their average. What it costs is a few nats against the growth of the right part in each step.

    Args:
        shape: shape of a step's readings, canaries on the last axis.
        signal: the largest shift that a correct implementation shows: 1, or a little more where
            low precision rounds the canary.
        initial_scale: the claimed standard deviation of a reading, used until there is data.
        coin_probability: known probability p in (0, 1) that a canary is in.
        groups: a name for each canary, equal within a group, ``[k]``; None for one group.

    Raises:
        ValueError: ``coin_probability`` is not in (0, 1).
    """

    #: Weight of the claimed scale against the observed one, in observations.
    PRIOR = 20.0
    #: Part of the stake on all canaries together, where there are several groups.
    POOLED = 0.9

    # By coin: -log of its probability, and log odds against it, ``[2]`` and ``[2, slopes]``. These
    # are a fair coin's; snapshots of the first release have no others.
    _prize = np.full(2, LN2)
    _odds = np.zeros((2, len(COIN_SLOPES)))
    # Which canaries are of each group, ``[groups, k]``, and the wealth of each; None for one group.
    _members: FloatArray | None = None
    _group_wealth: FloatArray | None = None

    def __init__(
        self,
        shape: tuple[int, ...],
        signal: float = 1.0,
        initial_scale: float = 1.0,
        coin_probability: float = 0.5,
        groups: Sequence[str] | None = None,
    ) -> None:
        chance = _chances(coin_probability)
        side = np.array([-1.0, 1.0])
        self._prize = -np.log(chance)
        against = np.log((1.0 - chance) / chance)
        self._odds = against[:, None] - np.outer(side * (chance[1] - 0.5), COIN_SLOPES**2)
        self.signal = signal
        self._total = np.zeros(shape)
        self._steps = 0
        self._log_wealth = np.zeros((*shape[:-1], len(COIN_SLOPES)))
        self._squares = np.full(shape[:-1], self.PRIOR * initial_scale**2)
        self._count = self.PRIOR
        names = tuple(dict.fromkeys(groups or ()))
        if groups is not None and len(names) > 1:
            self._members = np.array([[g == name for g in groups] for name in names], dtype=float)
            self._group_wealth = np.zeros((*shape[:-1], len(names), len(COIN_SLOPES)))

    def update(self, coins: FloatArray, readings: FloatArray) -> None:
        """Take in one step: coins (0 or 1) and readings, both of the shape given."""
        residuals = readings - self.signal * coins
        centred = residuals - self._centre
        scale = np.sqrt(self._squares / self._count)
        x = (2.0 * coins - 1.0) * centred / scale[..., None]
        side = coins.astype(np.intp)
        odds = self._odds[side] - x[..., None] * COIN_SLOPES
        gains = self._prize[side][..., None] - np.logaddexp(0.0, odds)
        self._log_wealth += gains.sum(axis=-2)
        if self._members is not None and self._group_wealth is not None:
            self._group_wealth += self._members @ gains
        self._total += residuals
        self._steps += 1
        self._squares = self._squares + np.sum(centred**2, axis=-1)
        self._count += readings.shape[-1]

    @property
    def _centre(self) -> FloatArray:
        """Past mean of each canary, shrunk to that of all: an excess is common to them."""
        prior = PredictableCentre.PRIOR
        pooled = np.mean(self._total, axis=-1, keepdims=True) / max(self._steps, 1)
        return np.asarray((self._total + prior * pooled) / (self._steps + prior))

    @property
    def log_e(self) -> FloatArray:
        """Log e-value now, of the leading shape."""
        pooled = log_mean_exp(self._log_wealth)
        if self._group_wealth is None:
            return pooled
        of_groups = log_mean_exp(log_mean_exp(self._group_wealth))
        together = np.logaddexp(
            pooled + math.log(self.POOLED), of_groups + math.log1p(-self.POOLED)
        )
        return np.asarray(together, dtype=np.float64)


class SingleStepBet:
    """E-process for faults in a few steps, from the e-value of each step on its own.

    A cumulative test forgets a few bad steps among many good ones: each of its bets is held over
    all steps. Here a small part ``w`` of the wealth is staked on every step anew,
    ``prod (1 + w (e_t - 1))``, averaged over `STEP_STAKES`. A good step costs at most ``w``.

    Args:
        shape: leading shape: independent runs, ``()`` for one.
    """

    def __init__(self, shape: tuple[int, ...] = ()) -> None:
        self._log_wealth = np.zeros((*shape, len(STEP_STAKES)))

    def update(self, step_log_e: ArrayLike) -> None:
        """Take in the log e-value of one step, of the leading shape."""
        log_e = np.asarray(step_log_e, dtype=np.float64)[..., None]
        self._log_wealth += np.logaddexp(np.log1p(-STEP_STAKES), np.log(STEP_STAKES) + log_e)

    @property
    def log_e(self) -> FloatArray:
        """Log e-value now, of the leading shape."""
        return log_mean_exp(self._log_wealth)


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
        chance = _chances(coin_probability)
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


def two_sample_t_log_e(
    n_in: ArrayLike, n_out: ArrayLike, difference: ArrayLike, sum_squares: ArrayLike, mu0: float
) -> FloatArray:
    r"""Log e-value for "shift over standard deviation is at most mu0" (right-Haar t).

    The ratio of the densities of the two-sample t statistic at ``mu`` and at ``mu0``, averaged
    over `MU_RATIOS`. Location and scale are free; the densities of the noncentral t are totally
    positive of order two, so one null boundary stands for every smaller mu. It supposes Gaussian
    residuals of one variance; the other tests of this module do not. With groups of equal size on
    average, as fair coins give, a skewed data term cancels in the difference of their means. With
    unequal ones it does not: coins of probability .1 and a data term of 10 noise standard
    deviations in one step of fifty raise an alarm in 0.6 % of correct runs at a nominal 0.1 %. The
    audit leaves this test out for such coins.

    Args:
        n_in: number of readings with the canary in.
        n_out: number of readings without it.
        difference: mean reading in minus mean reading out.
        sum_squares: sum of squared deviations within the two groups.
        mu0: claimed mu of one step, in the unit of the readings.

    Returns:
        Log e-value; 0 where a group is empty or fewer than three readings were taken.

    Example:
        >>> float(two_sample_t_log_e(1, 0, 0.0, 0.0, 1.0))
        0.0

    References:
        Perez-Ortiz, Lardy, de Heide & Grunwald 2024 (E-statistics, group invariance and
        anytime-valid testing).
    """
    n1, n0, d, ss = np.broadcast_arrays(
        *(np.asarray(v, dtype=np.float64) for v in (n_in, n_out, difference, sum_squares))
    )
    ready = (n1 > 0) & (n0 > 0) & (n1 + n0 > 2) & (ss > 0)
    # Where there is no statistic yet the numbers are replaced by harmless ones and masked below.
    n1, n0, ss = (np.where(ready, v, fill) for v, fill in ((n1, 2.0), (n0, 2.0), (ss, 1.0)))
    weight = n1 * n0 / (n1 + n0)
    freedom = n1 + n0 - 2.0
    slope = weight * d / np.sqrt(ss + weight * d * d)
    null = -0.5 * weight * mu0**2 + log_tilted_chi(freedom, slope * mu0)
    mu = mu0 * MU_RATIOS
    alternatives = -0.5 * weight[..., None] * mu**2 + log_tilted_chi(
        freedom[..., None], slope[..., None] * mu
    )
    return np.where(ready, log_mean_exp(alternatives) - null, 0.0)


class MuTest:
    """Accumulates standardised readings for `two_sample_t_log_e`; frozen when sigma changes.

    Args:
        shape: shape of a step's readings, canaries on the last axis.
        signal: the largest shift that a correct implementation shows.
    """

    def __init__(self, shape: tuple[int, ...], signal: float = 1.0) -> None:
        self.signal = signal
        self._centre = PredictableCentre(shape)
        lead = shape[:-1]
        self._n = np.zeros((2, *lead))
        self._sum = np.zeros((2, *lead))
        self._squares = np.zeros(lead)
        self.noise_multiplier: float | None = None
        self.frozen = False

    def update(self, coins: FloatArray, readings: FloatArray, noise_multiplier: float) -> None:
        """Take in one step; after the first change of the noise multiplier, nothing more."""
        if self.noise_multiplier is None:
            self.noise_multiplier = noise_multiplier
        if self.frozen or noise_multiplier != self.noise_multiplier:
            # A restart would take a second share of the significance.
            self.frozen = True
            return
        x = (readings - self._centre.value) / noise_multiplier
        for group, mask in enumerate((coins < 0.5, coins > 0.5)):
            self._n[group] += mask.sum(axis=-1)
            self._sum[group] += np.sum(x * mask, axis=-1)
        self._squares = self._squares + np.sum(x * x, axis=-1)
        self._centre.update(readings - coins)

    @property
    def statistics(self) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """(Readings in, readings out, difference of means, squares within), in units of sigma."""
        means = self._sum / np.maximum(self._n, 1.0)
        within = self._squares - np.sum(self._n * means**2, axis=0)
        # Rounding can leave a tiny negative sum of squares when all readings agree.
        return self._n[1], self._n[0], means[1] - means[0], np.maximum(within, 0.0)

    @property
    def log_e(self) -> FloatArray:
        """Log e-value now, of the leading shape."""
        if self.noise_multiplier is None:
            return np.zeros(self._squares.shape)
        return two_sample_t_log_e(*self.statistics, self.signal / self.noise_multiplier)
