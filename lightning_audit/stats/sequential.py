"""Anytime-valid tests: e-processes that may be inspected after every step.

An e-process is a non-negative process whose expectation is at most one at every stopping time if
the null hypothesis is true. By Ville's inequality the probability that it *ever* reaches ``1 /
significance`` is then at most ``significance``, for any number of looks. Several e-processes share
one significance by weights that add up to one.

Notation of the tests on canaries: at a step, canary ``i`` has a private coin ``b``, which is 1
("in") with a known probability ``p``, by default 1/2, and a reading ``z``; a correct DP-SGD gives
``z = b + d + noise_multiplier * N(0, 1)``, where the data term ``d`` may depend on all that
happened before and on the batch, but not on the coin or the noise. ``r = z - b`` is the residual.
Every array may have leading axes for independent runs, so that simulations in the tests run the
same code as the audit.

References:
    Ramdas, Grünwald, Vovk and Shafer, "Game-theoretic statistics and safe anytime-valid inference",
    Statistical Science 38, 2023, arXiv:2210.01948. Vovk and Wang, "E-values: calibration,
    combination and applications", Annals of Statistics 49, 2021, arXiv:1912.06116.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lightning_audit import _validate
from lightning_audit.stats._arguments import Floats, bisection

# --- Anytime-valid tests: e-processes that may be inspected after every step.

#: Fractions of the wealth that `SingleStepBet` stakes on every step.
STEP_STAKES: Floats = 10.0 ** -np.arange(1.0, 7.0)


def log_mean_exp(values: ArrayLike, axis: int = -1) -> Floats:
    """Return the logarithm of the mean of ``exp(values)`` along ``axis``, without overflow."""
    array = np.asarray(values, dtype=np.float64)
    # scipy's logsumexp takes forty times as long for the few numbers of a step.
    return np.asarray(np.logaddexp.reduce(array, axis=axis) - math.log(array.shape[axis]))


def largest_rejected(values: Floats, log_e: Floats, significance: float) -> Floats:
    """Return the largest of increasing ``values`` whose e-value, decreasing, rejects; else 0."""
    rejected = np.sum(log_e >= -np.log(significance), axis=-1)
    return np.asarray(np.concatenate([[0.0], values])[rejected], dtype=np.float64)


def looks_after(seen: int, steps: int) -> tuple[NDArray[np.bool_], int]:
    """Return whether an expensive e-value is computed after each of the next steps, ``[steps]``.

    It is for the first 100 steps and for every 10th after them. Fewer looks are equally valid, and
    may flag later.

    Args:
        seen: Number of steps before.
        steps: Number of the next steps.

    Returns:
        The looks; and the number of steps after them.
    """
    numbers = seen + 1 + np.arange(steps)
    return (numbers <= 100) | (numbers % 10 == 0), seen + steps


def running(start: ArrayLike, added: Floats) -> Floats:
    """Return a sum before each of several steps, and after the last one, ``[n + 1, ...]``.

    Rounded as if the steps were added one by one.

    Args:
        start: The sum before the first step.
        added: What each step adds, ``[n, ...]``.
    """
    return np.add.accumulate(np.concatenate([np.asarray(start)[None], added]))


def along(numbers: ArrayLike, steps: Floats) -> Floats:
    """Return a number of each step, ``[n]``, with as many axes as the steps."""
    return np.reshape(np.asarray(numbers, dtype=np.float64), (-1, *[1] * (steps.ndim - 1)))


class PredictableCentre:
    """A center computed from the past: the sum of past residuals over their number plus ten.

    Centering on the whole sample is not valid: if the data term depends on the past, it raises a
    false alarm in 7-11 % of correct runs at a nominal 5 % (by simulation).

    Args:
        shape: Shape of the residuals of one step, e.g. ``(k,)`` or ``(runs, k)``.
    """

    #: Weight of the prior guess zero, in observations.
    PRIOR = 10.0

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._total = np.zeros(shape)
        self._count = 0

    @property
    def value(self) -> Floats:
        """The center to use for the next step, of the shape given at construction."""
        return self._total / (self._count + self.PRIOR)

    def update(self, residuals: Floats) -> Floats:
        """Update with the residuals of one step, or of several, ``[..., *shape]``.

        Returns:
            The center of each of these steps, computed from the steps before it, ``[n, *shape]``.
        """
        steps = np.reshape(residuals, (-1, *self._total.shape))
        totals = running(self._total, steps)
        counts = self._count + self.PRIOR + np.arange(len(steps))
        self._total, self._count = totals[-1], self._count + len(steps)
        return totals[:-1] / along(counts, totals)


class RobustCentre:
    """A center computed from the past that a few extreme residuals do not move.

    The median of the last `LAST` residuals of a coordinate counts as `PRIOR` residuals. Each
    residual is clipped to `REACH` standard deviations of the claimed noise around the median before
    it. The first median is that of two zeros and the first residual, so that a single step with a
    data term of 1e4 costs as much as a step without readings.

    Args:
        shape: Shape of the residuals of one step.
    """

    PRIOR, REACH, LAST = 5.0, 5.0, 15

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._last = np.zeros((2, *shape))
        self._total = np.zeros(shape)
        self._count = 0

    def update(self, residuals: Floats, noise_multiplier: float) -> Floats:
        """Update as `PredictableCentre.update`, with the claimed noise of these steps."""
        steps = np.reshape(residuals, (-1, *self._total.shape))
        last, before = np.concatenate([self._last, steps]), len(self._last)
        windows = (last[max(0, i - self.LAST) : i] for i in range(before, len(last)))
        medians = np.stack([np.sort(rows, axis=0)[len(rows) // 2] for rows in windows])
        reach = self.REACH * noise_multiplier
        totals = running(self._total, np.clip(steps, medians - reach, medians + reach))
        counts = self._count + self.PRIOR + np.arange(len(steps))
        self._total, self._last = totals[-1], last[-self.LAST :]
        self._count += len(steps)
        return (totals[:-1] + self.PRIOR * medians) / along(counts, totals)


class SingleStepBet:
    """E-process for faults in a few steps, from the e-value of each step alone.

    A cumulative test misses a few bad steps among many good ones, because each of its bets extends
    over all steps. Here a small fraction ``w`` of the wealth is staked on every step separately,
    ``prod (1 + w (e_t - 1))``, averaged over `STEP_STAKES`. A good step costs at most ``w``.

    Args:
        shape: Leading shape for independent runs, ``()`` for one.
    """

    def __init__(self, shape: tuple[int, ...] = ()) -> None:
        self._log_wealth = np.zeros((*shape, len(STEP_STAKES)))

    def update(self, step_log_e: ArrayLike) -> Floats:
        """Update with the log e-value of one step, or of several, ``[..., *shape]``.

        Returns:
            Log e-value after each of these steps, ``[n, *shape]``.
        """
        steps = np.reshape(step_log_e, (-1, *self._log_wealth.shape[:-1], 1))
        gains = np.logaddexp(np.log1p(-STEP_STAKES), np.log(STEP_STAKES) + steps)
        wealth = running(self._log_wealth, gains)
        self._log_wealth = wealth[-1]
        return log_mean_exp(wealth[1:])

    @property
    def log_e(self) -> Floats:
        """Log e-value so far, of the leading shape."""
        return log_mean_exp(self._log_wealth)


# --- Bets on the share of right guesses in each training, if a training has several coins.

#: Stakes over which `share_log_e` averages; an infinite one multiplies by the share itself.
SHARE_STAKES: Floats = np.array([0.05, 0.2, 0.8, 3.0, 12.0, 50.0, np.inf])


def share_log_e(right: ArrayLike, rate: float, stakes: ArrayLike = SHARE_STAKES) -> Floats:
    r"""Return the log e-values for "the share of wrong guesses of each training is at least e".

    The claim is about the expectation of each share, given the past. Coins of one training may
    depend on each other in any way, since each training is one bet,

    .. math:: E_n = \frac1J \sum_j \prod_{k \le n} \frac{1 + \kappa_j W_k}{1 + \kappa_j (1 - e)} ,

    with the factor W_k / (1 - e) for an infinite stake. Each factor has expectation at most one, so
    that the process is valid at any stopping time (Ville).

    Args:
        right: Share W of right guesses in each training, in [0, 1], in the order of the plan,
            ``[n]``.
        rate: Least share e of wrong guesses under the claim, in (0, 1).
        stakes: Stakes > 0, infinity included, ``[j]``.

    Returns:
        Log e-value after each training, ``[n]``.

    Raises:
        ValueError: If a share is not in [0, 1], or ``rate`` is not in (0, 1).

    Example:
        >>> share_log_e([0.76] * 100, 0.33)[[9, 99]].round(2)
        array([ 0.84, 11.35])

    References:
        Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting", JRSS B
        86, 2024, arXiv:2010.09686.
    """
    shares, kappa = _shares(right), np.asarray(stakes, dtype=np.float64)
    least = _validate.open_unit("rate", rate, "it is the least error rate of a guess")
    growth = _growth(shares[:, None], kappa, 1.0 - least)
    return log_mean_exp(np.cumsum(growth, axis=0))


def share_error_upper(right: ArrayLike, significance: float) -> float:
    """Return an upper limit of the mean error rate that is valid after every training.

    Args:
        right: As in `share_log_e`.
        significance: Probability in (0, 1) with which the limit may fail at any time.

    Returns:
        The largest error rate that `share_log_e` does not reject after the last training, in
        (0, 1]; 1 without a training.

    Raises:
        ValueError: See `share_log_e`; or if ``significance`` is not in (0, 1).

    Example:
        >>> share_error_upper([0.76] * 1000, 0.05) < 0.26
        True
    """
    shares = _shares(right)
    goal = -math.log(_validate.open_unit("significance", significance, "such as 0.05"))

    def is_kept(rate: float) -> bool:  # the e-value grows with the rate
        total = np.sum(_growth(shares[:, None], SHARE_STAKES, 1.0 - rate), axis=0)
        return float(log_mean_exp(total)) < goal

    return float(bisection(is_kept, 0.0, 1.0)[1])


def log_e_of_whole_shares(errors: int, trainings: int, rate: float) -> Floats:
    """Return the log e-value if all coins of a training are guessed wrong or all are right.

    Args:
        errors: Number of trainings with wrong guesses.
        trainings: Number of all trainings.
        rate: As in `share_log_e`.
    """
    growth = _growth(np.array([[0.0], [1.0]]), SHARE_STAKES, 1.0 - rate)
    counts = np.array([errors, trainings - errors])[:, None]
    # Without an error, the infinite stake has lost nothing.
    total = np.multiply(counts, growth, out=np.zeros_like(growth), where=counts > 0)
    return log_mean_exp(np.sum(total, axis=0))


def further_trainings(right: ArrayLike, rate: float, significance: float) -> int | None:
    """Return how many more trainings refute the rate, if they are like those so far.

    Not a bound: the wealth of each stake is taken to grow as it grew on average.

    Args:
        right: As in `share_log_e`.
        rate: As in `share_log_e`.
        significance: Probability in (0, 1) with which a true claim may be refuted.

    Returns:
        The number, 0 if the rate is refuted; None without a training, or if no stake gains.
    """
    shares = _shares(right)
    if not shares.size:
        return None
    goal = -math.log(_validate.open_unit("significance", significance, "such as 1e-3"))
    total = np.sum(_growth(shares[:, None], SHARE_STAKES, 1.0 - rate), axis=0)
    if log_mean_exp(total) >= goal:
        return 0
    best = float(np.max(total)) / len(shares)
    if best <= 0.0:
        return None
    return max(math.ceil((goal + math.log(len(SHARE_STAKES))) / best) - len(shares), 1)


def _growth(right: Floats, kappa: Floats, chance: float) -> Floats:
    """Return the log factors of each training and stake, ``[n, j]``."""
    flat = np.isinf(kappa)
    finite = np.where(flat, 0.0, kappa)
    with np.errstate(divide="ignore"):
        all_in = np.log(right) - math.log(chance) if chance > 0 else np.full(right.shape, np.inf)
    return np.asarray(np.where(flat, all_in, np.log1p(finite * right) - np.log1p(finite * chance)))


def _shares(right: ArrayLike) -> Floats:
    shares = np.asarray(right, dtype=np.float64)
    if shares.ndim != 1 or not ((shares >= 0) & (shares <= 1)).all():
        raise ValueError(
            f"right={_validate.shown(right)} must be a vector of shares in [0, 1], one for each "
            "training."
        )
    return shares


# --- Means and spread of readings with and without the canary, under one claimed noise.


class SignedReadings:
    """Sums of readings with their coins' signs, for a t statistic; of the first noise multiplier.

    With ``c`` a center made of the past, ``y = (2 coin - 1) (reading - c - 1/2)`` has mean 1/2
    given the past, for any data term that is made of the past: a fair coin adds or subtracts it.
    The difference of the means of readings with and without the canary has no such law: it is
    biased where the data follow past coins.

    Args:
        canaries: Number of readings in a step.
    """

    def __init__(self, canaries: int) -> None:
        self._centre = PredictableCentre((canaries,))
        self._sums = np.zeros(3)
        self.noise_multiplier: float | None = None
        self.frozen = False

    def update(self, coins: Floats, readings: Floats, noise_multiplier: float) -> None:
        """Update with a step, or several, ``[..., k]``; ignored once the noise has changed."""
        self.noise_multiplier = self.noise_multiplier or noise_multiplier
        # The t statistic assumes one variance.
        self.frozen = self.frozen or noise_multiplier != self.noise_multiplier
        if self.frozen:
            return
        centred = np.atleast_2d(readings) - self._centre.update(readings - coins) - 0.5
        y = (2.0 * np.atleast_2d(coins) - 1.0) * centred / noise_multiplier
        added = np.stack([np.ones_like(y), y, y**2], axis=1).sum(axis=-1)
        self._sums = running(self._sums, added)[-1]

    @property
    def statistics(self) -> tuple[int, float, float]:
        """Number, mean and sum of squared deviations from it, in units of sigma."""
        number, total, squares = self._sums
        mean = total / max(number, 1.0)
        # Rounding can leave a tiny negative sum of squares when all readings agree.
        return int(number), float(mean), max(float(squares - number * mean**2), 0.0)
