"""Tests of the noise: its size, its shape, its single entries, and whether it recurs.

**E-processes for Gaussian noise, from its tails and its ties, valid for any data.** Notation: a
reading is ``x = d + n``, in units of the claimed standard deviation; ``d`` may depend on the past
and on the data, but not on the noise ``n``. The claim is that the coordinates of ``n`` are
independent and normal, with a standard deviation of at least 1.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from lightning_audit.stats._arguments import Floats, bisection
from lightning_audit.stats.sequential import PredictableCentre, log_mean_exp

# --- E-values and limits for the size of the noise, from a sum of squares.

#: Precision ratios over which `noise_log_e` mixes: true noise x .997 down to x .15 of the claim.
NOISE_PRECISIONS: Floats = (
    1.0 / np.array([0.997, 0.99, 0.97, 0.93, 0.88, 0.8, 0.7, 0.55, 0.35, 0.15]) ** 2
)
#: Their weights in `noise_log_e`. The first two serve the limits; at a hundredth each their cost to
#: tests of short runs is negligible.
NOISE_WEIGHTS: Floats = np.array([0.01, 0.01, *np.full(8, 0.98 / 8)])

#: Probability with which an interval of the noise in a report misses the true ratio.
INTERVAL_SIGNIFICANCE = 0.01
#: Scales between which `noise_upper` and `noise_lower` search for their limit.
_SMALLEST, _LARGEST = 1e-9, 1e9
#: Level of the test whether units have one ratio; largest quotient of the ends of a sharp interval,
#: and the ratio below which a unit has no noise.
_ALIKE, _SHARP, _NONE = 0.05, 2.0, 0.1
#: Halvings of the logarithm's range by which `limits_of_each` finds its limits.
_HALVINGS = 26

#: Precision ratios over which `excess_log_e` mixes.
EXCESS_PRECISIONS: Floats = 1.0 / np.array([1.05, 1.2, 1.5, 2.0, 4.0, 16.0, 64.0, 256.0]) ** 2


def noise_log_e(count: ArrayLike, sum_squares: ArrayLike) -> Floats:
    r"""Return the log e-value for "the noise is at least as large as claimed".

    With ``x = (r - c) / sigma_t`` and any center ``c`` that the past determines, the process
    ``prod tau^(1/2) exp(-(tau - 1) x^2 / 2)`` has expectation at most one for *any* data term
    and any true noise of at least ``sigma_t``: a Gaussian has the least mass on intervals around
    zero if it is widest and off center (Anderson; own proof of the extension to data). The process
    depends only on the number of terms and the sum of ``x^2``, so these two are its state.

    Formula:
        ``log mean_tau exp(count / 2 * log tau - (tau - 1) / 2 * sum_squares)``, weighted by
        `NOISE_WEIGHTS`

    Args:
        count: Number of coordinates observed so far, any shape.
        sum_squares: Sum of the squared standardized residuals, same shape.

    Returns:
        Log e-value, the broadcast shape of the arguments; flag at ``>= log(1 / significance)``.

    Example:
        >>> round(float(noise_log_e(0, 0.0)), 12)
        0.0
        >>> bool(noise_log_e(400, 400 * 0.64) > 9.2)
        True

    References:
        Anderson, "The integral of a symmetric unimodal function", Proc. AMS 6, 1955. Ville 1939
        and Robbins 1970, doi:10.1214/aoms/1177696786 (mixtures); Ramdas, Grünwald, Vovk and Shafer
        2023, arXiv:2210.01948 (e-processes).
    """
    of_mean = len(NOISE_WEIGHTS) * NOISE_WEIGHTS
    return _scale_log_e(count, sum_squares, NOISE_PRECISIONS, of_mean)


def noise_upper(
    count: ArrayLike, sum_squares: ArrayLike, weights: ArrayLike, significance: float
) -> float:
    r"""Return an upper limit of the noise over its claim, valid at any stopping time.

    The noise is tested against c times the claim with squares over c^2. The e-value increases in
    c, so the rejected values form an interval up to infinity, and its lower end is the limit.
    Several sums enter as the weighted mean of their e-values, so none has to be chosen.

    Proved, for any data: if the noise is at least c times the claim in every step and coordinate,
    the probability that the limit is below c at any look is at most ``significance``. The data,
    which are the rest of a residual's variance, make the limit larger.

    Formula:
        ``inf {c : sum_i weights_i e(count_i, sum_squares_i / c^2) >= 1 / significance}``, e as in
        `noise_log_e` with equal weights of all precisions

    Args:
        count: Number of coordinates observed, of each sum, ``[n]``.
        sum_squares: Sums of the squared residuals over the claimed variance, ``[n]``.
        weights: Weights of the sums, adding up to 1, ``[n]``.
        significance: Probability that the limit is too small.

    Returns:
        The limit; infinity if no scale is rejected, 0 if all are.

    Example:
        >>> round(noise_upper([40_000], [40_000.0], [1.0], 0.025), 3)
        1.013
        >>> noise_upper([0], [0.0], [1.0], 0.025)
        inf

    References:
        As `noise_log_e`; Darling and Robbins 1967, doi:10.1073/pnas.58.1.66 (confidence sequences
        by inversion).
    """
    excess = _excess(count, sum_squares, weights, significance, NOISE_PRECISIONS)
    low, high = np.log(_SMALLEST), np.log(_LARGEST)
    if excess(high) < 0.0:
        return float(np.inf)
    if excess(low) >= 0.0:
        return 0.0
    return float(np.exp(scipy.optimize.brentq(excess, low, high, xtol=1e-9)))


def noise_lower(
    count: ArrayLike, sum_squares: ArrayLike, weights: ArrayLike, significance: float
) -> float:
    """Return a lower limit of the noise over its claim, for readings of noise alone.

    The mirror of `noise_upper`, with precisions below one. Proved for Gaussian noise: if it is at
    most c times the claim in every step and coordinate, the probability that the limit is above c
    at any look is at most ``significance``. Data in the readings make the limit too large.

    Args:
        count: Number of coordinates observed, of each sum, ``[n]``.
        sum_squares: Sums of the squared noise over the claimed variance, ``[n]``.
        weights: Weights of the sums, adding up to 1, ``[n]``.
        significance: Probability that the limit is too large.

    Returns:
        The limit; 0 if no scale is rejected.

    Example:
        >>> round(noise_lower([40_000], [40_000.0], [1.0], 0.025), 3)
        0.988
    """
    excess = _excess(count, sum_squares, weights, significance, 1.0 / NOISE_PRECISIONS)
    low, high = np.log(_SMALLEST), np.log(_LARGEST)
    if excess(low) < 0.0:
        return 0.0
    return float(np.exp(scipy.optimize.brentq(excess, low, high, xtol=1e-9)))


def units_upper(count: ArrayLike, sum_squares: ArrayLike, significance: float) -> float:
    """Return `noise_upper` of several units: half of the stake on all together, half on each.

    Args:
        count: Number of coordinates observed, of each unit, ``[n]``.
        sum_squares: Sums of the squared residuals over the claimed variance, ``[n]``.
        significance: Probability that the limit is too small.

    Returns:
        The limit; infinity if no scale is rejected.
    """
    return noise_upper(*_all_and_each(count, sum_squares), significance)


def chosen_upper(count: float, sum_squares: float, among: float) -> float:
    """Return an upper limit of the noise of one sum that was chosen among several by its readings.

    The limits of all of them hold together with `INTERVAL_SIGNIFICANCE`.

    Args:
        count: Number of coordinates observed.
        sum_squares: Sum of the squared residuals over the claimed variance.
        among: Number of sums among which it was chosen.

    Returns:
        The limit; infinity if no scale is rejected.
    """
    return noise_upper([count], [sum_squares], [1.0], INTERVAL_SIGNIFICANCE / among)


def limits_of_each(
    count: ArrayLike, sum_squares: ArrayLike, significance: float = INTERVAL_SIGNIFICANCE
) -> tuple[Floats, Floats]:
    """Return `noise_lower` and `noise_upper` of each of several sums.

    All upper limits hold together with ``significance``, as those of `chosen_upper`, and so do all
    lower limits if the readings are noise alone.

    Args:
        count: Number of coordinates observed, of each sum, ``[n]``.
        sum_squares: Sums of the squared residuals over the claimed variance, ``[n]``.
        significance: Probability that one of the upper limits is too small.

    Returns:
        The limits, ``[n]`` each, to six digits; 0 and infinity if no scale is rejected.

    Example:
        >>> lower, upper = limits_of_each([4_000, 0], [1_000.0, 0.0])
        >>> lower.round(3).tolist(), upper.round(3).tolist()
        ([0.478, 0.0], [0.524, inf])
    """
    n, s = np.asarray(count, dtype=np.float64), np.asarray(sum_squares, dtype=np.float64)
    level = np.log(len(n) / significance)

    def limit(tau: Floats, *, above: bool) -> Floats:
        def is_below(log_scale: Floats) -> NDArray[np.bool_]:
            rejected = _scale_log_e(n, s * np.exp(-2.0 * log_scale), tau) >= level
            return np.asarray(rejected != above)

        start, end = (np.full(len(n), math.log(scale)) for scale in (_SMALLEST, _LARGEST))
        low, high = bisection(is_below, start, end, _HALVINGS)
        return np.asarray(np.exp(high if above else low))

    upper, lower = limit(NOISE_PRECISIONS, above=True), limit(1.0 / NOISE_PRECISIONS, above=False)
    return np.where(lower > 2.0 * _SMALLEST, lower, 0.0), np.where(
        upper < _LARGEST / 2.0, upper, np.inf
    )


class NoiseInterval(NamedTuple):
    """An interval of the noise over its claim, and the unit with the least if they differ."""

    lower: float
    upper: float
    least_noise: int | None


def noise_interval(count: ArrayLike, sum_squares: ArrayLike, significance: float) -> NoiseInterval:
    """Return a confidence interval of the noise over its claim, valid at any stopping time.

    A confidence sequence. If the noise is Gaussian, independent over coordinates given the past,
    and has one ratio to its claim in all steps and units, the probability that the interval misses
    the ratio at any look is at most ``significance``. So it is valid at the step at which a
    violation stops the training. A chi-square interval for a fixed number of readings is not,
    because at such a step the readings are small by chance. The claim may change during the run:
    each reading is divided by its own claim.

    If units clearly have more than one ratio, the interval is widened to the limits of each, which
    hold at once. Units with so few readings that their own limits differ by more than a factor of
    two are taken to lie between the others.

    Args:
        count: Number of coordinates observed, of each unit (tensor), ``[n]``.
        sum_squares: Sums of the squared noise alone, over the claimed variance, ``[n]``.
        significance: Probability that the interval misses; half of it for each end.

    Returns:
        Lower and upper end, and the unit with the least noise; None if the units may be alike.

    Example:
        >>> lower, upper, _ = noise_interval([4_000], [1_000.0], 0.01)
        >>> round(lower, 3), round(upper, 3)
        (0.478, 0.524)
        >>> noise_interval([4_000, 4_000], [1_000.0, 4_000.0], 0.01).least_noise
        0

    References:
        As `noise_upper`; Bartlett 1937, doi:10.1098/rspa.1937.0109 (whether units are alike).
    """
    n, s = np.asarray(count, dtype=np.float64), np.asarray(sum_squares, dtype=np.float64)
    pooled = [n.sum()], [s.sum()], [1.0], significance / 2
    ends = np.array([[noise_lower(*pooled)], [noise_upper(*pooled)]])
    each = np.array(limits_of_each(n, s, significance / 2))
    sharp = np.flatnonzero(each[1] <= np.maximum(_SHARP * each[0], _NONE))
    least_noise = None
    if not _may_be_alike(n[sharp], s[sharp]):
        ends = np.concatenate([ends, each[:, sharp]], axis=1)
        least_noise = min(sharp.tolist(), key=lambda j: s[j] / n[j])
    return NoiseInterval(float(ends[0].min()), float(ends[1].max()), least_noise)


def _may_be_alike(n: Floats, s: Floats) -> bool:
    """Whether sums of squares may be of noise of one variance, by Bartlett's test at 5 %."""
    if len(n) < 2:
        return True
    s = np.maximum(s, _SMALLEST)
    statistic = n.sum() * np.log(s.sum() / n.sum()) - (n * np.log(s / n)).sum()
    correction = 1.0 + ((1.0 / n).sum() - 1.0 / n.sum()) / (3.0 * (len(n) - 1.0))
    return bool(scipy.stats.chi2.sf(statistic / correction, len(n) - 1) > _ALIKE)


