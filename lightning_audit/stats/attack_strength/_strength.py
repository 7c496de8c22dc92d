"""Likelihood of (epsilon, strength) for attacks of that strength, from their error counts.

The error rates of an attack are uniform on R(eps, delta) without R(s eps, s delta)
(arXiv:2504.16683, equation 2). Given the counts, the probability of this set is the difference of
two masses of independent Beta variables. With t = s eps instead of s, the mass at (eps, delta)
depends on one number, and that at (t, delta t / eps) on t and, weakly, on s: a table for a few
values of s holds all of it.
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

# Masses are distinguished by their logarithms down to this one; the nodes give 8 digits of it.
_TAIL = 1e-60
NODES = 48
# Log of a mass near one; the difference of two such masses would lose its digits.
_FAR = np.log(0.99)
# In standard errors of the most accurate rate: for larger delta, the mass is not a polynomial.
_LARGEST_DELTA = 200.0
# Logarithm of a negligible mass.
_NOTHING = np.log(1e-300)


def log_area(epsilon: Floats, delta: float | Floats) -> Floats:
    """Return the log area of the unit square outside R(epsilon, delta)."""
    result: Floats = np.log(2.0) + 2.0 * np.log1p(-delta) - np.logaddexp(0.0, epsilon)
    return result


@dataclass(frozen=True)
class Attacks:
    """Posteriors of the error rates of attacks, for the uniform prior on the unit square.

    Args:
        counts: Outcomes, a vector of distinct attacks, ``[n]``.
        times: Number of occurrences of each, ``[n]``.
    """

    counts: ConfusionCounts
    times: Counts

    @classmethod
    def of(cls, counts: ConfusionCounts) -> Attacks:
        """Return the distinct attacks of a vector of counts."""
        rows = np.stack([counts.fn, counts.tp, counts.fp, counts.tn])
        different, times = np.unique(rows, axis=1, return_counts=True)
        return cls(ConfusionCounts(*different), times)

    @cached_property
    def size(self) -> int:
        """Number of distinct attacks."""
        return int(self.times.size)

    @cached_property
    def largest(self) -> float:
        """An epsilon whose region holds the rates of every attack, up to a mass of 1e-12."""
        x, y = rates(self.counts, 1.0)
        return float(np.max(EpsilonSides(x, y, 0.0, NODES).start(1.0 - 1e-12)))

    @cached_property
    def sharpest(self) -> float:
        """Standard deviation of the most accurately known error rate."""
        x, y = rates(self.counts, 1.0)
        a, b = np.concatenate((x.a, y.a)), np.concatenate((x.b, y.b))
        return float(np.min(np.sqrt(a * b / (a + b + 1.0)) / (a + b)))

    def log_outside(self, levels: Floats, delta: float, nodes: int = NODES) -> Floats:
        """Return logs of the mass outside R(level, delta), ``[n, levels]``."""
        result = np.empty((self.size, levels.size))
        for i in range(self.size):
            sides = self._sides(i, levels.size, delta, nodes)
            result[i] = sides.below(levels, rest=False)[0]
            # Otherwise the mass above the diagonal is negligible.
            if sides.x.lower_rest[0] + sides.y.lower_rest[0] < 1.0:
                result[i] += sides.mirrored_where(True).below(levels, rest=False)[0]
        return log_mass(result)

    def log_inside(
        self, levels: Floats, delta: float, wanted: NDArray[np.bool_], nodes: int = NODES
    ) -> Floats:
        """Return logs of the mass inside R(level, delta), ``[n, levels]``; 0 if not wanted."""
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
    """Return the log likelihood at epsilon > 0, ``[m]``, for one strength in [0, 1), ``[m]``."""
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
    """Where the likelihood is needed: epsilon >= ``epsilon``, and s epsilon <= ``inner``."""

    epsilon: float = 0.0
    inner: float = np.inf


class AttackMasses(Protocol):
    """Masses of the rates of attacks outside and inside regions, such as `Attacks`."""

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
    """Return the log likelihood at eps = ``levels[k]`` and s eps = ``levels[j]``.

    It is minus infinity for j > k, for eps = 0 and outside the support. The limit s = 1 is
    extrapolated from adjacent levels.

    Args:
        attacks: The attacks.
        levels: Values of eps and of s eps, increasing from 0, ``[levels]``.
        delta: Delta in [0, 1).
        support: Where the likelihood is needed.
        strengths: Number of strengths in the table of the inner region's masses.
        nodes: Number of nodes of the integrals.

    Returns:
        The log likelihood, ``[levels, levels]``.
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
    """Return the number of strengths that the table needs: more if delta is large.

    Raises:
        ValueError: If delta is too large for a table.
    """
    ratio = delta / attacks.sharpest
    if ratio > _LARGEST_DELTA:
        raise ValueError(
            f"delta={delta!r} must be at most {_LARGEST_DELTA:g} standard errors of the most "
            f"accurate error rate, {_LARGEST_DELTA * attacks.sharpest:.3g}; pass the claimed "
            "delta, or use epsilon_posterior_at_strength"
        )
    return 3 + int(np.ceil(np.sqrt(ratio)))


def log_ring(inner: tuple[Floats, Floats], outer: tuple[Floats, Floats]) -> Floats:
    """Return the log mass between two regions, from the log masses outside and inside each."""
    far = outer[0] > _FAR
    more = np.where(far, outer[1], inner[0])
    less = np.where(far, inner[1], outer[0])
    return log_difference(more, less)


def log_difference(more: Floats, less: Floats) -> Floats:
    """Return log(exp(more) - exp(less)); a negligible mass if rounding makes it negative."""
    with np.errstate(divide="ignore", invalid="ignore"):
        part = np.log(-np.expm1(np.minimum(less - more, 0.0)))
    return np.maximum(more + part, _NOTHING)


def _extrapolate_diagonal(values: Floats, levels: Floats) -> None:
    k = np.arange(2, levels.size)
    k = k[np.isfinite(values[k, k - 1]) & np.isfinite(values[k, k - 2])]
    last, before = values[k, k - 1], values[k, k - 2]
    ratio = (levels[k] - levels[k - 1]) / (levels[k - 1] - levels[k - 2])
    # On a coarse grid adjacent values differ by more than a line may extrapolate.
    values[k, k] = last + np.clip((last - before) * ratio, -1.0, 1.0)
    values[1, 1] = values[1, 0]


def log_mass(mass: Floats) -> Floats:
    """Return the log of a mass; a negligible one instead of 0."""
    return np.log(np.clip(mass, 1e-300, 1.0))


def _lobatto(points: int) -> Floats:
    """Return Chebyshev points of [0, 1] with both ends; 1 alone for one point."""
    if points == 1:
        return np.ones(1)
    return 0.5 * (1.0 - np.cos(np.pi * np.arange(points) / (points - 1)))


def _lagrange(nodes: Floats, at: Floats) -> Floats:
    """Return Lagrange polynomials of Chebyshev points, ``[at, nodes]`` (barycentric formula)."""
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
