"""Scores of canaries from their coins, by mechanisms whose epsilon is known."""

from __future__ import annotations

import math

import numpy as np

from lightning_audit.stats.tradeoff import gaussian_mu


def null(rng: np.random.Generator, coins: np.ndarray) -> np.ndarray:
    return rng.random(coins.shape)


def gaussian(rng: np.random.Generator, coins: np.ndarray, delta: float = 1e-5) -> np.ndarray:
    """Epsilon 2 at the delta."""
    return gaussian_mu(2.0, delta) * coins + rng.standard_normal(coins.shape)


def response(rng: np.random.Generator, coins: np.ndarray) -> np.ndarray:
    """Randomized response of epsilon 1, and of mu 1.2320; ties are broken by noise."""
    truthful = rng.random(coins.shape) < math.e / (1 + math.e)
    return np.where(truthful, coins, ~coins) + 0.5 * rng.random(coins.shape)


def leaking(rng: np.random.Generator, coins: np.ndarray) -> np.ndarray:
    """Randomized response that gives a canary away with probability .01."""
    return np.where(coins & (rng.random(coins.shape) < 0.01), 9.0, response(rng, coins))


def shared_failure(rng: np.random.Generator, coins: np.ndarray) -> np.ndarray:
    """Leaks all canaries at once, or none: (0, .01)-DP for each, and far from independent."""
    leaked = coins + rng.random(coins.shape)
    return leaked if rng.random() < 0.01 else rng.random(coins.shape)