def interval_in_words(lower: float | None, upper: float, at: str = "at any stop") -> str:
    """Return the noise over its claim as text that continues "the noise is", rounded outwards.

    Args:
        lower: Lower end; None if readings may contain data, so that there is none.
        upper: Upper end; both miss with `INTERVAL_SIGNIFICANCE`.
        at: When they are valid.

    Returns:
        The text.

    Example:
        >>> interval_in_words(0.4371, 0.5782)
        '0.43 to 0.58 times the stated (99 % interval at any stop, for Gaussian noise of one ratio)'
        >>> interval_in_words(None, 0.5782)
        'at most 0.58 times the stated (99 % confidence at any stop, for Gaussian noise)'
        >>> interval_in_words(None, 1.2)
        'smaller than stated, by an amount that is not known yet'
    """
    level = f"{100 * (1 - INTERVAL_SIGNIFICANCE):g} %"
    if lower is not None:
        return (
            f"{rounded_down(lower):g} to {rounded_up(upper):g} times the stated ({level} interval "
            f"{at}, for Gaussian noise of one ratio)"
        )
    if not upper < 1.0:
        return "smaller than stated, by an amount that is not known yet"
    return (
        f"at most {rounded_up(upper):g} times the stated ({level} confidence {at}, for "
        "Gaussian noise)"
    )


