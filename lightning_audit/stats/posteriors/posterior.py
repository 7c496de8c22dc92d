"""Bayesian posterior of epsilon from an attack's error counts.

The error rates FNR and FPR have independent Beta posteriors, for the prior Beta(1/2, 1/2) of
Jeffreys or another one. Each pair of rates has a smallest epsilon, at a given delta, of a claim
that it does not refute. The posterior is the distribution of that number.

The results are estimates, not bounds: a lower quantile has its level averaged over the prior, not
for each mechanism. The region of a claim matters as well. ``"two_sided"``, as published, also
counts more errors than right guesses as leakage, so that the posterior of a mechanism without any
leakage is positive with certainty, and its lower quantile is not evidence. ``"one_sided"`` puts the
mass above the diagonal at zero; use it if a positive value should mean something.

The quantiles are those of one threshold fixed beforehand. The literature reports
`epsilon_posterior_maximum`; on the data that chose the threshold it exceeds the true value far more
often than its level states.

References:
    Zanella-Béguelin et al., "Bayesian estimation of differential privacy", ICML 2023,
    arXiv:2206.05199: definition 3.1, and equations 4 to 6 for quantiles. The maximum is also in
    Nasr et al., "Tight auditing of differentially private machine learning", USENIX Security 2023,
    arXiv:2302.07956.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from lightning_audit import _validate
from lightning_audit.stats._arguments import Floats, delta_or_zero
from lightning_audit.stats._confusion import ConfusionCounts
from lightning_audit.stats.posteriors._joint import EpsilonSides
from lightning_audit.stats.posteriors._quantiles import ClaimPosterior
from lightning_audit.stats.posteriors._rate_posteriors import (
    NODES,
    TAIL,
    Region,
    broadcast,
    maximum,
    quantile,
    rates,
    shaped,
    tail_for,
    two_sided,
)

__all__ = [
    "epsilon_posterior_cdf",
    "epsilon_posterior_interval",
    "epsilon_posterior_maximum",
    "epsilon_posterior_pdf",
    "epsilon_posterior_quantile",
]


def epsilon_posterior_cdf(
    epsilon: float | NDArray[Any],
    counts: ConfusionCounts,
    delta: float,
    *,
    region: Region = "two_sided",
    prior: float = 0.5,
) -> float | Floats:
    r"""Return the posterior probability that the error rates are within (epsilon, delta)-DP.

    .. math:: F(\varepsilon) = \Pr[(\mathrm{FNR}, \mathrm{FPR}) \in R(\varepsilon, \delta)],
        \qquad \mathrm{FNR} \sim \mathrm{Beta}(FN + a, TP + a),\;
        \mathrm{FPR} \sim \mathrm{Beta}(FP + a, TN + a)

    At 0 it is the probability of an atom: rates that do not refute even epsilon = 0. The relative
    error of F and of 1 - F is about 1e-12, and the absolute error of F is about 1e-15 in the
    two-sided region, where F is the mass of a thin band.

    Args:
        epsilon: Epsilon >= 0, infinity included; broadcast against ``counts``.
        counts: Outcomes at a threshold fixed beforehand, any shape.
        delta: Delta in [0, 1).
        region: ``"two_sided"`` as published: rates above the diagonal count like their mirror
            image. ``"one_sided"``: rates above the diagonal are not leakage.
        prior: Both shapes a of the Beta prior of both rates, a multiple of 1/2: 1/2 for Jeffreys, 1
            for uniform. For others the integrand is not smooth.

    Returns:
        The probability: a float for numbers, else an array of the broadcast shape.

    Raises:
        ValueError: If an argument is out of its range.

    Example:
        >>> import numpy as np
        >>> counts = ConfusionCounts(fn=35, tp=65, fp=25, tn=75)
        >>> epsilon_posterior_cdf(np.array([0.522, 1.267]), counts, delta=0.05).round(3)
        array([0.025, 0.975])
    """
    value, flat, shape = broadcast("epsilon", epsilon, counts)
    return shaped(_of_epsilon(flat, delta, region, prior).cdf(value), shape)


def epsilon_posterior_pdf(
    epsilon: float | NDArray[Any],
    counts: ConfusionCounts,
    delta: float,
    *,
    region: Region = "two_sided",
    prior: float = 0.5,
) -> float | Floats:
    """Return the posterior density of epsilon, for the part that is not the atom at 0.

    It integrates to 1 - F(0), with F of `epsilon_posterior_cdf`; arguments and errors are the same.

    Returns:
        The density: a float for numbers, else an array of the broadcast shape.

    Example:
        >>> counts = ConfusionCounts(fn=35, tp=65, fp=25, tn=75)
        >>> round(epsilon_posterior_pdf(0.9, counts, delta=0.05), 3)
        2.082
    """
    value, flat, shape = broadcast("epsilon", epsilon, counts)
    return shaped(_of_epsilon(flat, delta, region, prior).pdf(value), shape)


def epsilon_posterior_quantile(
    probability: float,
    counts: ConfusionCounts,
    delta: float,
    *,
    region: Region = "two_sided",
    prior: float = 0.5,
) -> float | Floats:
    """Return the posterior quantile of epsilon: the smallest epsilon with F >= ``probability``.

    The quantile at 0.05 is the published "95 % lower bound". It has its level on average over the
    prior; the module states what it does not prove. Its relative error is about 1e-12, unless it is
    near 0 in the two-sided region.

    Args:
        probability: Probability in (0, 1).
        counts: As in `epsilon_posterior_cdf`, like the next three.
        delta: Delta in [0, 1).
        region: ``"two_sided"`` or ``"one_sided"``.
        prior: Both shapes of the Beta prior.

    Returns:
        The quantile >= 0, and 0 if the atom at 0 is large enough: a float for one threshold,
        else an array of the shape of ``counts``.

    Raises:
        ValueError: If an argument is out of its range.

    Example:
        >>> counts = ConfusionCounts(fn=0, tp=1000, fp=0, tn=1000)
        >>> round(epsilon_posterior_quantile(0.05, counts, delta=1e-5), 4)
        7.2072
    """
    tail = tail_for(probability)
    posterior = _of_epsilon(counts, delta, region, prior, tail)
    return quantile(posterior, probability, counts)


def epsilon_posterior_interval(
    counts: ConfusionCounts,
    delta: float,
    significance: float,
    *,
    region: Region = "two_sided",
    prior: float = 0.5,
) -> tuple[float | Floats, float | Floats]:
    """Return the equal-tailed credible interval of epsilon.

    Its ends are the quantiles at ``significance / 2`` and one minus that.

    Args:
        counts: As in `epsilon_posterior_cdf`, like the next.
        delta: Delta in [0, 1).
        significance: Posterior probability outside the interval, in (0, 1).
        region: As in `epsilon_posterior_cdf`, like the next.
        prior: Both shapes of the Beta prior.

    Returns:
        Lower and upper end; floats for one threshold, else arrays of the shape of ``counts``.

    Raises:
        ValueError: If an argument is out of its range.

    Example:
        >>> counts = ConfusionCounts(fn=35, tp=65, fp=25, tn=75)
        >>> low, high = epsilon_posterior_interval(counts, delta=0.05, significance=0.05)
        >>> round(low, 5), round(high, 5)
        (0.52179, 1.26665)
    """
    tail = 0.5 * _validate.open_unit("significance", significance)
    posterior = _of_epsilon(counts, delta, region, prior, tail_for(tail))
    return quantile(posterior, tail, counts), quantile(posterior, 1.0 - tail, counts)


def epsilon_posterior_maximum(
    counts: ConfusionCounts,
    delta: float,
    probability: float,
    *,
    region: Region = "two_sided",
    prior: float = 0.5,
) -> tuple[float, int]:
    """Return the largest quantile of epsilon over many thresholds, without solving for each.

    The published threshold choice. Not a bound at the level of the quantile: with the thresholds
    chosen on the same data its true failure rate is several times as large (by simulation).

    Args:
        counts: Outcomes at the thresholds, any shape.
        delta: As in `epsilon_posterior_quantile`, like the others.
        probability: Probability of the quantile, in (0, 1).
        region: ``"two_sided"`` or ``"one_sided"``.
        prior: Both shapes of the Beta prior.

    Returns:
        The largest quantile and the index, into the flattened counts, of a threshold with it.

    Raises:
        ValueError: If an argument is out of its range, or there is no threshold.

    Example:
        >>> import numpy as np
        >>> fn, fp = np.array([2, 5, 20]), np.array([30, 6, 0])
        >>> counts = ConfusionCounts(fn=fn, tp=100 - fn, fp=fp, tn=100 - fp)
        >>> value, index = epsilon_posterior_maximum(counts, delta=1e-5, probability=0.05)
        >>> round(value, 4), index
        (3.7346, 2)
    """
    posterior = _of_epsilon(counts, delta, region, prior, tail_for(probability))
    return maximum(posterior, probability, counts)


def _of_epsilon(
    counts: ConfusionCounts, delta: float, region: Region, prior: float, tail: float = TAIL
) -> ClaimPosterior:
    x, y = rates(counts, prior, tail)
    return ClaimPosterior(EpsilonSides(x, y, delta_or_zero(delta), NODES), two_sided(region))
