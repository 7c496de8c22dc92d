"""Trade-off functions given by finitely many points: the convex polygon below them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lightning_audit.stats._arguments import (
    Floats,
    closed_unit,
    delta_in_unit,
    each,
    like_input,
    non_negative,
)

__all__ = ["PiecewiseTradeoff"]

# Number of rounds in which every second point that is not a corner is removed at once.
_PASSES = 40


class PiecewiseTradeoff:
    r"""Largest trade-off function that is on or below given points (alpha, beta).

    The points, with the end points (0, 1) and (1, 0) of the test that ignores its data, are
    replaced by their lower convex hull: a test that chooses between two others by a coin reaches
    all error rates between theirs.

    .. math:: f = \max\{g \text{ convex, non-increasing} : g(\alpha_i) \le \beta_i\ \forall i,\;
        g(0) \le 1,\; g(1) \le 0\}

    Its privacy curve is a maximum over the corners, exact up to rounding (1e-15 in delta),

    .. math:: \delta(\varepsilon) = \max_i\, 1 - \beta_i - e^{\varepsilon} \alpha_i .

    Args:
        alpha: Type I error rates of the points in [0, 1], ``[m]``, in any order.
        beta: Type II error rates in [0, 1], ``[m]``.

    Attributes:
        alphas: Corners of the graph in increasing order, ``[k]``; read-only.
        betas: Type II error rates there, decreasing to 0; read-only.

    Raises:
        ValueError: If a rate is not in [0, 1], or the two arrays are not of one length.

    Example:
        Attacks with these error rates were seen:

        >>> f = PiecewiseTradeoff([0.1, 0.5, 0.4], [0.5, 0.1, 0.4])
        >>> f.alphas, f.betas
        (array([0. , 0.1, 0.5, 1. ]), array([1. , 0.5, 0.1, 0. ]))
        >>> round(f(0.3), 6), round(f.delta_at(0.0), 6), round(f.epsilon_at(0.1), 6)
        (0.3, 0.4, 1.386294)

    References:
        Dong, Roth and Su, "Gaussian differential privacy", JRSS B 84, 2022, arXiv:1905.02383,
        Propositions 2.2 and 2.12.
    """

    def __init__(self, alpha: ArrayLike, beta: ArrayLike) -> None:
        rates = [
            each(closed_unit, name, np.asarray(values, dtype=np.float64))
            for name, values in (("alpha", alpha), ("beta", beta))
        ]
        if rates[0].ndim != 1 or rates[0].shape != rates[1].shape:
            raise ValueError(
                f"alpha has shape {rates[0].shape} and beta {rates[1].shape}, must be one [m] for "
                "both; give the two error rates of each point."
            )
        x = np.concatenate([[0.0], rates[0], [1.0]])
        y = np.concatenate([[1.0], rates[1], [0.0]])
        # Of points with equal alpha the lowest comes first, and the others turn out to be above it.
        order = np.lexsort((y, x))
        self.alphas, self.betas = _lower_hull(x[order], y[order])
        with np.errstate(over="ignore"):
            slopes = np.diff(self.betas) / np.diff(self.alphas)
        # Between corners that are nearly collinear, rounding may disturb the order.
        self._steepness: Floats = np.minimum.accumulate(-slopes)
        for values in (self.alphas, self.betas, self._steepness):
            values.flags.writeable = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.alphas)} corners)"

    def __call__(self, alpha: float | NDArray[Any]) -> float | Floats:
        """Return the type II error beta at the type I error ``alpha`` in [0, 1]."""
        rates = each(closed_unit, "alpha", alpha)
        return like_input(np.asarray(np.interp(rates, self.alphas, self.betas), dtype=np.float64))

    def delta_at(self, epsilon: float | NDArray[Any]) -> float | Floats:
        """Return the privacy curve 1 + f*(-e^epsilon): the smallest delta at ``epsilon`` >= 0."""
        eps = each(non_negative, "epsilon", epsilon)
        with np.errstate(over="ignore"):
            factor = np.exp(eps)
        return like_input(self._delta(factor, self._touching(factor)))

    def epsilon_at(self, delta: float | NDArray[Any]) -> float | Floats:
        """Return the smallest epsilon >= 0 at ``delta`` in (0, 1); infinite if there is none."""
        wanted = each(delta_in_unit, "delta", delta)
        # Deltas at the slopes of the edges, increasing along the corners; between two adjacent
        # ones the corner in between touches the line of the wanted delta.
        edges = np.arange(len(self._steepness))
        at_edges = np.maximum.accumulate(self._delta(self._steepness, edges))
        corner = np.searchsorted(at_edges, wanted, side="left")
        gain = 1.0 - self.betas[corner] - wanted
        with np.errstate(divide="ignore", invalid="ignore"):
            solved = np.log(gain) - np.log(self.alphas[corner])
        # No gain: this corner is below delta for every epsilon. At alpha = 0 it stays above it.
        return like_input(np.where(gain > 0, np.maximum(solved, 0.0), 0.0))

    def _touching(self, factor: Floats) -> NDArray[np.intp]:
        """Return the corner that a line of slope -factor touches from below."""
        return np.searchsorted(-self._steepness, -factor, side="left")

    def _delta(self, factor: Floats, corner: NDArray[np.intp]) -> Floats:
        alpha = self.alphas[corner]
        # At alpha = 0 the factor may be infinite.
        with np.errstate(invalid="ignore"):
            cost = np.where(alpha > 0, factor * alpha, 0.0)
        delta: Floats = np.maximum(1.0 - self.betas[corner] - cost, 0.0)
        return delta


def _lower_hull(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Return the corners of the lower convex hull, for points sorted by (x, y)."""
    first = np.append(True, x[1:] != x[:-1])
    x, y = x[first], y[first]
    for parity in range(_PASSES):
        # A point on or above the line of two others is not a corner. Of two adjacent points only
        # one is removed at a time: if rounding decides, each may seem to be above the other.
        kept = np.full(len(x), True)
        kept[1:-1] = _is_below(x[:-2], y[:-2], x[1:-1], y[1:-1], x[2:], y[2:])
        if kept.all():
            return x, y
        kept[parity % 2 :: 2] = True
        x, y = x[kept], y[kept]
    corners = hull_of_few(x.tolist(), y.tolist())
    return x[corners], y[corners]


def hull_of_few(x: Sequence[float], y: Sequence[float]) -> list[int]:
    """Return the positions of the lower hull's corners, point by point: a microsecond for each."""
    kept: list[int] = []
    for i, (xi, yi) in enumerate(zip(x, y, strict=True)):
        while len(kept) > 1:
            last, before = kept[-1], kept[-2]
            if _is_below(x[before], y[before], x[last], y[last], xi, yi):
                break
            kept.pop()
        kept.append(i)
    return kept


def _is_below(x0: Any, y0: Any, x1: Any, y1: Any, x2: Any, y2: Any) -> Any:
    """Return whether the second point is below the line through the first and the third."""
    return (y1 - y0) * (x2 - x0) < (y2 - y0) * (x1 - x0)
