"""Mechanisms whose trade-off curves are known exactly, for the tests of black-box statistics."""

import math
from dataclasses import dataclass

import numpy as np

from lightning_audit.stats.tradeoff import GaussianTradeoff


@dataclass(frozen=True)
class LaplaceTradeoff:
    """Laplace noise of scale one on answers that differ by ``shift``."""

    shift: float

    def __call__(self, alpha):
        m, a = self.shift, np.asarray(alpha, dtype=float)
        middle = math.exp(-m) / (4 * np.maximum(a, 1e-300))
        beta = np.where(
            a < math.exp(-m) / 2,
            1 - math.exp(m) * a,
            np.where(a <= 0.5, middle, math.exp(-m) * (1 - a)),
        )
        return float(beta) if beta.ndim == 0 else beta


def gaussian(rng, n, shift=1.0):
    return rng.normal(0, 1, n), rng.normal(shift, 1, n)


def laplace(rng, n, shift=1.0):
    return rng.laplace(0, 1, n), rng.laplace(shift, 1, n)


def randomised_response(rng, n, epsilon=1.0):
    """Bits, of which one of 1 + e^epsilon is a lie: (epsilon, 0)-DP with two atoms."""
    lie = 1 / (1 + math.exp(epsilon))
    return (rng.random(n) < lie).astype(float), (rng.random(n) >= lie).astype(float)


def plane(rng, n, shift=1.0):
    """Gaussian noise in two dimensions."""
    direction = shift * np.array([0.6, 0.8])
    return rng.normal(0, 1, (n, 2)), rng.normal(direction, 1, (n, 2))


MECHANISMS = {"Gaussian": (gaussian, GaussianTradeoff), "Laplace": (laplace, LaplaceTradeoff)}