#: An upper end alone, as `interval_in_words` says it.
ONE_SIDED = re.compile(
    r"at most \S+ times the stated \([^)]*\)|smaller than stated, by an amount [a-z ]* known yet"
)


def rounded_up(value: float) -> float:
    """Round up to two digits, or to as many as keep a number below 1 there."""
    for digits in range(2, 7):
        rounded = _to_digits(value, digits, math.ceil)
        if (rounded < 1.0) == (value < 1.0):
            break
    return rounded


def rounded_down(value: float) -> float:
    """Round down to two digits."""
    return _to_digits(value, 2, math.floor)


def _to_digits(value: float, digits: int, to_whole: Callable[[float], int]) -> float:
    if value <= 0.0 or not math.isfinite(value):
        return value
    places = digits - 1 - math.floor(math.log10(value))
    return to_whole(round(value * 10.0**places, 9)) / 10.0**places


def _all_and_each(count: ArrayLike, sum_squares: ArrayLike) -> tuple[Floats, Floats, Floats]:
    """Return counts, sums of squares and weights of all units together and of each alone."""
    n, s = np.asarray(count, dtype=np.float64), np.asarray(sum_squares, dtype=np.float64)
    weights = np.array([0.5, *np.full(len(n), 0.5 / len(n))])
    return np.array([n.sum(), *n]), np.array([s.sum(), *s]), weights


