"""Distributions of one number, represented by values on a grid."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import interpolate, optimize

from lightning_audit import _validate
from lightning_audit.stats._arguments import (
    Floats,
    each,
    like_input,
    non_negative,
    significance_level,
)


@dataclass(frozen=True, eq=False)
class GridDistribution:
    """A continuous distribution of a number >= 0, given by its density on a grid.

    Args:
        points: Grid, strictly increasing, at least three points, ``[n]``.
        density: Density at the points, up to a factor, ``[n]``; it is zero outside the grid.

    Raises:
        ValueError: If the points do not increase, or the density is negative or zero everywhere.

    Example:
        >>> uniform = GridDistribution(np.linspace(0, 2, 9), np.ones(9))
        >>> round(uniform.quantile(0.05), 3), round(uniform.mean, 3)
        (0.1, 1.0)
    """

    points: Floats
    density: Floats

    def __post_init__(self) -> None:
        points, density = (np.array(v, dtype=np.float64) for v in (self.points, self.density))
        if points.ndim != 1 or points.size < 3 or not np.all(np.diff(points) > 0):
            raise ValueError(
                f"points of shape {points.shape} must be at least three increasing numbers; "
                "sort them and leave out repeated ones"
            )
        if density.shape != points.shape or not np.all(np.isfinite(density) & (density >= 0)):
            raise ValueError(
                f"density of shape {density.shape} must hold one finite value >= 0 for each of "
                f"the {points.size} points; pass densities, not their logarithms"
            )
        total = float(cumulative(points, density)[-1])
        if total <= 0:
            raise ValueError("density is 0 at every point, must be positive somewhere; refine it")
        for name, value in (("points", points), ("density", density / total)):
            value.setflags(write=False)
            object.__setattr__(self, name, value)

    def cdf(self, value: float | NDArray[Any]) -> float | Floats:
        """Return the probability of at most ``value`` >= 0: a float for a number, else an array."""
        at = np.clip(each(non_negative, "value", value), self.points[0], self.points[-1])
        return like_input(np.asarray(np.clip(self._curve()(at), 0.0, 1.0), dtype=np.float64))

    def quantile(self, probability: float) -> float:
        """Return the value that the number is at most with ``probability`` in (0, 1)."""
        p = _validate.open_unit("probability", probability, "such as 0.05 for a lower limit")
        curve = self._curve()
        right = min(int(np.searchsorted(curve(self.points), p)), self.points.size - 1)
        if right == 0:
            return float(self.points[0])
        cell = self.points[right - 1 : right + 1]
        return float(optimize.brentq(lambda x: float(curve(x)) - p, cell[0], cell[1], xtol=1e-13))

    def interval(self, significance: float) -> tuple[float, float]:
        """Return the equal-tailed credible interval, of posterior probability 1 - significance."""
        tail = 0.5 * significance_level(significance)
        return self.quantile(tail), self.quantile(1.0 - tail)

    @property
    def mean(self) -> float:
        """Mean, in the unit of the points."""
        low, high = float(self.points[0]), float(self.points[-1])
        return high - float(self._curve().integrate(low, high))

    def reweighted(self, weights: Floats) -> GridDistribution:
        """Return the distribution with its density times weights >= 0 at the points, ``[n]``."""
        return GridDistribution(self.points, self.density * weights)

    def _curve(self) -> interpolate.CubicHermiteSpline:
        total = cumulative(self.points, self.density)
        return increasing_curve(self.points, total / total[-1], self.density)


def increasing_curve(x: Floats, y: Floats, slope: Floats) -> interpolate.CubicHermiteSpline:
    """Return an increasing piecewise cubic through increasing values, with limited slopes."""
    secant = np.diff(y) / np.diff(x)
    least = np.minimum(np.append(secant, np.inf), np.append(np.inf, secant))
    return interpolate.CubicHermiteSpline(x, y, np.clip(slope, 0.0, 3.0 * least))


def cumulative(x: Floats, y: Floats) -> Floats:
    """Return integrals of y >= 0 from ``x[0]`` to each x, ``[..., n]``: parabolas through points.

    The trapezoidal rule, corrected for the curvature. The correction is limited to half of a
    trapezoid, so that the integrals increase even on a grid that is too coarse.
    """
    step = np.diff(x)
    trapezoids = 0.5 * step * (y[..., 1:] + y[..., :-1])
    if step.size == 1:
        return np.concatenate((np.zeros_like(trapezoids), trapezoids), axis=-1)
    slope = np.diff(y) / step
    inner = 2.0 * np.diff(slope) / (step[1:] + step[:-1])
    second = np.concatenate((inner[..., :1], inner, inner[..., -1:]), axis=-1)
    correction = -(step**3) * (second[..., 1:] + second[..., :-1]) / 24.0
    cells = trapezoids + np.clip(correction, -0.5 * trapezoids, 0.5 * trapezoids)
    start = np.zeros((*cells.shape[:-1], 1))
    return np.concatenate((start, np.cumsum(cells, axis=-1)), axis=-1)
