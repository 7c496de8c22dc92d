r"""Lower bounds on epsilon and mu from an attack's error counts.

**Lower bounds on the mu of Gaussian DP from an attack's error counts.** They refute "mu-GDP" for
any mechanism. Converted to an epsilon they bound that of a Gaussian mechanism only: a Laplace
mechanism of epsilon 1 is not 1-GDP, and far from its Gaussian epsilon.

**Lower bounds on epsilon from an attack's error counts.** Each bound holds for the game in which
its counts were made: observations that are independent given the worlds, with a number of
observations, a threshold and a direction ("in if the score is large") that were fixed before
looking. FNR is the type II error rate with the canary in, FPR the type I error rate with the canary
out. Without data every bound is 0.

**Lower bounds on the epsilon of a subsampled step, from guesses at a coin known to the auditor.**
The game: given a step's gradient, guess whether the canary is in the data, from which it joins the
batch with probability q. Take a guess whose error rates are FNR and FPR if the auditor *knows*
whether the canary is in the batch. In this game its rates are

.. math:: \mathrm{FPR}_q = \mathrm{FPR}, \qquad
    \mathrm{FNR}_q = q\, \mathrm{FNR} + (1 - q)(1 - \mathrm{FPR})

exactly, as the coin by which the canary joins is independent of everything else. So the game need
not be played: limits of the known coin's rates are converted to limits of this game's rates, which
is sharper than drawing members at random and counting. Both new rates rise with FPR and FNR
wherever they are used below, so upper limits give valid bounds (own proof, below).

References:
    Dong, Roth and Su, "Gaussian differential privacy", JRSS B 84, 2022, arXiv:1905.02383, section
    4: the subsampled trade-off function. Kairouz, Oh and Viswanath, "The composition theorem for
    differential privacy", ICML 2015, arXiv:1311.0776, Theorem 2.1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from lightning_audit import _validate
from lightning_audit.stats._arguments import ConfusionCounts as ConfusionCounts
from lightning_audit.stats._arguments import (
    Floats,
    closed_unit,
    delta_or_zero,
    each,
    like_input,
    significance_level,
)
from lightning_audit.stats.binomial import (
    clopper_pearson_lower,
    clopper_pearson_upper,
    jeffreys_lower,
    jeffreys_upper,
    katz_log_lower,
)
from lightning_audit.stats.gaussian import distance_of_bayes_error
from lightning_audit.stats.tradeoff import SubsampledGaussianTradeoff

# --- Lower bounds on epsilon from an attack's error counts.

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
    `lightning_audit.stats.binomial.katz_log_lower`.

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


# --- Lower bounds on the mu of Gaussian DP from an attack's error counts.

# Hoeffding's inequality ends one below the mean, and a binomial variable with a rate of at most 1/2
# is below its mean with a probability above this one.
_LARGEST_POOLED_SIGNIFICANCE = 0.25


def mu_clopper_pearson(counts: ConfusionCounts, significance: float) -> float | Floats:
    r"""Return a lower bound on mu of Gaussian DP from Clopper-Pearson limits of both error rates.

    The bound exceeds the least mu for which the mechanism is mu-GDP with probability at most
    ``significance``. Each rate's limit uses half of it; `mu_pooled_clopper_pearson` needs no
    division, and is the better choice unless the rates are very different.

    .. math:: \mu_- = \max\{0,\; -\Phi^{-1}(\mathrm{FNR}_+) - \Phi^{-1}(\mathrm{FPR}_+)\}

    Args:
        counts: Outcomes at a threshold fixed beforehand, any shape.
        significance: Probability in (0, 1) with which the bound may fail, for both rates together.

    Returns:
        The bound >= 0: a float for one threshold, else an array of the shape of ``counts``.

    Raises:
        ValueError: If ``significance`` is not in (0, 1).

    Example:
        >>> counts = ConfusionCounts(fn=10, tp=990, fp=5, tn=995)
        >>> round(mu_clopper_pearson(counts, significance=0.05), 4)
        4.3591

    References:
        Nasr et al., "Tight auditing of differentially private machine learning", USENIX Security
        2023, arXiv:2302.07956, equation 12.
    """
    level = significance_level(significance) / 2
    fnr, fpr = _limits(counts, level, clopper_pearson_upper)
    return like_input(np.maximum(-scipy.special.ndtri(fnr) - scipy.special.ndtri(fpr), 0.0))


def mu_pooled_clopper_pearson(counts: ConfusionCounts, significance: float) -> float | Floats:
    r"""Return a lower bound on mu of Gaussian DP from one limit of the pooled error rate.

    The bound exceeds the least mu for which the mechanism is mu-GDP with probability at most
    ``significance``. Under mu-GDP no test has a mean error below that of distinguishing N(0, 1)
    from N(mu, 1), so the expected number of errors of any guesses is at least

    .. math:: \min_t\; n_{in} \Phi(t - \mu) + n_{out} \Phi(-t), \qquad
        = 2 n\, \Phi(-\mu / 2) \text{ for } n_{in} = n_{out} = n .

    Errors are independent, with rates that may differ between worlds and between steps. By
    Hoeffding's inequality such a sum is at most as likely to be small as a binomial variable with
    the same mean. So one Clopper-Pearson limit of the pooled errors is exact (own proof, above),
    mu_- = -2 Phi^-1(CP_+(FN + FP; 2 n)), and the same with the Bayes error for unequal sizes.

    Args:
        counts: Outcomes at a threshold fixed beforehand, any shape; midway between the worlds is
            the best one.
        significance: Probability in (0, 1/4] with which the bound may fail. Hoeffding's inequality
            covers the tail only, so nothing is proved above 1/4.

    Returns:
        The bound >= 0: a float for one threshold, else an array of the shape of ``counts``. It is 0
        if a world was never observed.

    Raises:
        ValueError: If ``significance`` is not in (0, 1/4].

    Example:
        >>> counts = ConfusionCounts(fn=10, tp=990, fp=5, tn=995)
        >>> round(mu_pooled_clopper_pearson(counts, significance=0.05), 4)
        4.5452

    References:
        Hoeffding, "On the distribution of the number of successes in independent trials", Annals of
        Mathematical Statistics 27, 1956, doi:10.1214/aoms/1177728178, Theorem 4. Greenberg and
        Mohri, "Tight lower bound on the probability of a binomial exceeding its expectation",
        Statistics and Probability Letters 86, 2014, arXiv:1306.1433 (for the limit of 1/4). Dong,
        Roth and Su, "Gaussian differential privacy", JRSS B 84, 2022, arXiv:1905.02383.
    """
    level = significance_level(significance)
    if level > _LARGEST_POOLED_SIGNIFICANCE:
        raise ValueError(
            f"significance={significance!r} must be in (0, 1/4] for pooled counts; "
            "use mu_clopper_pearson for a larger one"
        )
    total = counts.n_in + counts.n_out
    error = np.asarray(clopper_pearson_upper(counts.fn + counts.fp, total, level))
    # Without observations any weight will do: the limit of 1 on the error gives a bound of 0.
    weight = counts.n_in / np.maximum(total, 1)
    mu = np.zeros(error.shape)
    both = (counts.n_in > 0) & (counts.n_out > 0)
    mu[both] = distance_of_bayes_error(error[both], weight[both])
    return like_input(mu)


# --- Lower bounds on the epsilon of a subsampled step, from guesses at a coin known to the auditor.


def subsampled_epsilon_of_mu(mu: float, sample_rate: float, delta: float) -> float:
    r"""Return the epsilon of one subsampled Gaussian step that is mu-GDP without sampling.

    With (FPR, FNR_q) of the module's formula, the subsampled curve of noise multiplier 1 / mu,

    .. math:: \mathrm{FNR}_q < (1 - q)(1 - \mathrm{FPR}) + q\, G_\mu(\mathrm{FPR})
        \iff \mathrm{FNR} < G_\mu(\mathrm{FPR})

    is refuted by exactly those rates that refute mu-GDP. So a lower bound on mu from the known coin
    is one for the subsampled game against its own curve, at the same significance.

    Args:
        mu: Lower bound on mu, >= 0; infinite without noise.
        sample_rate: Probability q in (0, 1] with which a member joins a step.
        delta: Delta of the epsilon, in (0, 1).

    Returns:
        The lower bound on epsilon, >= 0.

    Raises:
        ValueError: If an argument is outside its range.

    Example:
        >>> round(subsampled_epsilon_of_mu(0.3**-0.5, 0.25, 1e-5), 4)
        6.9533
    """
    q = _validate.rate("sample_rate", sample_rate)
    at = _validate.open_unit("delta", delta)
    if mu == math.inf:
        return math.inf if at < q else 0.0
    if _validate.non_negative("mu", mu) == 0.0:
        return 0.0
    return float(SubsampledGaussianTradeoff(1.0 / mu, q).epsilon_at(at))


def subsampled_epsilon_clopper_pearson(
    counts: ConfusionCounts, sample_rate: float, delta: float, significance: float
) -> float:
    r"""Return a lower bound on the epsilon of a subsampled step from Clopper-Pearson limits.

    Nothing is assumed about the mechanism. An (epsilon, delta)-DP step has FNR_q + e^epsilon FPR_q
    >= 1 - delta and the same with the rates exchanged, so that

    .. math:: \varepsilon \ge \ln\Big(1 - q
        + \frac{q (1 - \mathrm{FNR}) - \delta}{\mathrm{FPR}}\Big), \qquad
        \varepsilon \ge \ln \frac{1 - \delta - \mathrm{FPR}}
        {q\, \mathrm{FNR} + (1 - q)(1 - \mathrm{FPR})}

    Both fall with FNR and with FPR (the second because the derivative of its quotient in FPR has
    the sign of -q FNR - (1 - q) delta), so the upper limits, each at half of ``significance``, give
    the least value over all rates that are not rejected.

    Args:
        counts: Outcomes of guessing the known coin, at a threshold fixed beforehand.
        sample_rate: Probability q in (0, 1] with which a member joins a step.
        delta: Delta of the epsilon, in (0, 1).
        significance: Probability in (0, 1) with which the bound may fail.

    Returns:
        The lower bound on epsilon, >= 0.

    Raises:
        ValueError: If an argument is outside its range.

    Example:
        >>> counts = ConfusionCounts(fn=10, tp=990, fp=5, tn=995)
        >>> round(subsampled_epsilon_clopper_pearson(counts, 0.25, 1e-5, 0.05), 4)
        3.0843
    """
    q = _validate.rate("sample_rate", sample_rate)
    at = _validate.open_unit("delta", delta)
    level = significance_level(significance) / 2
    fnr, fpr = map(np.float64, _limits(counts, level, clopper_pearson_upper))
    missed = q * fnr + (1.0 - q) * (1.0 - fpr)
    # No limit is zero: each is at least that of no error in finitely many guesses.
    gains = 1.0 - q + (q * (1.0 - fnr) - at) / fpr, (1.0 - at - fpr) / missed
    return max(math.log(max(*gains, 1.0)), 0.0)
