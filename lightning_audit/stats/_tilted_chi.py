"""The integral in the density of the noncentral t."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(60)


def log_tilted_chi(freedom: Any, slope: Any) -> FloatArray:
    """Log of the integral over v > 0 of v^freedom exp(-v^2/2 + slope v).

    Ten digits, less where both the freedom is below four and the slope is far below zero: there
    the right tail is cut off, which makes the e-value smaller.
    """
    nu, y = np.broadcast_arrays(np.asarray(freedom, float), np.asarray(slope, float))
    root = np.sqrt(y * y + 4.0 * nu)
    mode = np.where(y >= 0, 0.5 * (y + root), 2.0 * nu / (root - y))  # no cancellation for y < 0
    width = 1.0 / np.sqrt(1.0 + nu / mode**2)
    # Nine standard deviations around the mode, of what lies above v = 0.
    low, high = np.maximum(mode - 9.0 * width, 0.0), mode + 9.0 * width
    half = 0.5 * (high - low)
    v = (0.5 * (high + low))[..., None] + half[..., None] * _NODES
    exponent = (
        nu[..., None] * np.log(v / mode[..., None])
        - 0.5 * (v * v - (mode * mode)[..., None])
        + y[..., None] * (v - mode[..., None])
    )
    integral = half * np.sum(np.exp(exponent) * _WEIGHTS, axis=-1)
    return np.asarray(
        nu * np.log(mode) - 0.5 * mode * mode + y * mode + np.log(integral), dtype=np.float64
    )