def _excess(
    count: ArrayLike, sum_squares: ArrayLike, weights: ArrayLike, significance: float, tau: Floats
) -> Callable[[float], float]:
    """Return the log e-value against c times the claim, less its threshold, by log c."""
    n, s, w = np.asarray(count), np.asarray(sum_squares), np.asarray(weights)

    def excess(log_scale: float) -> float:
        values = _scale_log_e(n, s * np.exp(-2.0 * log_scale), tau)
        return float(scipy.special.logsumexp(values, b=w) + np.log(significance))

    return excess


def excess_log_e(count: ArrayLike, sum_squares: ArrayLike) -> Floats:
    """Return the log e-value for "the noise is at most as large as claimed", for noise alone.

    The same mixture as `noise_log_e`, over `EXCESS_PRECISIONS`: true noise x 1.05 up to x 256.

    Args:
        count: Number of coordinates observed so far, any shape.
        sum_squares: Sum of the squared standardized noise, without data, same shape.

    Returns:
        Log e-value, of the broadcast shape; flag at ``>= log(1 / significance)``.

    Example:
        >>> bool(excess_log_e(400, 400 * 1.5) > 9.2)
        True
    """
    return _scale_log_e(count, sum_squares, EXCESS_PRECISIONS)


def _scale_log_e(
    count: ArrayLike, sum_squares: ArrayLike, tau: Floats, weights: ArrayLike = 1.0
) -> Floats:
    """Return the log of the weighted mean over the precisions ``tau``; weights of mean one."""
    n = np.asarray(count, dtype=np.float64)[..., None]
    s = np.asarray(sum_squares, dtype=np.float64)[..., None]
    return log_mean_exp(0.5 * n * np.log(tau) - 0.5 * (tau - 1.0) * s + np.log(weights))


