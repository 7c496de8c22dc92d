"""Likelihood of (epsilon, strength) for attacks of that strength, from their error counts.

The error rates of an attack lie in R(eps, delta) but not in R(s eps, s delta), uniformly. Given the
counts, the probability of that is the difference of two masses of independent Beta variables. With
t = s eps in the place of s, the mass at (eps, delta) depends on one number, and that at
(t, delta t / eps) on t and, weakly, on s: a table for a few s holds all of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from lightning_audit.stats._arguments import Floats
from lightning_audit.stats._beta import Beta
from lightning_audit.stats._confusion import ConfusionCounts
from lightning_audit.stats.posteriors._joint import EpsilonSides
from lightning_audit.stats.posteriors._quantiles import ClaimPosterior
from lightning_audit.stats.posteriors._rate_posteriors import rates

Counts = NDArray[np.int64]

# The masses are told apart by their logarithms down to this one, and the nodes hold 8 digits of it.
_TAIL = 1e-60
NODES = 48
# Of a mass next to one, whose difference to another such mass has lost its digits.
_FAR = np.log(0.99)
# In standard errors of the rate known best: beyond, the mass in delta is more than a polynomial.
_LARGEST_DELTA = 200.0
# Logarithm of a mass that is left out.
_NOTHING = np.log(1e-300)


def log_area(epsilon: Floats, delta: float | Floats) -> Floats:
    """Log of the area of the unit square outside R(epsilon, delta)."""
    result: Floats = np.log(2.0) + 2.0 * np.log1p(-delta) - np.logaddexp(0.0, epsilon)
    return result


@dataclass(frozen=True)
class Attacks:
    """Posteriors of the error rates of attacks, for the uniform prior on the unit square.

    Args:
        counts: outcomes, a vector of attacks that all differ, ``[n]``.
        times: how often each occurs, ``[n]``.
    """

    counts: ConfusionCounts
    times: Counts

    @classmethod
    def of(cls, counts: ConfusionCounts) -> Attacks:
        """The attacks of a vector of counts."""
        rows = np.stack([counts.fn, counts.tp, counts.fp, counts.tn])
        different, times = np.unique(rows, axis=1, return_counts=True)
        return cls(ConfusionCounts(*different), times)

    @cached_property
    def size(self) -> int:
        """Number of attacks that differ."""
        return int(self.times.size)

    @cached_property
    def largest(self) -> float:
        """An epsilon whose region holds the rates of every attack but for a part of 1e-12."""
        x, y = rates(self.counts, 1.0)
        return float(np.max(EpsilonSides(x, y, 0.0, NODES).start(1.0 - 1e-12)))

    @cached_property
    def sharpest(self) -> float:
        """Standard deviation of the error rate that is known best."""
        x, y = rates(self.counts, 1.0)
        a, b = np.concatenate((x.a, y.a)), np.concatenate((x.b, y.b))
        return float(np.min(np.sqrt(a * b / (a + b + 1.0)) / (a + b)))

    def log_outside(self, levels: Floats, delta: float, nodes: int = NODES) -> Floats:
        """Logs of the mass outside R(level, delta), ``[n, levels]``."""
        result = np.empty((self.size, levels.size))
        for i in range(self.size):
            sides = self._sides(i, levels.size, delta, nodes)
            result[i] = sides.below(levels, rest=False)[0]
            # Elsewhere the mass above the diagonal is in the tail that is left out anyway.
            if sides.x.lower_rest[0] + sides.y.lower_rest[0] < 1.0:
                result[i] += sides.mirrored_where(True).below(levels, rest=False)[0]
        return log_mass(result)

    def log_inside(
        self, levels: Floats, delta: float, wanted: NDArray[np.bool_], nodes: int = NODES
    ) -> Floats:
        """Logs of the mass inside of R(level, delta), ``[n, levels]``; 0 for attacks not wanted."""
        result = np.ones((self.size, levels.size))
        for i in np.flatnonzero(wanted).tolist():
            result[i] = ClaimPosterior(self._sides(i, levels.size, delta, nodes), True).cdf(levels)
        return log_mass(result)

    def _sides(self, attack: int, rows: int, delta: float, nodes: int) -> EpsilonSides:
        x, y = self._rates
        same = np.full(rows, attack)
        return EpsilonSides(x.take(same), y.take(same), delta, nodes)

    @cached_property
    def _rates(self) -> tuple[Beta, Beta]:
        return rates(self.counts, 1.0, _TAIL)


def log_likelihood_at(attacks: Attacks, epsilon: Floats, strength: float, delta: float) -> Floats:
    """Log likelihood at some epsilon > 0 for one strength in [0, 1), ``[epsilon]``."""
    inner, inner_delta = strength * epsilon, strength * delta
    outside, inner_outside = (
        attacks.log_outside(epsilon, delta),
        attacks.log_outside(inner, inner_delta),
    )
    far = np.any(outside > _FAR, axis=1)
    inside = attacks.log_inside(epsilon, delta, far)
    inner_inside = attacks.log_inside(inner, inner_delta, far)
    ring = log_ring((inner_outside, inner_inside), (outside, inside))
    area = log_difference(log_area(inner, inner_delta), log_area(epsilon, delta))
    return attacks.times @ (ring - area)


@dataclass(frozen=True)
class Support:
    """Where the likelihood is wanted: epsilon >= ``epsilon``, and s epsilon <= ``inner``."""

    epsilon: float = 0.0
    inner: float = np.inf


class AttackMasses(Protocol):
    """Masses of the rates of attacks outside and inside of regions, as `Attacks` has them."""

    @property
    def size(self) -> int: ...

    @property
    def times(self) -> Counts: ...

    def log_outside(self, levels: Floats, delta: float, nodes: int, /) -> Floats: ...

    def log_inside(
        self, levels: Floats, delta: float, wanted: NDArray[np.bool_], nodes: int, /
    ) -> Floats: ...


def log_likelihood(
    attacks: AttackMasses,
    levels: Floats,
    delta: float,
    support: Support,
    strengths: int,
    nodes: int,
) -> Floats:
    """Log likelihood at eps = ``levels[k]`` and s eps = ``levels[j]``, ``[levels, levels]``.

    Minus infinity for j > k, for eps = 0 and outside the support. The limit s = 1 is extrapolated
    from its neighbours.

    Args:
        attacks: the attacks.
        levels: values of eps and of s eps, increasing from 0, ``[levels]``.
        delta: delta in [0, 1).
        support: where the likelihood is wanted.
        strengths: number of strengths in the table of the inner region's masses.
        nodes: nodes of the integrals.
    """
    first = max(int(np.searchsorted(levels, support.epsilon)), 1)
    inner = levels[: int(np.searchsorted(levels, support.inner, side="right"))]
    outside = attacks.log_outside(levels[first:], delta, nodes)
    far = np.any(outside > _FAR, axis=1)
    inside = attacks.log_inside(levels[first:], delta, far, nodes)
    grid = _lobatto(strengths if delta > 0 else 1)
    inner_outside = np.stack([attacks.log_outside(inner, s * delta, nodes) for s in grid])
    inner_inside = np.stack([attacks.log_inside(inner, s * delta, far, nodes) for s in grid])

    k, j = np.tril_indices(levels.size, -1)
    used = (k >= first) & (j < inner.size)
    k, j = k[used], j[used]
    strength = levels[j] / levels[k]
    basis = _lagrange(grid, strength)
    area = log_difference(log_area(levels[j], delta * strength), log_area(levels[k], delta))
    values = np.zeros(k.size)
    for i in range(attacks.size):
        out = np.einsum("pm,mp->p", basis, inner_outside[:, i, j])
        into = np.einsum("pm,mp->p", basis, inner_inside[:, i, j])
        ring = log_ring((out, into), (outside[i, k - first], inside[i, k - first]))
        values += attacks.times[i] * (ring - area)
    result = np.full((levels.size, levels.size), -np.inf)
    result[k, j] = values
    _extrapolate_diagonal(result, levels)
    return result


def strengths_for(attacks: Attacks, delta: float) -> int:
    """Strengths that the table needs: more where delta is large next to what the counts tell.

    Raises:
        ValueError: If delta is larger than a table can follow.
    """
    ratio = delta / attacks.sharpest
    if ratio > _LARGEST_DELTA:
        raise ValueError(
            f"delta={delta!r} must be at most {_LARGEST_DELTA:g} standard errors of the error rate "
            f"known best, {_LARGEST_DELTA * attacks.sharpest:.3g}; pass the delta that is claimed, "
            "or use epsilon_posterior_at_strength"
        )
    return 3 + int(np.ceil(np.sqrt(ratio)))


def log_ring(inner: tuple[Floats, Floats], outer: tuple[Floats, Floats]) -> Floats:
    """Log of the mass between two regions, from the logs of the masses outside and inside each."""
    far = outer[0] > _FAR
    more = np.where(far, outer[1], inner[0])
    less = np.where(far, inner[1], outer[0])
    return log_difference(more, less)


def log_difference(more: Floats, less: Floats) -> Floats:
    """Log of exp(more) - exp(less); of next to nothing where rounding makes it negative."""
    with np.errstate(divide="ignore", invalid="ignore"):
        part = np.log(-np.expm1(np.minimum(less - more, 0.0)))
    return np.maximum(more + part, _NOTHING)


def _extrapolate_diagonal(values: Floats, levels: Floats) -> None:
    k = np.arange(2, levels.size)
    k = k[np.isfinite(values[k, k - 1]) & np.isfinite(values[k, k - 2])]
    last, before = values[k, k - 1], values[k, k - 2]
    ratio = (levels[k] - levels[k - 1]) / (levels[k - 1] - levels[k - 2])
    # On a grid that is still too coarse the neighbours differ by more than a line may carry on.
    values[k, k] = last + np.clip((last - before) * ratio, -1.0, 1.0)
    values[1, 1] = values[1, 0]


def log_mass(mass: Floats) -> Floats:
    """Log of a mass; of next to nothing where it is 0."""
    return np.log(np.clip(mass, 1e-300, 1.0))


def _lobatto(points: int) -> Floats:
    """Chebyshev points of [0, 1] with both ends; 1 alone for one point."""
    if points == 1:
        return np.ones(1)
    return 0.5 * (1.0 - np.cos(np.pi * np.arange(points) / (points - 1)))


def _lagrange(nodes: Floats, at: Floats) -> Floats:
    """Lagrange's polynomials of Chebyshev points, ``[at, nodes]``, by the barycentric formula."""
    if nodes.size == 1:
        return np.ones((at.size, 1))
    weight = (-1.0) ** np.arange(nodes.size)
    weight[[0, -1]] *= 0.5
    distance = at[:, None] - nodes
    hit = distance == 0
    terms = weight / np.where(hit, 1.0, distance)
    terms = np.where(np.any(hit, axis=1, keepdims=True), hit, terms)
    result: Floats = terms / np.sum(terms, axis=1, keepdims=True)
    return result
