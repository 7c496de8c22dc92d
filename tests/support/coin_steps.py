"""Coins and readings of simulated steps, and means over a normal."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy import integrate

RATIOS = np.array([0.25, 0.5, 0.8, 1.0, 1.25, 2.0, 4.0])


def simulated_steps(
    seed: int, steps: int, k: int, shift: float = 1.0, sigma: float = 1.5
) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(seed)
    coins = rng.integers(0, 2, (steps, k)).astype(float)
    readings = shift * coins + 0.3 + sigma * rng.standard_normal((steps, k))
    return list(zip(coins, readings, strict=True))


def normal_mean(function: Callable[[float], float], location: float, scale: float) -> float:
    value, _ = integrate.quad(
        lambda z: function(location + scale * z) * math.exp(-z * z / 2) / math.sqrt(2 * math.pi),
        -12,
        12,
        epsabs=1e-12,
        limit=400,
        points=[-location / scale] if abs(location / scale) < 12 else None,
    )
    return float(value)