# --- E-processes for Gaussian noise, from its tails and its ties, valid for any data.

#: Levels of `TailBet`, in standard deviations.
LEVELS: Floats = np.arange(0.0, 3.6, 0.25)
#: Stakes of `TailBet`, as fractions of the largest stake that cannot lose all wealth.
TAIL_STAKES: Floats = np.array([0.1, 0.3, 0.9])
#: Number of readings of a step with which `TieBet` compares the others.
COMPARED = 64
#: Distance below which `TieBet` treats two readings as equal, in standard deviations.
TIE = 1e-3
#: Shares of ties on which `TieBet` bets.
TIE_RATES: Floats = np.array([0.3, 0.9])

#: Distance below which values are the same number up to rounding; largest distance of a gap from a
#: multiple of the smallest gap on a lattice.
_EQUAL, _ON_LATTICE = 1e-4, 0.01

_LARGEST_DENSITY = 1.0 / math.sqrt(2.0 * math.pi)


class TailBet:
    r"""E-process for "adding a shift s to the noise is (s / sigma)-GDP", by one-sided events.

    With ``q = P(x > t)``, the event "x + s > t" has a probability of at most
    ``G(q) = Phi(Phi^-1(q) + s)``, for any d. G is concave, so at any ``q*``

    .. math:: \mathbb E\,[1\{x > t - s\} - G'(q^*)\, 1\{x > t\}] \le G(q^*) - G'(q^*)\, q^*.

    The wealth is bet on the gap, coordinate by coordinate, at ``q* = Phi(-t)`` for each level t of
    `LEVELS`, for both tails; the bets are averaged (own proof). Noise with bounded support, or with
    other tails, is rejected even if its standard deviation is right.

    References:
        Dong, Roth and Su, "Gaussian differential privacy", JRSS B 84, 2022, arXiv:1905.02383.
        Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting", JRSS B
        86, 2024, arXiv:2010.09686.
    """

    def __init__(self) -> None:
        self._log_wealth = np.zeros((2, len(LEVELS), len(TAIL_STAKES)))

    def update(self, readings: Floats, shift: float) -> None:
        """Update with the readings of one step.

        Args:
            readings: In units of the claimed standard deviation, finite, ``[n]``.
            shift: s, in the same unit, > 0.
        """
        slope = np.exp(LEVELS * shift - 0.5 * shift**2)
        offset = scipy.special.ndtr(shift - LEVELS) - slope * scipy.special.ndtr(-LEVELS)
        gains = np.stack([1.0 - slope - offset, 1.0 - offset, -offset])
        # Rounding may leave an offset slightly below zero.
        most = 1.0 / np.maximum(-gains.min(axis=0), 1e-9)
        bets = np.log1p(gains[..., None] * most[:, None] * (0.99 * TAIL_STAKES))
        for tail, sign in enumerate((1.0, -1.0)):
            ordered = np.sort(sign * readings)
            above = len(ordered) - np.searchsorted(ordered, LEVELS, side="right")
            reached = len(ordered) - np.searchsorted(ordered, LEVELS - shift, side="right")
            counts = np.stack([above, reached - above, len(ordered) - reached])
            self._log_wealth[tail] += np.sum(counts[..., None] * bets, axis=0)

    @property
    def log_e(self) -> float:
        """Log e-value so far."""
        return float(log_mean_exp(self._log_wealth.ravel()))


