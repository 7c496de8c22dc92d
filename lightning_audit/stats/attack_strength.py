"""Posterior of epsilon and of the strength of attacks, from the error counts of several of them.

The posteriors of `lightning_audit.stats.posterior` take the attack for the best one possible. Here
it is not: an attack of strength s is one whose error rates (FPR, FNR) are uniform on R(eps, delta)
without R(s eps, s delta), where R(eps, delta) holds what (eps, delta)-DP allows. One strength holds
for all attacks, and it is estimated together with epsilon.

.. math:: p(\\varepsilon, s \\mid \\text{counts}) \\propto p(\\varepsilon)\\, p(s) \\prod_i
    \\frac{\\Pr[(\\mathrm{FPR}_i, \\mathrm{FNR}_i) \\in R(\\varepsilon, \\delta) \\setminus
    R(s \\varepsilon, s \\delta)]}{|R(\\varepsilon, \\delta) \\setminus R(s \\varepsilon, s
    \\delta)|}

It gives estimates of a model, not bounds. Its intervals hold their level averaged over the prior
of epsilon, of the strength and of the attacks, not for each mechanism; attacks that are not spread
as the model says give intervals without any level. Both sides of the diagonal count as leakage, so
that a positive lower quantile is no evidence of any. Nor is the posterior a claim's refutation.

References:
    Yıldırım, Kaya, Yıldırım and Savaş, "MCMC for Bayesian estimation of differential privacy from
    membership inference attacks", 2025: equations 1 to 6 and algorithm 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from numbers import Real

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from lightning_audit import _validate
from lightning_audit.stats._arguments import delta_or_zero
from lightning_audit.stats._confusion import ConfusionCounts
from lightning_audit.stats._strength import (
    NODES,
    Attacks,
    Support,
    log_likelihood,
    log_likelihood_at,
    strengths_for,
)
from lightning_audit.stats.grid_distribution import GridDistribution, cumulative, increasing_curve

__all__ = [
    "GridDistribution",
    "StrengthPosterior",
    "attack_counts",
    "attack_strength_posterior",
    "epsilon_posterior_at_strength",
]

Counts = NDArray[np.int64]
Floats = NDArray[np.float64]

# A density below e^-40 of the prior's largest is left out.
_LOG_SPAN = 40.0
# Levels of the rounds that find where the posterior is, and of the last one.
_SEARCH_LEVELS = 48
_SEARCH_ROUNDS = 5
_SEARCH_NODES = 24
_LEVELS = 200
# Part of a marginal's largest density that is not looked at any further.
_NEGLIGIBLE = 1e-14
_STRENGTH_POINTS = 401


def attack_counts(
    false_negatives: ArrayLike, n_in: ArrayLike, false_positives: ArrayLike, n_out: ArrayLike
) -> ConfusionCounts:
    """Outcomes of attacks from their errors and the numbers of their challenges.

    Args:
        false_negatives: errors with the canary in, Y in the paper, ``[n]`` or a number.
        n_in: challenges with the canary in, N_1.
        false_positives: errors with the canary out, X in the paper.
        n_out: challenges with the canary out, N_0.

    Returns:
        The counts, a vector of attacks.

    Raises:
        ValueError: If a count is no whole number >= 0, or exceeds the number of challenges.

    Example:
        >>> attack_counts([10, 20], 100, [5, 0], 100).tp
        array([90, 80])
    """
    fn, inside = _within("false_negatives", false_negatives, "n_in", n_in)
    fp, outside = _within("false_positives", false_positives, "n_out", n_out)
    return ConfusionCounts(fn=fn, tp=inside - fn, fp=fp, tn=outside - fp)


@dataclass(frozen=True, eq=False)
class StrengthPosterior:
    """Joint posterior of epsilon and of the strength s of the attacks, on a grid.

    The second axis is s * epsilon, the epsilon of the region that the attacks lie outside of: the
    posterior's edges are parallel to the axes there. The density of (epsilon, s) is epsilon times
    this one. It is an estimate, not a bound: see the module.

    Args:
        levels: values of epsilon and of s * epsilon, increasing from 0, ``[n]``.
        density: density at epsilon = ``levels[k]`` and s * epsilon = ``levels[j]``, zero for j > k,
            ``[n, n]``; up to a factor.
    """

    levels: Floats
    density: Floats

    def __post_init__(self) -> None:
        levels, density = (np.array(v, dtype=np.float64) for v in (self.levels, self.density))
        if density.shape != (levels.size, levels.size):
            raise ValueError(
                f"density has shape {density.shape}, must be {(levels.size, levels.size)}: "
                "one row and one column a level"
            )
        total = cumulative(levels, _row_integrals(levels, density)[:, -1])[-1]
        for name, value in (("levels", levels), ("density", density / total)):
            value.setflags(write=False)
            object.__setattr__(self, name, value)

    @cached_property
    def epsilon(self) -> GridDistribution:
        """Marginal posterior of epsilon."""
        return GridDistribution(self.levels, _row_integrals(self.levels, self.density)[:, -1])

    @cached_property
    def strength(self) -> GridDistribution:
        """Marginal posterior of the strength, in [0, 1]."""
        rows = _row_integrals(self.levels, self.density)
        whole = np.linspace(0.0, 1.0, _STRENGTH_POINTS)
        reached = GridDistribution(whole, self._strength_density(whole, rows))
        low, high = (reached.quantile(p) for p in (1e-9, 1.0 - 1e-9))
        margin = 2.0 / _STRENGTH_POINTS
        fine = np.linspace(max(low - margin, 0.0), min(high + margin, 1.0), _STRENGTH_POINTS)
        return GridDistribution(fine, self._strength_density(fine, rows))

    def reweighted(self, weights: Floats) -> StrengthPosterior:
        """The posterior under another prior of epsilon: ratios of the densities, ``[n]``."""
        return StrengthPosterior(self.levels, self.density * np.asarray(weights)[:, None])

    def _strength_density(self, strength: Floats, rows: Floats) -> Floats:
        levels, values = self.levels, np.empty((strength.size, self.levels.size))
        for k in range(1, levels.size):
            own = slice(k + 1)
            row = increasing_curve(levels[own], rows[k, own], self.density[k, own])
            values[:, k] = np.maximum(levels[k] * row(strength * levels[k], nu=1), 0.0)
        values[:, 0] = values[:, 1]
        result: Floats = cumulative(levels, values)[:, -1]
        return result


def attack_strength_posterior(
    counts: ConfusionCounts,
    delta: float,
    *,
    epsilon_variance: float = 10.0,
    strength_shapes: tuple[float, float] = (1.0, 1.0),
) -> StrengthPosterior:
    """Joint posterior of epsilon and of the attacks' strength, by quadrature.

    The error rates are integrated out exactly, and the grid is laid where the posterior changes.
    """
    attacks = Attacks(_vector(counts))
    delta = delta_or_zero(delta)
    variance = _validate.positive("epsilon_variance", epsilon_variance)
    log_strength = _strength_prior(strength_shapes)
    levels = np.linspace(0.0, _top(attacks, variance), _SEARCH_LEVELS)
    support = Support()
    for size in (*[_SEARCH_LEVELS] * (_SEARCH_ROUNDS - 1), _LEVELS):
        values = log_likelihood(attacks, levels, delta, support, 2, _SEARCH_NODES)
        levels, support = _refined(levels, _joint(levels, values, variance, log_strength), size)
    values = log_likelihood(
        attacks, levels, delta, support, strengths_for(attacks, delta), NODES
    )
    return StrengthPosterior(levels, _joint(levels, values, variance, log_strength))


def epsilon_posterior_at_strength(
    counts: ConfusionCounts,
    delta: float,
    strength: float,
    *,
    epsilon_variance: float = 10.0,
) -> GridDistribution:
    """Posterior of epsilon for attacks of one known strength."""
    attacks = Attacks(_vector(counts))
    delta = delta_or_zero(delta)
    variance = _validate.positive("epsilon_variance", epsilon_variance)
    s = _strength(strength)
    points = np.linspace(0.0, _top(attacks, variance), _SEARCH_LEVELS)
    for size in [_SEARCH_LEVELS] * _SEARCH_ROUNDS + [2 * _LEVELS]:
        density = _density_at(attacks, points, s, delta, variance)
        points = _equidistributed(points, _changes(points, density), size)
    return GridDistribution(points, _density_at(attacks, points, s, delta, variance))


def _density_at(
    attacks: Attacks, epsilon: Floats, strength: float, delta: float, variance: float
) -> Floats:
    values = log_likelihood_at(attacks, epsilon[1:], strength, delta)
    values = values - epsilon[1:] ** 2 / (2.0 * variance)
    density = np.exp(values - np.max(values))
    return np.concatenate(([_at_zero(epsilon, density[0], density[1])], density))


def _joint(
    levels: Floats, values: Floats, variance: float, log_strength: Callable[[Floats], Floats]
) -> Floats:
    """Joint density of eps and s eps from their log likelihood; its largest value is 1."""
    values = values.copy()
    k, j = np.tril_indices(levels.size)
    k, j = k[1:], j[1:]
    values[k, j] += log_strength(levels[j] / levels[k]) - np.log(levels[k])
    values[k, j] -= levels[k] ** 2 / (2.0 * variance)
    density: Floats = np.exp(values - np.max(values))
    return density


def _row_integrals(levels: Floats, density: Floats) -> Floats:
    """Integrals of the density over s eps, from 0 to each level, ``[n, n]``.

    The row of eps = 0, where the range of s eps is a point, is extrapolated.
    """
    rows = np.zeros(density.shape)
    for k in range(1, levels.size):
        size = k + 1
        rows[k, :size] = cumulative(levels[:size], density[k, :size])
        rows[k, size:] = rows[k, k]
    rows[0] = _at_zero(levels, rows[1, -1], rows[2, -1])
    return rows


def _at_zero(points: Floats, first: float, second: float) -> float:
    slope = (second - first) / (points[2] - points[1])
    return float(np.clip(first - slope * (points[1] - points[0]), 0.0, 2.0 * first))


def _refined(levels: Floats, density: Floats, size: int) -> tuple[Floats, Support]:
    """Levels that follow the changes of both marginals, and where these are not negligible."""
    over_epsilon = _row_integrals(levels, density)[:, -1]
    over_inner = cumulative(levels, np.ascontiguousarray(density.T))[:, -1]
    changes = _changes(levels, over_epsilon) + _changes(levels, over_inner)
    seen = np.flatnonzero(over_epsilon > _NEGLIGIBLE * np.max(over_epsilon))
    reached = np.flatnonzero(over_inner > _NEGLIGIBLE * np.max(over_inner))
    support = Support(
        float(levels[max(seen[0] - 1, 0)]), float(levels[min(reached[-1] + 1, levels.size - 1)])
    )
    return _equidistributed(levels, changes, size), support


def _changes(points: Floats, density: Floats) -> Floats:
    """How much happens in each cell, from the cube root of the density: tails matter as well.

    Errors of trapezoids are evened out by points as dense as the cube root of the curvature.
    """
    root = np.cbrt(density)
    width = np.diff(points)
    mass = width * (root[1:] + root[:-1])
    step = np.abs(np.diff(root))
    result: Floats = (
        mass / np.sum(mass) + step / np.max(root) + 0.02 * width / (points[-1] - points[0])
    )
    return result


def _equidistributed(points: Floats, changes: Floats, size: int) -> Floats:
    """A number of points with equal parts of the changes between them, the ends kept."""
    total = np.concatenate(([0.0], np.cumsum(changes)))
    result: Floats = np.interp(np.linspace(0.0, total[-1], size), total, points)
    return result


def _top(attacks: Attacks, variance: float) -> float:
    # From there on the likelihood falls no further up, and the prior does.
    return float(np.sqrt(attacks.largest**2 + 2.0 * _LOG_SPAN * variance))


def _strength_prior(shapes: tuple[float, float]) -> Callable[[Floats], Floats]:
    advice = "1 and 1 for the uniform prior; below 1 its density has no maximum"
    a, b = (_validate.positive("strength_shapes", shape, advice) for shape in shapes)
    if min(a, b) < 1:
        raise ValueError(f"strength_shapes={shapes!r} must be two numbers >= 1; {advice}")

    def log_density(strength: Floats) -> Floats:
        result: Floats = special.xlogy(a - 1.0, strength) + special.xlog1py(b - 1.0, -strength)
        return result

    return log_density


def _strength(value: float) -> float:
    advice = "1 leaves no room between the regions; pass 0.999 for the strongest attacks"
    if isinstance(value, Real) and not isinstance(value, bool) and value == 0:
        return 0.0
    return _validate.open_unit("strength", value, advice)


def _vector(counts: ConfusionCounts) -> ConfusionCounts:
    if len(counts.shape) > 1 or not counts.fn.size:
        raise ValueError(
            f"counts have shape {counts.shape}, must be a vector of at least one attack; "
            "pass one row of error counts for each attack"
        )
    return counts


def _within(
    errors_name: str, errors: ArrayLike, trials_name: str, trials: ArrayLike
) -> tuple[Counts, Counts]:
    k = np.atleast_1d(_whole(errors_name, errors))
    n = np.atleast_1d(_whole(trials_name, trials))
    k, n = np.broadcast_arrays(k, n)
    excess = k > n
    if np.any(excess):
        raise ValueError(
            f"{errors_name}={int(k[excess][0])} must be at most {trials_name}={int(n[excess][0])}; "
            "pass the errors of each attack and the number of its challenges."
        )
    return k, n


def _whole(name: str, value: ArrayLike) -> Counts:
    counts = np.asarray(value)
    advice = "pass counts of errors and of challenges, not rates or scores"
    if counts.dtype.kind not in "iu":
        raise ValueError(f"{name}={value!r} must hold whole numbers >= 0; {advice}")
    if np.any(counts < 0):
        raise ValueError(f"{name}={int(np.min(counts))} must be a whole number >= 0; {advice}")
    return counts.astype(np.int64)
