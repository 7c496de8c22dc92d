"""Lower bounds on epsilon from an attack's error counts.

Each bound holds for the game in which its counts were made: observations that are independent
given the worlds, with a number of observations, a threshold and a direction ("in if the score is
large") that were fixed before looking. FNR is the type II error rate with the canary in, FPR the
type I error rate with the canary out. Without data every bound is 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_audit.stats._arguments import (
    Floats,
    closed_unit,
    delta_or_zero,
    each,
    like_input,
    significance_level,
)
from lightning_audit.stats._confusion import ConfusionCounts as ConfusionCounts
from lightning_audit.stats.bounds.intervals import (
    clopper_pearson_lower,
    clopper_pearson_upper,
    jeffreys_lower,
    jeffreys_upper,
)
from lightning_audit.stats.bounds.ratio import katz_log_lower

__all__ = [
    "ConfusionCounts",
    "epsilon_at_rates",
    "epsilon_clopper_pearson",
    "epsilon_clopper_pearson_interval",
    "epsilon_jeffreys",
    "epsilon_jeffreys_interval",
    "epsilon_katz",
    "katz_log_ratios",
]

Limit = Callable[[NDArray[Any], NDArray[Any], float], float | Floats]


def epsilon_at_rates(
    fnr: float | NDArray[Any], fpr: float | NDArray[Any], delta: float
) -> float | Floats:
    r"""Return the smallest epsilon whose (epsilon, delta)-region holds an attack's error rates.

    (epsilon, delta)-DP means that no attack has rates outside the region, on either side of the
    diagonal: the mirror image is the same attack with its guesses inverted. For true rates this is
    a lower bound on epsilon; for observed rates it is only an estimate.

    .. math:: \max\Bigl\{0,\; \ln\frac{1-\delta-\mathrm{FPR}}{\mathrm{FNR}},\;
        \ln\frac{1-\delta-\mathrm{FNR}}{\mathrm{FPR}},\;
        \ln\frac{\mathrm{FPR}-\delta}{1-\mathrm{FNR}},\;
        \ln\frac{\mathrm{FNR}-\delta}{1-\mathrm{FPR}}\Bigr\}

    Both fractions of a side are one plus the same gap over a rate. So only the smaller rate counts,
    and no digits cancel near epsilon = 0.

    Args:
        fnr: False negative rate in [0, 1], a number or an array.
        fpr: False positive rate in [0, 1]. Broadcast against ``fnr``.
        delta: Delta in [0, 1).

    Returns:
        Epsilon >= 0, infinity if no epsilon is enough: a float for numbers, an array for arrays.

    Raises:
        ValueError: If a rate is not in [0, 1], or ``delta`` is not in [0, 1).

    Example:
        >>> round(epsilon_at_rates(0.17622, 0.03622, 1e-5), 3)
        3.124
        >>> epsilon_at_rates(0.5, 0.0, 1e-5)
        inf

    References:
        Kairouz, Oh and Viswanath, "The composition theorem for differential privacy", ICML 2015,
        arXiv:1311.0776, Theorem 2.1. Zanella-Béguelin et al., "Bayesian estimation of differential
        privacy", ICML 2023, arXiv:2206.05199, Theorem 2.2.
    """
    x, y = np.broadcast_arrays(each(closed_unit, "fnr", fnr), each(closed_unit, "fpr", fpr))
    d = delta_or_zero(delta)
    return like_input(np.maximum(_epsilon_below(x, y, d), _epsilon_above(x, y, d)))


def epsilon_clopper_pearson(
    counts: ConfusionCounts, delta: float, significance: float
) -> float | Floats:
    r"""Return a lower bound on epsilon from Clopper-Pearson limits of both error rates.

    The bound exceeds the true epsilon with probability at most ``significance``, for every
    mechanism, sample size and delta: each rate's upper limit fails with half of it, and the
    smallest epsilon over the rates up to both limits is at their corner.

    .. math:: \ln\frac{1 - \delta - \max(\mathrm{FNR}_+, \mathrm{FPR}_+)}
        {\min(\mathrm{FNR}_+, \mathrm{FPR}_+)}, \qquad
        0 \text{ if } \mathrm{FNR}_+ + \mathrm{FPR}_+ \ge 1 - \delta

    The direction of the attack is fixed beforehand: an attack with more wrong than right guesses
    gets 0, not the bound of the inverted attack.

    Args:
        counts: Outcomes at a threshold fixed beforehand, any shape. At the best of many thresholds
            on the same data, the probability of failure is larger than stated.
        delta: Delta in [0, 1).
        significance: Probability in (0, 1) with which the bound may fail, for both rates together.

    Returns:
        The bound >= 0: a float for one threshold, else an array of the shape of ``counts``.

    Raises:
        ValueError: If ``delta`` is not in [0, 1) or ``significance`` not in (0, 1).

    Example:
        A perfect attack in 1,000 trials a world:

        >>> counts = ConfusionCounts(fn=0, tp=1000, fp=0, tn=1000)
        >>> round(epsilon_clopper_pearson(counts, delta=1e-5, significance=0.1), 2)
        5.81

    References:
        Zanella-Béguelin et al., "Bayesian estimation of differential privacy", ICML 2023,
        arXiv:2206.05199, equation 1 and footnote 2. Nasr et al., "Tight auditing of differentially
        private machine learning", USENIX Security 2023, arXiv:2302.07956.
    """
    return _corner(counts, delta, significance, clopper_pearson_upper)


def epsilon_jeffreys(counts: ConfusionCounts, delta: float, significance: float) -> float | Floats:
    r"""Return a lower estimate of epsilon from Jeffreys limits of both error rates.

    Like `epsilon_clopper_pearson`, with the same arguments, result and errors, but with the upper
    ends of Jeffreys intervals. This is not a proved bound: Jeffreys limits have their level on
    average over rates, not at each rate.

    Example:
        >>> counts = ConfusionCounts(fn=0, tp=1000, fp=0, tn=1000)
        >>> round(epsilon_jeffreys(counts, delta=1e-5, significance=0.1), 2)
        6.25

    References:
        Zanella-Béguelin et al., "Bayesian estimation of differential privacy", ICML 2023,
        arXiv:2206.05199, section 3.1.
    """
    return _corner(counts, delta, significance, jeffreys_upper)


def epsilon_clopper_pearson_interval(
    counts: ConfusionCounts, delta: float, significance: float
) -> tuple[float | Floats, float | Floats]:
    r"""Return an interval for the epsilon of one attack from two-sided Clopper-Pearson limits.

    The interval holds the smallest epsilon of the true rates with probability at least
    1 - ``significance``. The upper end bounds what this attack shows, not what the mechanism leaks.

    It is the range of `epsilon_at_rates` over the rectangle of both intervals, each limit at a
    quarter of ``significance``. Epsilon falls with either rate below the diagonal and rises above
    it. So both extremes are at the two diagonal corners, or are 0 if the rectangle reaches the band
    |FNR + FPR - 1| <= delta.

    Args:
        counts: As in `epsilon_clopper_pearson`.
        delta: Delta in [0, 1).
        significance: Probability in (0, 1) with which the interval may fail.

    Returns:
        Lower and upper end >= 0, the upper one possibly infinite; floats for one threshold, else
        arrays of the shape of ``counts``.

    Raises:
        ValueError: As in `epsilon_clopper_pearson`.

    Example:
        >>> counts = ConfusionCounts(fn=35, tp=65, fp=25, tn=75)
        >>> low, high = epsilon_clopper_pearson_interval(counts, delta=0.05, significance=0.05)
        >>> round(low, 3), round(high, 3)
        (0.295, 1.489)

    References:
        Zanella-Béguelin et al., "Bayesian estimation of differential privacy", ICML 2023,
        arXiv:2206.05199, section 3.2.
    """
    return _rectangle(counts, delta, significance, clopper_pearson_lower, clopper_pearson_upper)


def epsilon_jeffreys_interval(
    counts: ConfusionCounts, delta: float, significance: float
) -> tuple[float | Floats, float | Floats]:
    """Return an interval for the epsilon of one attack from two-sided Jeffreys limits.

    Like `epsilon_clopper_pearson_interval`, with the same arguments, result and errors, but with
    Jeffreys limits, and so without its guarantee: ``significance`` is the average failure rate.

    Example:
        >>> counts = ConfusionCounts(fn=35, tp=65, fp=25, tn=75)
        >>> low, high = epsilon_jeffreys_interval(counts, delta=0.05, significance=0.05)
        >>> round(low, 3), round(high, 3)
        (0.321, 1.456)
    """
    return _rectangle(counts, delta, significance, jeffreys_lower, jeffreys_upper)


def katz_log_ratios(
    counts: ConfusionCounts, significance: float
) -> tuple[float | Floats, float | Floats]:
    """Return lower limits of ln(TPR / FPR) and ln(TNR / FNR), each at the whole ``significance``.

    Under pure epsilon-DP both true log ratios are at most epsilon. The limits are asymptotic, as in
    `lightning_audit.stats.bounds.ratio.katz_log_lower`.

    Args:
        counts: Outcomes at a threshold fixed beforehand, any shape.
        significance: Probability in (0, 1) with which each limit may fail, for large counts.

    Returns:
        Both limits, -inf if one of their counts is zero; floats for one threshold, else arrays.

    Raises:
        ValueError: If ``significance`` is not in (0, 1).

    Example:
        >>> counts = ConfusionCounts(fn=35, tp=65, fp=25, tn=75)
        >>> [round(limit, 4) for limit in katz_log_ratios(counts, significance=0.05)]
        [0.6461, 0.5187]

    References:
        Katz et al., Biometrics 34, 1978, doi:10.2307/2530610. Lu et al., "A general framework for
        auditing differentially private machine learning", NeurIPS 2022, arXiv:2210.08643.
    """
    positive = katz_log_lower(counts.tp, counts.n_in, counts.fp, counts.n_out, significance)
    negative = katz_log_lower(counts.tn, counts.n_out, counts.fn, counts.n_in, significance)
    return positive, negative


def epsilon_katz(counts: ConfusionCounts, significance: float) -> float | Floats:
    """Return an asymptotic lower bound on epsilon at delta = 0, from log ratios of the rates.

    The bound is the larger of both log ratios, each at half of ``significance``. It has its level
    only in the limit of large counts, and only for pure DP: a mechanism that is (epsilon, delta)-DP
    with delta > 0 may exceed it. It is not monotone at small counts: with k errors of n and
    k (n - k) / n below z^2 / 4, one error less widens the limit by more than it moves it.

    Args:
        counts: As in `katz_log_ratios`.
        significance: Probability in (0, 1) with which the bound may fail, for large counts.

    Returns:
        The bound >= 0: a float for one threshold, else an array of the shape of ``counts``.

    Raises:
        ValueError: If ``significance`` is not in (0, 1).

    Example:
        >>> round(epsilon_katz(ConfusionCounts(fn=35, tp=65, fp=25, tn=75), significance=0.1), 4)
        0.6461
    """
    ratios = katz_log_ratios(counts, significance_level(significance) / 2)
    return like_input(np.maximum(np.maximum(*ratios), 0.0))


def _epsilon_below(x: Floats, y: Floats, delta: float) -> Floats:
    """Return the part of `epsilon_at_rates` that errors below the diagonal refute, 0 above it."""
    return _log_ratio(1.0 - (x + y) - delta, np.minimum(x, y))


def _epsilon_above(x: Floats, y: Floats, delta: float) -> Floats:
    return _log_ratio(x + y - 1.0 - delta, 1.0 - np.maximum(x, y))


def _log_ratio(gap: Floats, rate: Floats) -> Floats:
    """Return ln((rate + gap) / rate), 0 for a gap <= 0."""
    gap = np.maximum(gap, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        # For a rate near zero the quotient of the first form would overflow.
        large = np.log(rate + gap) - np.log(rate)
        small = np.log1p(gap / np.where(gap < rate, rate, np.inf))
    return np.where(gap < rate, small, np.where(gap > 0, large, 0.0))


def _corner(
    counts: ConfusionCounts, delta: float, significance: float, upper: Limit
) -> float | Floats:
    d, level = delta_or_zero(delta), significance_level(significance) / 2
    return like_input(_epsilon_below(*_limits(counts, level, upper), d))


def _rectangle(
    counts: ConfusionCounts, delta: float, significance: float, lower: Limit, upper: Limit
) -> tuple[float | Floats, float | Floats]:
    d, level = delta_or_zero(delta), significance_level(significance) / 4
    low, high = _limits(counts, level, lower), _limits(counts, level, upper)
    # Below the diagonal the least epsilon is at the upper corner, above it at the lower one; each
    # form is 0 on the other side.
    least = np.maximum(_epsilon_below(*high, d), _epsilon_above(*low, d))
    most = np.maximum(_epsilon_below(*low, d), _epsilon_above(*high, d))
    return like_input(least), like_input(most)


def _limits(counts: ConfusionCounts, level: float, limit: Limit) -> tuple[Floats, Floats]:
    """Return limits of FNR and of FPR."""
    fnr = limit(counts.fn, counts.n_in, level)
    return np.asarray(fnr), np.asarray(limit(counts.fp, counts.n_out, level))