class TieBet:
    r"""E-process for "the density of the noise is at most the largest claimed density".

    A reading falls within `TIE` of one of m others with a probability of at most
    ``2 m TIE / sqrt(2 pi)``, for any d and any values of the others (own proof). Noise on a
    lattice, as in low precision, does so again and again. The readings themselves must have at
    least single precision.
    """

    def __init__(self) -> None:
        self._log_wealth = np.zeros(len(TIE_RATES))

    def update(self, readings: Floats) -> None:
        """Update with the readings of one step; some of them are the comparison values.

        Args:
            readings: In units of the claimed standard deviation, finite, ``[n]``.
        """
        stride = max(2, -(-len(readings) // COMPARED))
        compared = np.arange(len(readings)) % stride == 0
        ordered, tested = np.sort(readings[compared]), readings[~compared]
        if not len(tested):
            return
        right = np.searchsorted(ordered, tested)
        gaps = np.minimum(
            np.abs(tested - ordered[np.minimum(right, len(ordered) - 1)]),
            np.abs(tested - ordered[np.maximum(right - 1, 0)]),
        )
        hits = int(np.sum(gaps < TIE))
        chance = 2.0 * len(ordered) * TIE * _LARGEST_DENSITY
        self._log_wealth += hits * np.log(TIE_RATES / chance)
        self._log_wealth += (len(tested) - hits) * np.log((1.0 - TIE_RATES) / (1.0 - chance))

    @property
    def log_e(self) -> float:
        """Log e-value so far."""
        return float(log_mean_exp(self._log_wealth))


def repeated_share(readings: Floats) -> float:
    """Return the fraction of a step's values that occur again at another entry.

    It is 0 if all values are on one lattice: reused numbers are not multiples of one step size, but
    rounded numbers are.

    Args:
        readings: In units of the claimed standard deviation, finite, ``[n]``.

    Returns:
        The fraction, in [0, 1].

    Example:
        >>> repeated_share(np.array([0.3, -1.21, 0.3, 0.77]))
        0.5
        >>> repeated_share(np.array([1.0, -1.0, 1.0, 3.0]))
        0.0
    """
    ordered = np.sort(readings[np.abs(readings) > _EQUAL])  # zeros are not noise
    gaps = np.diff(ordered)
    apart = gaps[gaps >= _EQUAL]
    if len(apart):
        multiples = apart / apart.min()
        if len(apart) > 1 and np.abs(multiples - np.round(multiples)).max() < _ON_LATTICE:
            return 0.0
    tied = gaps < _EQUAL
    twice = np.append(tied, False) | np.append(False, tied)
    return float(twice.sum() / max(len(readings), 1))


def sign_log_e(positive: int, negative: int) -> float:
    r"""Return the log e-value for "the noise is as often above zero as below", for any scale.

    Args:
        positive: Number of readings above zero.
        negative: Number of readings below zero.

    Returns:
        The log e-value.

    Formula:
        ``log( B(1 + positive, 1 + negative) 2^(positive + negative) )``: fair coins against a
        uniform prior.

    Example:
        >>> round(sign_log_e(0, 0), 12)
        0.0
        >>> sign_log_e(140, 60) > 9.2
        True
    """
    together = positive + negative
    return float(scipy.special.betaln(1.0 + positive, 1.0 + negative)) + together * math.log(2.0)


# --- E-values for noise of the claimed size in every single entry, and their mean.


class EntryBets:
    """E-process for "no entry has less noise than claimed, or repeats its noise".

    Each entry is compared with three predictable centers: zero, the mean of its earlier readings,
    and the latest reading. Each sum of squares has an e-value (`noise_log_e`, valid for any data,
    and for noise of any larger size), and all of them are averaged: testing one of a thousand
    entries costs as much as a thousandth of the significance. The average of e-values is an e-value
    (Vovk and Wang 2021, arXiv:1912.06116).

    Args:
        entries: Number of readings in a step, n.
    """

    def __init__(self, entries: int) -> None:
        self._centre = PredictableCentre((entries,))
        self._latest = np.zeros(entries)
        self._squares = np.zeros((3, entries))
        self.steps = 0

    def update(self, readings: Floats) -> None:
        """Update with a step.

        Args:
            readings: In units of the claimed standard deviation, finite, ``[n]``.
        """
        centres = np.stack([np.zeros_like(self._latest), self._centre.value, self._latest])
        self._squares += (readings - centres) ** 2
        self._centre.update(readings)
        self._latest = np.array(readings, dtype=np.float64)
        self.steps += 1

    @property
    def entry_log_e(self) -> Floats:
        """Log e-value of each entry, ``[n]``."""
        return log_mean_exp(noise_log_e(self.steps, self._squares), axis=0)

    @property
    def ratios(self) -> Floats:
        """Smallest root mean square of each entry about one of the centers, ``[n]``."""
        return np.asarray(np.sqrt(self._squares.min(axis=0) / max(self.steps, 1)))


def quiet_entries(entry_log_e: Floats, threshold: float) -> NDArray[np.intp]:
    """Return the positions of the entries whose own e-value suffices to flag their mean.

    Args:
        entry_log_e: Log e-value of each entry, ``[n]``.
        threshold: Log e-value at which the mean of the e-values flags.

    Returns:
        Positions, increasing.
    """
    return np.flatnonzero(entry_log_e >= threshold + np.log(len(entry_log_e)))


# --- Test whether a step's noise recurs: the nearest past step, found and tested on two halves.

#: Number of coordinates used to find the nearest step; the others test it.
SEARCHED = 32


class NoisePast:
    """Readings of the latest steps, in single precision.

    Args:
        kept: Number of steps to keep.
    """

    def __init__(self, kept: int = 4096) -> None:
        self._kept = kept
        #: Coordinates used to find the nearest step, and the other coordinates.
        self._parts: tuple[NDArray[np.intp], NDArray[np.intp]] | None = None
        self._searched = np.zeros((0, 0), dtype=np.float32)
        self._tested = np.zeros((0, 0), dtype=np.float32)
        self._squares = np.zeros(0, dtype=np.float32)
        self._number = 0
        self._steps = np.zeros(0, dtype=np.int64)
        #: Number of the step that was nearest to the latest one; -1 without a past.
        self.nearest = -1
        #: -1 if it was its negative that was nearest.
        self.sign = 1.0
        #: Root mean square of the latest differences from the nearest step, over that of new
        #: noise of the claimed size; infinite without a past.
        self.difference_ratio = math.inf

    def __len__(self) -> int:
        return min(self._number, self._kept)

    def add(self, readings: Floats, step: int | None = None) -> None:
        """Store the readings of a step.

        Args:
            readings: In units of the claimed standard deviation, ``[n]``, the same n at every step.
            step: Number of the step; None if every step is stored, to count them.
        """
        searched, tested = self._divided(readings)
        at = self._number % self._kept
        if at >= len(self._squares):
            more = min(max(16, len(self._squares)), self._kept - len(self._squares))
            self._searched = _longer(self._searched, more, len(searched))
            self._tested = _longer(self._tested, more, len(tested))
            self._squares = np.concatenate([self._squares, np.zeros(more, dtype=np.float32)])
            self._steps = np.concatenate([self._steps, np.zeros(more, dtype=np.int64)])
        self._searched[at], self._tested[at] = searched, tested
        self._squares[at] = searched @ searched
        self._steps[at] = self._number if step is None else step
        self._number += 1

    def recurrence_log_e(self, readings: Floats) -> tuple[float, int]:
        """Return the log e-value of one step for "this noise is new", and the age of its match.

        The past step that is nearest on some coordinates, with either sign, is the center of the
        others. It depends on the past, and on noise that is independent of the tested noise, so the
        differences are at least as large as the noise (`noise_log_e`; own proof, on
        arXiv:2210.01948).

        Args:
            readings: In units of the claimed standard deviation, ``[n]``.

        Returns:
            The log e-value, 0 without a past; and the age of the match in kept steps, 0 without a
            past.
        """
        size = len(self)
        if not size or len(readings) < 2:
            return 0.0, 0
        searched, tested = self._divided(readings)
        # Squared distances up to a constant, from the past or its negative.
        products = self._searched[:size] @ searched
        nearest = int(np.argmin(self._squares[:size] - 2.0 * np.abs(products)))
        self.sign = float(np.copysign(1.0, products[nearest]))
        gap = np.asarray(tested - self.sign * self._tested[nearest], dtype=np.float64)
        plain = np.asarray(tested - self._tested[nearest], dtype=np.float64)
        self.difference_ratio = math.sqrt(float(plain @ plain) / (2.0 * len(plain)))
        self.nearest = int(self._steps[nearest])
        age = (self._number - 1 - nearest) % self._kept + 1
        return float(noise_log_e(len(gap), gap @ gap)), age

    def _divided(self, readings: Floats) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the search coordinates, about `SEARCHED` and at most half, and the others."""
        if self._parts is None:
            stride = max(2, len(readings) // SEARCHED)
            chosen = np.arange(len(readings)) % stride == 0
            self._parts = np.flatnonzero(chosen), np.flatnonzero(~chosen)
        single = readings.astype(np.float32)
        return single[self._parts[0]], single[self._parts[1]]


def _longer(rows: NDArray[np.float32], more: int, width: int) -> NDArray[np.float32]:
    added = np.zeros((more, width), dtype=np.float32)
    return np.concatenate([rows, added]) if len(rows) else added
