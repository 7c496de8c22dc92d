"""Bayesian estimates from the guesses of an audit: shown with its verdict, never part of it."""

from __future__ import annotations

from dataclasses import dataclass

from lightning_audit import _validate
from lightning_audit.stats._confusion import ConfusionCounts
from lightning_audit.stats.attack_strength.strength_posterior import attack_strength_posterior
from lightning_audit.stats.posteriors.gdp_posterior import mu_posterior_interval
from lightning_audit.stats.posteriors.posterior import epsilon_posterior_interval

__all__ = ["Posteriors", "posteriors_of"]

Interval = tuple[float, float]


@dataclass(frozen=True)
class Posteriors:
    """Equal-tailed credible intervals of epsilon and mu: estimates, not bounds.

    A positive lower end is not evidence of leakage. The intervals take the error counts for
    binomial ones at a threshold that was fixed beforehand; here the threshold was learnt from
    earlier trainings, which changes the counts little but is no part of the model.

    Args:
        level: Probability of each interval.
        epsilon: Of epsilon at ``delta``, if the attack is the best one (000).
        epsilon_of_strength: Of epsilon at ``delta``, with the unknown strength of the attack (003);
            None if there was no score of one of the two data sets.
        strength: Of that strength, in [0, 1]; None likewise.
        mu: Of the mu of Gaussian DP, if the attack is the best one (000, 004).
        delta: Delta of epsilon.

    References:
        Zanella-Béguelin et al., "Bayesian estimation of differential privacy", ICML 2023,
        arXiv:2206.05199. Yıldırım, Kaya, Yıldırım and Savaş, "MCMC for Bayesian estimation of
        differential privacy from membership inference attacks", 2025, arXiv:2504.16683.
    """

    level: float
    epsilon: Interval
    epsilon_of_strength: Interval | None
    strength: Interval | None
    mu: Interval
    delta: float


def posteriors_of(counts: ConfusionCounts, delta: float, level: float = 0.9) -> Posteriors:
    """Return the credible intervals that the counts of an attack give; takes some seconds.

    Args:
        counts: Outcomes of the guesses, one number each.
        delta: Delta in [0, 1).
        level: Probability in (0, 1) of each interval.

    Returns:
        The intervals.

    Raises:
        ValueError: If an argument is out of its range.

    Example:
        Counts of the example of 000:

        >>> counts = ConfusionCounts(fn=35, tp=65, fp=25, tn=75)
        >>> low, high = posteriors_of(counts, 0.05, 0.95).epsilon
        >>> round(low, 4), round(high, 4)
        (0.5218, 1.2666)
    """
    outside = 1.0 - _validate.open_unit("level", level, "such as 0.9")
    low, high = epsilon_posterior_interval(counts, delta, outside)
    mu_low, mu_high = mu_posterior_interval(counts, outside)
    of_strength = strength = None
    if int(counts.n_in) and int(counts.n_out):
        joint = attack_strength_posterior(counts, delta)
        ends = (0.5 * outside, 1.0 - 0.5 * outside)
        of_strength = joint.epsilon.quantile(ends[0]), joint.epsilon.quantile(ends[1])
        strength = joint.strength.quantile(ends[0]), joint.strength.quantile(ends[1])
    return Posteriors(
        level=level,
        epsilon=(float(low), float(high)),
        epsilon_of_strength=of_strength,
        strength=strength,
        mu=(float(mu_low), float(mu_high)),
        delta=delta,
    )
