"""Coins and readings of simulated steps, and means over a normal."""

import itertools
import math
from collections.abc import Callable

import numpy as np
from scipy import integrate

from lightning_audit.stats.canary_bets import CoinBet

RATIOS = np.array([0.25, 0.5, 0.8, 1.0, 1.25, 2.0, 4.0])


def simulated_steps(
    seed: int, steps: int, k: int, shift: float = 1.0, sigma: float = 1.5
) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(seed)
    coins = rng.integers(0, 2, (steps, k)).astype(float)
    readings = shift * coins + 0.3 + sigma * rng.standard_normal((steps, k))
    return list(zip(coins, readings, strict=True))


def mean_over_coins(residuals: np.ndarray, shift: float, history: int = 5, p: float = 0.5) -> float:
    """Mean over all coins of a step of the e-value after it, over the e-value before it."""
    k, mean = len(residuals), 0.0
    for sides in itertools.product([0.0, 1.0], repeat=k):
        coins = np.array(sides)
        bet = CoinBet((k,), initial_scale=0.7, coin_probability=p)
        for past in simulated_steps(3, history, k):
            bet.update(*past)
        before = float(bet.log_e)
        bet.update(coins, residuals + shift * coins)
        mean += math.exp(float(bet.log_e) - before) * float(np.prod(np.where(coins, p, 1 - p)))
    return mean


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
