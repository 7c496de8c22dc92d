"""Grids over epsilon and s epsilon that follow a posterior."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lightning_audit.stats._arguments import Floats
from lightning_audit.stats.attack_strength._strength import Support
from lightning_audit.stats.posteriors.grid_distribution import cumulative

# Part of a marginal's largest density that is not looked at any further.
_NEGLIGIBLE = 1e-14


def row_integrals(levels: Floats, density: Floats) -> Floats:
    """Integrals of the density over s eps, from 0 to each level, ``[n, n]``.

    The row of eps = 0, where the range of s eps is a point, is extrapolated.
    """
    rows = np.zeros(density.shape)
    for k in range(1, levels.size):
        size = k + 1
        rows[k, :size] = cumulative(levels[:size], density[k, :size])
        rows[k, size:] = rows[k, k]
    rows[0] = at_zero(levels, rows[1, -1], rows[2, -1])
    return rows


def at_zero(points: Floats, first: float, second: float) -> float:
    """Density at 0 from those at the next two points, kept between 0 and twice the first."""
    slope = (second - first) / (points[2] - points[1])
    return float(np.clip(first - slope * (points[1] - points[0]), 0.0, 2.0 * first))


def searched(
    density_at: Callable[[Floats, Support], Floats],
    largest: float,
    rounds: int,
    few: int,
    many: int,
) -> tuple[Floats, Support]:
    """Levels from 0 that follow a density, and where it is not negligible.

    Args:
        density_at: density on levels, wanted where the support is.
        largest: level from which on there is none.
        rounds: times that the density is looked at.
        few: number of levels that it is looked at on.
        many: number of levels that are returned.
    """
    levels, support = np.linspace(0.0, largest, few), Support()
    for size in (*[few] * (rounds - 1), many):
        levels, support = refined(levels, density_at(levels, support), size)
    return levels, support


def refined(levels: Floats, density: Floats, size: int) -> tuple[Floats, Support]:
    """Levels that follow the changes of both marginals, and where these are not negligible."""
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


def equidistributed(points: Floats, parts: Floats, size: int) -> Floats:
    """A number of points with equal shares of the cells' parts between them, the ends kept."""
    total = np.concatenate(([0.0], np.cumsum(parts)))
    return np.interp(np.linspace(0.0, total[-1], size), total, points)
