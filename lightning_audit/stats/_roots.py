"""Roots of many increasing functions at once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from lightning_audit.stats._arguments import Floats

Rows = NDArray[np.intp]

# Newton's error squares at each step: after a residual of this size, it is below 1e-12.
_LAST_RESIDUAL = 1e-6
_MAX_ITERATIONS = 200


def least_nonnegative(
    residual_and_slope: Callable[[Floats, Rows], tuple[Floats, Floats]], start: Floats
) -> Floats:
    """Return the smallest x >= 0 with a residual >= 0, by Newton's method inside a bracket.

    Args:
        residual_and_slope: Maps points and the rows to which they belong, both ``[m]``, to the
            residuals, increasing in the point and of order one, and to their slopes. A residual may
            be infinite.
        start: First points > 0, ``[n]``.

    Returns:
        The roots, ``[n]``; zero if the residual is not negative at zero.

    Raises:
        RuntimeError: If a residual does not change its sign, which no distribution gives.
    """
    x = start.copy()
    # Zero is evaluated only if Newton's method points there: most roots never need it.
    low, high = np.full(x.shape, -np.inf), np.full(x.shape, np.inf)
    live = np.arange(x.size)
    for _ in range(_MAX_ITERATIONS):
        if not live.size:
            return x
        here = x[live]
        residual, slope = residual_and_slope(here, live)
        low[live] = np.where(residual < 0, here, low[live])
        high[live] = np.where(residual >= 0, here, high[live])
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            newton = here - residual / slope
        least, most = low[live], high[live]
        close = (np.abs(residual) <= _LAST_RESIDUAL) & np.isfinite(newton)
        narrow = np.isfinite(most) & (most - least <= 4e-16 * most)
        solved = close | (most <= 0) | narrow
        inside = (newton > least) & (newton < most)
        proposal = np.where(inside, newton, _outside(newton, least, most, here))
        proposal = np.where(proposal < 0, 0.0, proposal)
        # The last step may leave the bracket by a rounding error.
        final = np.clip(np.where(close, newton, here), np.maximum(least, 0.0), most)
        x[live] = np.where(solved, final, proposal)
        live = live[~solved]
    raise RuntimeError(f"{live.size} of {x.size} roots not found; please report the counts.")


def _outside(newton: Floats, low: Floats, high: Floats, here: Floats) -> Floats:
    """Return the next points if Newton's method leaves the bracket."""
    with np.errstate(invalid="ignore"):
        middle = 0.5 * (np.maximum(low, 0.0) + high)
    widened = np.where(np.isfinite(high), middle, 2.0 * here + 0.1)
    # If Newton's method gives no next point, as far above the root, try zero.
    return np.where((low < 0) & ~(newton > 0), 0.0, widened)
