r"""Posterior of epsilon and strength from attacks whose decisions are correlated.

The decisions of attacks that are measured by feeding a set of models to each other
(`stats.membership.loss_attack.measure_cross_fed`), and those of several attacks of one kind on
one record, agree more often than independent ones. The counts of false positives and of false
negatives are taken for bivariate normal given the rates, with

.. math:: \operatorname{Var} X = n\, \alpha (1 - \alpha) (1 + (m - 1) \tau), \qquad
    \operatorname{Corr}(X, Y) = r = \frac{m \rho}{1 + (m - 1) \tau}

where m decisions depend on each other. The same tau and rho hold for all attacks, and are estimated
with epsilon and the strength. All that `stats.attack_strength.strength_posterior` says about what
such a posterior is not holds here too; and the normal approximation has no error rate of its own:
counts near 0 or n are not normal. The density at a count of 0 has no limit as the rate goes to 0:
where most attacks make no error of a kind, as on vulnerable records, epsilon follows that instead
of the counts. So a count of 0 is here that of a normal number rounded to at least 0, which is below
.5, and a count of n one above n - .5.

References:
    Yıldırım, Kaya, Yıldırım and Savaş, "MCMC for Bayesian estimation of differential privacy from
    membership inference attacks", 2025: appendices B and C, equations 9 to 11.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lightning_audit import _validate
from lightning_audit.stats._arguments import Floats, delta_or_zero
from lightning_audit.stats._confusion import ConfusionCounts
from lightning_audit.stats.attack_strength._correlated import (
    CorrelatedMasses,
    Correlations,
    Support,
)
from lightning_audit.stats.attack_strength._strength import Attacks, strengths_for
from lightning_audit.stats.attack_strength._strength_arguments import (
    LogDensity,
    attack_vector,
    prior_variance,
    strength_prior,
)
from lightning_audit.stats.attack_strength._strength_grid import searched
from lightning_audit.stats.attack_strength.strength_posterior import (
    StrengthPosterior,
    joint_density,
    largest_epsilon,
)

__all__ = ["CorrelatedPosterior", "correlated_attack_posterior", "pooled_attacks"]


_ExtremeCounts = Literal["interval", "density"]

_SEARCH_ROUNDS, _SEARCH_LEVELS = 4, 40
_LEVELS = 120
# Nodes of tau and of r: a first look at where the posterior is, and the result.
_FEW, _MANY = (3, 3), (10, 12)
# Standard deviations of tau's prior that are looked at.
_TAU_REACH = 6.0


@dataclass(frozen=True, eq=False)
class CorrelatedPosterior:
    """Posterior of epsilon and strength, averaged over the correlations, and what these are.

    Args:
        joint: epsilon and strength; an estimate, no bound.
        tau: posterior mean and standard deviation of the correlation of two decisions of one kind.
        rho: the same of a false-positive decision with a false-negative one.
    """

    joint: StrengthPosterior
    tau: tuple[float, float]
    rho: tuple[float, float]


def correlated_attack_posterior(
    counts: ConfusionCounts,
    delta: float,
    cluster: int,
    *,
    correlation: tuple[float, float] | None = None,
    extreme_counts: _ExtremeCounts = "interval",
    tau_std: float = 0.01,
    epsilon_variance: float = 10.0,
    strength_shapes: tuple[float, float] = (1.0, 1.0),
) -> CorrelatedPosterior:
    """Joint posterior of epsilon and strength for correlated decisions, by quadrature.

    The grid's error of epsilon's mean and of its 90 % interval is below 0.01 on the published
    losses; the time is a few seconds for 20 attacks of 100 challenges a side.

    Args:
        counts: outcomes of the attacks, a vector, ``[n]``; see `attack_counts`.
        delta: delta in [0, 1).
        cluster: number m >= 2 of decisions of one kind that depend on each other: the challenges a
            side where attacks are cross-fed, those of one member where they are pooled.
        correlation: known (tau, rho); None to estimate them.
        extreme_counts: what a count of 0 or n is: the "interval" of what is rounded to it, or, as
            published, the "density" there, which puts epsilon too high.
        tau_std: standard deviation of tau's normal prior around 0, cut to what is possible; rho is
            uniform on what is possible given tau.
        epsilon_variance: as in `attack_strength_posterior`.
        strength_shapes: as in `attack_strength_posterior`.

    Raises:
        ValueError: If an argument is out of its range, or an attack has fewer challenges of a side
            than depend on each other.

    Example:
        >>> from lightning_audit.stats.attack_strength.strength_posterior import attack_counts
        >>> counts = attack_counts([20, 90, 40], 100, [60, 5, 30], 100)
        >>> independent = correlated_attack_posterior(counts, 1e-3, 100, correlation=(0.0, 0.0))
        >>> low, high = independent.joint.epsilon.interval(0.1)
        >>> round(low, 1), round(high, 1)
        (0.6, 2.1)
    """
    vector = attack_vector(counts)
    delta = delta_or_zero(delta)
    m = _cluster_of(vector, cluster)
    tau_std = _validate.positive("tau_std", tau_std, "0.01 is the published choice")
    variance = prior_variance(epsilon_variance)
    log_strength = strength_prior(strength_shapes)

    def points_of(nodes: tuple[int, int]) -> Correlations:
        return _nodes(m, tau_std, nodes) if correlation is None else _known(m, correlation)

    density = (
        _validate.one_of("extreme_counts", extreme_counts, get_args(_ExtremeCounts)) == "density"
    )
    return _posterior(vector, delta, m, density, points_of, variance, log_strength)


def _posterior(
    counts: ConfusionCounts,
    delta: float,
    m: int,
    density: bool,
    points_of: Callable[[tuple[int, int]], Correlations],
    variance: float,
    log_strength: LogDensity,
) -> CorrelatedPosterior:
    attacks = Attacks.of(counts)
    strengths = strengths_for(attacks, delta)
    errors = np.stack([counts.fp, counts.fn], axis=1)
    trials = np.stack([counts.n_out, counts.n_in], axis=1)

    def average(levels: Floats, support: Support, nodes: tuple[int, int]) -> tuple[Floats, Floats]:
        """Density averaged over the correlations, and the share of each node."""
        points = points_of(nodes)
        masses = CorrelatedMasses(errors, trials, points, levels, density)
        logs = masses.log_likelihoods(delta, support, strengths if nodes is _MANY else 2)
        return _averaged(levels, logs, points.log_weight, variance, log_strength)

    levels, support = searched(
        lambda levels, support: average(levels, support, _FEW)[0],
        largest_epsilon(attacks, variance),
        _SEARCH_ROUNDS,
        _SEARCH_LEVELS,
        _LEVELS,
    )
    joint, shares = average(levels, support, _MANY)
    points = points_of(_MANY)
    tau = (points.inflation - 1.0) / (m - 1.0)
    rho = points.correlation * points.inflation / m
    return CorrelatedPosterior(
        StrengthPosterior(levels, joint), _moments(tau, shares), _moments(rho, shares)
    )


def pooled_attacks(counts: ConfusionCounts, groups: ArrayLike) -> tuple[ConfusionCounts, int]:
    """Sum the counts of attacks that depend on each other: one attack for each group.

    Attacks depend on each other where they share a record, a data set or a challenge base. The
    published model gives those of a group rates that scatter around the group's; the sum of their
    counts then has the moments of `correlated_attack_posterior` with the challenges of one member
    as the cluster, which the prior of tau and rho stands for.

    Args:
        counts: outcomes of the attacks, a vector with the same number of challenges each, ``[n]``.
        groups: group of each attack, any labels, ``[n]``.

    Returns:
        (counts of the groups in increasing order of their labels, the cluster).

    Raises:
        ValueError: If there is not one label for each attack, or challenges differ in number.

    Example:
        >>> from lightning_audit.stats.attack_strength.strength_posterior import attack_counts
        >>> pooled, cluster = pooled_attacks(attack_counts([9, 7, 5], 50, [3, 4, 8], 50), [0, 0, 1])
        >>> pooled.fn.tolist(), pooled.n_in.tolist(), cluster
        ([16, 5], [100, 50], 50)
    """
    vector = attack_vector(counts)
    labels = np.asarray(groups)
    if labels.shape != vector.fn.shape:
        raise ValueError(
            f"groups has shape {labels.shape}, must be {vector.fn.shape}: one label an attack; "
            "give attacks that depend on no other one a label of their own."
        )
    challenges = {*vector.n_in.tolist(), *vector.n_out.tolist()}
    if len(challenges) > 1:
        raise ValueError(
            f"counts have {sorted(challenges)} challenges, must have one number for all attacks "
            "and both sides; pool attacks that were measured alike."
        )
    _, group = np.unique(labels, return_inverse=True)

    def pooled(values: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.bincount(group, values).astype(np.int64)

    sums = (pooled(v) for v in (vector.fn, vector.tp, vector.fp, vector.tn))
    return ConfusionCounts(*sums), challenges.pop()


def _cluster_of(counts: ConfusionCounts, cluster: Any) -> int:
    advice = "it is the number of decisions that depend on each other"
    m = _validate.positive_int("cluster", cluster, advice)
    fewest = int(min(counts.n_in.min(), counts.n_out.min()))
    if not 2 <= m <= fewest:
        raise ValueError(
            f"cluster={m} must lie between 2 and the fewest challenges of a side, {fewest}; "
            f"{advice}, and use attack_strength_posterior where none do."
        )
    return m


def _nodes(m: int, tau_std: float, counts: tuple[int, int]) -> Correlations:
    """Gauss-Legendre nodes of tau within its prior, times those of r, which is uniform."""
    low = max(-1.0 / (m - 1.0), -_TAU_REACH * tau_std)
    high = min(1.0, _TAU_REACH * tau_std)
    x, w = np.polynomial.legendre.leggauss(counts[0])
    tau = low + 0.5 * (high - low) * (x + 1.0)
    of_tau = np.log(w) - 0.5 * (tau / tau_std) ** 2
    r, of_r = np.polynomial.legendre.leggauss(counts[1])
    pairs = np.meshgrid(1.0 + (m - 1.0) * tau, r, indexing="ij")
    log_weight = of_tau[:, None] + np.log(of_r)
    log_weight -= np.log(np.sum(np.exp(log_weight)))
    return Correlations(pairs[0].ravel(), pairs[1].ravel(), log_weight.ravel())


def _known(m: int, correlation: Any) -> Correlations:
    try:
        tau, rho = (float(value) for value in correlation)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"correlation={correlation!r} must be two numbers, tau and rho."
        ) from error
    inflation = 1.0 + (m - 1.0) * tau
    if not (inflation > 0.0 and tau < 1.0 and abs(m * rho) < inflation):
        raise ValueError(
            f"correlation={correlation!r} must have tau in (-1/{m - 1}, 1) and |rho| below "
            "(1 + (cluster - 1) tau) / cluster; other correlations do not exist."
        )
    return Correlations(np.array([inflation]), np.array([m * rho / inflation]), np.zeros(1))


def _averaged(
    levels: Floats,
    logs: list[Floats],
    log_weight: Floats,
    variance: float,
    log_strength: LogDensity,
) -> tuple[Floats, Floats]:
    weighted = np.stack(logs) + log_weight[:, None, None]
    peak = np.max(weighted)
    parts = np.exp(weighted - peak)
    with np.errstate(divide="ignore"):
        total = np.log(np.sum(parts, axis=0))
    density = joint_density(levels, total, variance, log_strength)
    # Cells differ in size: what a node has of a point counts by the point's mass.
    cell = np.gradient(levels)
    mass = density * cell[:, None] * cell
    with np.errstate(invalid="ignore", divide="ignore"):
        of_node = np.nan_to_num(parts / np.sum(parts, axis=0)) * mass
    shares = np.sum(of_node, axis=(1, 2))
    return density, shares / np.sum(shares)


def _moments(values: Floats, shares: Floats) -> tuple[float, float]:
    mean = float(values @ shares)
    return mean, float(np.sqrt((values - mean) ** 2 @ shares))
