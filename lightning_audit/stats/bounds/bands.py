"""Simultaneous confidence bands: upper limits of an error rate at all thresholds at once."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Literal

import numpy as np
from scipy import optimize, special

from lightning_audit import _validate
from lightning_audit.stats._arguments import Floats
from lightning_audit.stats._beta import stirling_error
from lightning_audit.stats.bounds.intervals import clopper_pearson_upper

__all__ = ["Band", "berk_jones_level", "dkw_half_width", "simultaneous_upper_limits"]

Band = Literal["berk_jones", "dkw"]

_ADVICE = "it is the probability with which the band may fail anywhere"
# Poisson counts are followed within this many standard deviations, and a few more for small means:
# the truncated probability is below 1e-20.
_REACH, _EXTRA = 10.0, 30
# The crossing probability is one minus a probability with an error of at most 1e-12.
_SMALLEST = 1e-8
# Observations up to which the Berk-Jones level is computed (one second), and the spacing of the
# ranks that are compared for more observations, in standard deviations of a rank.
_LARGEST, _SPACING = 10_000, 0.5


@lru_cache(maxsize=256)
def berk_jones_level(n: int, significance: float) -> float:
    r"""Return the level at which Clopper-Pearson upper limits hold at all thresholds at once.

    For n independent observations of any distribution F, with probability at least ``1 -
    significance`` (exactly that if F is continuous), F is at no threshold above the Clopper-Pearson
    upper limit of its count at the returned level. This inverts the one-sided Berk-Jones test.

    .. math:: \gamma_n = \sup\{\gamma : \Pr[U_{(i)} \le b_i(\gamma),\ i = 1 \dots n]
        \ge 1 - \text{significance}\}, \qquad b_i = I^{-1}_{1 - \gamma}(i,\, n - i + 1)

    with U_(i) the order statistics of n uniform numbers. The probability is that of a Poisson
    process staying above a staircase, given its total, computed step by step in O(n^1.5). It takes
    about 0.02 s for n = 500 and 0.4 s for n = 5000; results are cached.

    Args:
        n: Number of observations, >= 1.
        significance: Probability in [1e-8, 1) with which the band may fail.

    Returns:
        The level in (0, significance], to a relative error of 1e-8 or 1e-12 / significance,
        whichever is larger.

    Raises:
        ValueError: If ``n`` is not a whole number >= 1 or ``significance`` is not in [1e-8, 1).

    Example:
        >>> f"{berk_jones_level(100, 0.025):.3e}"
        '1.094e-03'
        >>> round(berk_jones_level(1, 0.05), 10)
        0.05

    References:
        Berk and Jones, "Goodness-of-fit test statistics that dominate the Kolmogorov statistics",
        Z. Wahrscheinlichkeitstheorie 47, 1979, doi:10.1007/BF00533250. Moscovich and Nadler, "Fast
        calculation of boundary crossing probabilities for Poisson processes", Statistics and
        Probability Letters 123, 2017, arXiv:1503.04363.
    """
    n = _validate.positive_int("n", n)
    significance = _validate.open_unit("significance", significance, _ADVICE)
    if significance < _SMALLEST:
        raise ValueError(
            f"significance={significance!r} must be in [{_SMALLEST}, 1) for a Berk-Jones band; "
            "use the DKW band for smaller ones."
        )
    if n == 1:
        return significance

    def excess(log_level: float) -> float:
        return float(np.log(_crossing(n, np.exp(log_level)) / significance))

    # Crossing somewhere is at least as likely as at one rank, and at most n times as likely.
    low, high = np.log(significance / n), np.log(significance)
    return float(np.exp(optimize.brentq(excess, low, high, xtol=1e-9, rtol=1e-12)))


def dkw_half_width(n: int, significance: float) -> float:
    r"""Return the half width of the one-sided Dvoretzky-Kiefer-Wolfowitz band.

    For n independent observations of any distribution F, with probability at least ``1 -
    significance``, F exceeds its empirical value at no threshold by more than the half width.

    .. math:: w = \sqrt{\ln(1 / \text{significance}) / (2 n)}

    Args:
        n: Number of observations, >= 1.
        significance: Probability in (0, 1/2] with which the band may fail; above 1/2 the
            inequality with constant one is false.

    Returns:
        The half width > 0, in units of probability.

    Raises:
        ValueError: If ``n`` is not a whole number >= 1 or ``significance`` is not in (0, 1/2].

    Example:
        >>> round(dkw_half_width(1000, 0.025), 6)
        0.042947

    References:
        Massart, "The tight constant in the Dvoretzky-Kiefer-Wolfowitz inequality", Annals of
        Probability 18, 1990, doi:10.1214/aop/1176990746.
    """
    n = _validate.positive_int("n", n)
    if _validate.open_unit("significance", significance, _ADVICE) > 0.5:
        raise ValueError(
            f"significance={significance!r} must be in (0, 1/2] for a one-sided DKW band; "
            "use the Berk-Jones band for larger ones."
        )
    return float(np.sqrt(-np.log(significance) / (2 * n)))


@lru_cache(maxsize=64)
def simultaneous_upper_limits(n: int, significance: float, band: Band) -> Floats:
    """Return upper limits of an error rate by its count, valid at all thresholds at once.

    With probability at least ``1 - significance`` the error rate at *every* threshold is at most
    the limit for its number of errors, so the threshold may be chosen afterwards.

    Args:
        n: Number of observations, >= 0.
        significance: Probability with which the band may fail; see `berk_jones_level` and
            `dkw_half_width`.
        band: "berk_jones" is narrow for small rates, "dkw" has the same width everywhere. With
            more than 10,000 observations "berk_jones" takes Clopper-Pearson limits at every half
            standard deviation of the counts, by Bonferroni's inequality: this is fast, and wider
            by a quarter of a width that is small by then.

    Returns:
        The limits for 0, ..., n errors in [0, 1], ``[n + 1]``, read-only.

    Raises:
        ValueError: If an argument is out of its range.

    Example:
        >>> simultaneous_upper_limits(5, 0.05, "berk_jones").round(3)
        array([0.581, 0.762, 0.884, 0.963, 0.997, 1.   ])
        >>> simultaneous_upper_limits(5, 0.05, "dkw").round(3)
        array([0.547, 0.747, 0.947, 1.   , 1.   , 1.   ])
    """
    _validate.one_of("band", band, ("berk_jones", "dkw"))
    counts = np.arange(n + 1)
    if n == 0:
        limits = np.ones(1)
    elif band == "dkw":
        limits = np.minimum(counts / n + dkw_half_width(n, significance), 1.0)
    elif n > _LARGEST:
        limits = _limits_at_some(n, significance)
    else:
        limits = np.asarray(clopper_pearson_upper(counts, n, berk_jones_level(n, significance)))
    # The cache returns the same array again.
    limits.flags.writeable = False
    return limits


def _limits_at_some(n: int, significance: float) -> Floats:
    """Return upper limits for all counts from those of some, each at its share of significance."""
    _validate.open_unit("significance", significance, _ADVICE)
    # On this scale a count's standard deviation is constant, half of 1/sqrt(n).
    turns = math.ceil(np.pi * math.sqrt(n) / _SPACING)
    some = np.unique(np.floor(n * np.sin(np.linspace(0.0, np.pi / 2, turns + 1)) ** 2))
    some = some[some < n]
    limits = np.append(clopper_pearson_upper(some, n, significance / len(some)), 1.0)
    # The limit for a larger count is valid for a smaller one: true rates rise with the threshold.
    return limits[np.searchsorted(some, np.arange(n + 1))]


def _crossing(n: int, level: float) -> float:
    """Return the probability that some uniform order statistic exceeds its upper quantile.

    A Poisson process of rate n on [0, 1], given its total n, is a uniform sample: all order
    statistics are within their bounds if the count at b_i is at least i, for every i. The
    distribution of the count is propagated from bound to bound, without counts that fell below.
    """
    i = np.arange(1, n + 1)
    bounds = special.betainccinv(i, n - i + 1.0, level)
    means = n * np.diff(bounds, prepend=0.0, append=1.0)
    log_factorial = special.gammaln(np.arange(n + 2) + 1.0)
    # mass[j] is the probability of a count of first + j with no crossing so far.
    mass, first = np.ones(1), 0
    for step, mean in enumerate(means):
        reach = int(mean + _REACH * np.sqrt(mean)) + _EXTRA
        k = np.arange(min(reach, n - first) + 1)
        arrivals = np.exp(special.xlogy(k, mean) - mean - log_factorial[k])
        mass = np.convolve(mass, arrivals)
        if step == n:
            break
        mass, first = mass[step + 1 - first :], step + 1
        expected = n * bounds[step]
        last = min(n, int(expected + _REACH * np.sqrt(expected)) + _EXTRA)
        mass = mass[: max(last - first, 0) + 1]
    # The Poisson probability of the mean, without a logarithm that loses digits.
    at_mean = np.exp(-stirling_error(np.asarray(n))) / np.sqrt(2 * np.pi * n)
    return float(1.0 - mass[n - first] / at_mean)
