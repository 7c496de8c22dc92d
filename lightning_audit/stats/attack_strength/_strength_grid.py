"""Grids over epsilon and s epsilon that adapt to a posterior."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lightning_audit.stats._arguments import Floats
from lightning_audit.stats.attack_strength._strength import Support
from lightning_audit.stats.posteriors.grid_distribution import cumulative

# Densities below this fraction of a marginal's largest are ignored.
_NEGLIGIBLE = 1e-14


def row_integrals(levels: Floats, density: Floats) -> Floats:
    """Return integrals of the density over s eps, from 0 to each level, ``[n, n]``.

    The row of eps = 0, where s eps has only one value, is extrapolated.
    """
    rows = np.zeros(density.shape)
    for k in range(1, levels.size):
        size = k + 1
        rows[k, :size] = cumulative(levels[:size], density[k, :size])
        rows[k, size:] = rows[k, k]
    rows[0] = at_zero(levels, rows[1, -1], rows[2, -1])
    return rows


def at_zero(points: Floats, first: float, second: float) -> float:
    """Return the density at 0 from the next two points, limited to [0, twice the first]."""
    slope = (second - first) / (points[2] - points[1])
    return float(np.clip(first - slope * (points[1] - points[0]), 0.0, 2.0 * first))


def searched(
    density_at: Callable[[Floats, Support], Floats],
    largest: float,
    rounds: int,
    few: int,
    many: int,
) -> tuple[Floats, Support]:
    """Return levels from 0 that adapt to a density, and where it is not negligible.

    Args:
        density_at: Density on levels, needed where the support is.
        largest: Level from which the density is negligible.
        rounds: Number of evaluations of the density.
        few: Number of levels of an evaluation.
        many: Number of levels to return.
    """
    levels, support = np.linspace(0.0, largest, few), Support()
    for size in (*[few] * (rounds - 1), many):
        levels, support = refined(levels, density_at(levels, support), size)
    return levels, support


def refined(levels: Floats, density: Floats, size: int) -> tuple[Floats, Support]:
    """Return levels that adapt to both marginals, and where these are not negligible."""
    over_epsilon = row_integrals(levels, density)[:, -1]
    over_inner = cumulative(levels, np.ascontiguousarray(density.T))[:, -1]
    both = changes(levels, over_epsilon) + changes(levels, over_inner)
    seen = np.flatnonzero(over_epsilon > _NEGLIGIBLE * np.max(over_epsilon))
    reached = np.flatnonzero(over_inner > _NEGLIGIBLE * np.max(over_inner))
    support = Support(
        float(levels[max(seen[0] - 1, 0)]), float(levels[min(reached[-1] + 1, levels.size - 1)])
    )
    return equidistributed(levels, both, size), support


def changes(points: Floats, density: Floats) -> Floats:
    """Return the change in each cell, from the cube root of the density, so that tails count.

    Points as dense as the cube root of the curvature equalize the errors of the trapezoidal rule.
    """
    root = np.cbrt(density)
    width = np.diff(points)
    mass = width * (root[1:] + root[:-1])
    step = np.abs(np.diff(root))
    result: Floats = (
        mass / np.sum(mass) + step / np.max(root) + 0.02 * width / (points[-1] - points[0])
    )
    return result


def equidistributed(points: Floats, parts: Floats, size: int) -> Floats:
    """Return ``size`` points with equal shares of the cells' parts between them, with both ends."""
    total = np.concatenate(([0.0], np.cumsum(parts)))
    return np.interp(np.linspace(0.0, total[-1], size), total, points)
