"""Bayesian posterior of the mu of Gaussian DP from an attack's error counts.

As in `stats.posteriors.posterior`, the results are estimates and not bounds, for one threshold
fixed beforehand, and a positive value is not evidence in the two-sided region.

References:
    Nasr et al., "Tight auditing of differentially private machine learning", USENIX Security 2023,
    arXiv:2302.07956, equation 13.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from lightning_audit import _validate
from lightning_audit.stats._arguments import Floats
from lightning_audit.stats._confusion import ConfusionCounts
from lightning_audit.stats.posteriors._joint import MuSides
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
    "mu_posterior_cdf",
    "mu_posterior_interval",
    "mu_posterior_maximum",
    "mu_posterior_pdf",
    "mu_posterior_quantile",
]


def mu_posterior_cdf(
    mu: float | NDArray[Any],
    counts: ConfusionCounts,
    *,
    region: Region = "two_sided",
    prior: float = 0.5,
) -> float | Floats:
    r"""Return the posterior probability that the attack's error rates are within mu-GDP.

    .. math:: F(\mu) = \Pr[-\mu \le \Phi^{-1}(\mathrm{FNR}) + \Phi^{-1}(\mathrm{FPR}) \le \mu]

    and without the upper limit in the one-sided region. The value at 0 is the atom's probability.

    Args:
        mu: mu >= 0, infinity included; broadcast against ``counts``.
        counts: As in `stats.posteriors.posterior.epsilon_posterior_cdf`, like the next two.
        region: ``"two_sided"`` as published, or ``"one_sided"``.
        prior: Both shapes a of the Beta prior of both rates.

    Returns:
        The probability: a float for numbers, else an array of the broadcast shape.

    Raises:
        ValueError: If an argument is out of its range.

    Example:
        >>> counts = ConfusionCounts(fn=35, tp=65, fp=25, tn=75)
        >>> round(mu_posterior_cdf(0.751026, counts), 5)
        0.05
    """
    value, flat, shape = broadcast("mu", mu, counts)
    return shaped(_of_mu(flat, region, prior).cdf(value), shape)


def mu_posterior_pdf(
    mu: float | NDArray[Any],
    counts: ConfusionCounts,
    *,
    region: Region = "two_sided",
    prior: float = 0.5,
) -> float | Floats:
    """Return the posterior density of mu, for the part that is not the atom at 0.

    Arguments, result and errors are those of `mu_posterior_cdf`.

    Example:
        >>> counts = ConfusionCounts(fn=35, tp=65, fp=25, tn=75)
        >>> round(mu_posterior_pdf(1.0, counts), 3)
        2.043
    """
    value, flat, shape = broadcast("mu", mu, counts)
    return shaped(_of_mu(flat, region, prior).pdf(value), shape)


def mu_posterior_quantile(
    probability: float,
    counts: ConfusionCounts,
    *,
    region: Region = "two_sided",
    prior: float = 0.5,
) -> float | Floats:
    """Return the posterior quantile of mu: the smallest mu with F(mu) >= ``probability``.

    As in `stats.posteriors.posterior.epsilon_posterior_quantile`, with the same arguments (except
    ``delta``), result and errors.

    Example:
        >>> counts = ConfusionCounts(fn=10, tp=990, fp=5, tn=995)
        >>> round(mu_posterior_quantile(0.05, counts), 5)
        4.58925
    """
    tail = tail_for(probability)
    return quantile(_of_mu(counts, region, prior, tail), probability, counts)


def mu_posterior_interval(
    counts: ConfusionCounts,
    significance: float,
    *,
    region: Region = "two_sided",
    prior: float = 0.5,
) -> tuple[float | Floats, float | Floats]:
    """Return the equal-tailed credible interval of mu.

    As in `stats.posteriors.posterior.epsilon_posterior_interval`, with the same arguments (except
    ``delta``), result and errors.

    Example:
        >>> counts = ConfusionCounts(fn=35, tp=65, fp=25, tn=75)
        >>> low, high = mu_posterior_interval(counts, significance=0.1)
        >>> round(low, 4), round(high, 4)
        (0.751, 1.3662)
    """
    tail = 0.5 * _validate.open_unit("significance", significance)
    posterior = _of_mu(counts, region, prior, tail_for(tail))
    return quantile(posterior, tail, counts), quantile(posterior, 1.0 - tail, counts)


def mu_posterior_maximum(
    counts: ConfusionCounts,
    probability: float,
    *,
    region: Region = "two_sided",
    prior: float = 0.5,
) -> tuple[float, int]:
    """Return the largest quantile of mu over many thresholds, without solving for each.

    Not a bound at the level of the quantile: see `epsilon_posterior_maximum`, with the same
    arguments (except ``delta``), result and errors.

    Example:
        >>> import numpy as np
        >>> fn, fp = np.array([2, 5, 20]), np.array([30, 6, 0])
        >>> counts = ConfusionCounts(fn=fn, tp=100 - fn, fp=fp, tn=100 - fp)
        >>> value, index = mu_posterior_maximum(counts, probability=0.05)
        >>> round(value, 4), index
        (2.8772, 2)
    """
    posterior = _of_mu(counts, region, prior, tail_for(probability))
    return maximum(posterior, probability, counts)


def _of_mu(
    counts: ConfusionCounts, region: Region, prior: float, tail: float = TAIL
) -> ClaimPosterior:
    x, y = rates(counts, prior, tail)
    return ClaimPosterior(MuSides(x, y, NODES), two_sided(region))
