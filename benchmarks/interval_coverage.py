"""How often the noise interval and the bound at the planned end are false, by law."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from lightning_audit.checks.accounting import StudentBound
from lightning_audit.record.store import RecordHeader
from lightning_audit.stats._arguments import Floats
from lightning_audit.stats.noise_tests import noise_interval

#: Levels of the two.
INTERVAL, END = 0.01, 0.05
#: Entries of four tensors, and the noise over its claim in each.
TENSORS = {"net": (600, 30, 150, 5), "20 steps": (12_000, 600, 3_000, 100)}
RATIOS = (
    (0.5, 0.5, 0.5, 0.5),
    (0.8, 0.8, 0.8, 0.8),
    (0.5, 0.7, 0.7, 0.7),
    (0.4, 0.5, 0.5, 0.5),
    (0.6, 0.6, 0.8, 0.8),
    (0.8, 0.8, 0.8, 0.4),
)
#: Steps, canaries and noise multiplier.
GAMES = ((60, 8, 30.0), (60, 8, 8.0), (60, 8, 1.0), (300, 1, 10.0), (200, 8, 2.0))

#: Data term ``[runs, k]`` of step t of T, from the coins' past balance and the last readings.
Law = Callable[[int, int, Floats, Floats, np.random.Generator, float], Any]


def outliers(steps: int, size: float) -> Law:
    """Return the law of data in the first steps along the first canary alone."""

    def data(t: int, end: int, balance: Floats, *_: Any) -> Floats:
        found = np.zeros_like(balance)
        found[:, 0] = _[-1] * size * math.sqrt(end * balance.shape[1]) * (t < steps)
        return found

    return data


LAWS: dict[str, Law] = {
    "no data": lambda *_: 0.0,
    **{
        f"minus {c} times the past coins' balance": (
            lambda t, end, balance, last, rng, s, c=c: -c * s * balance / math.sqrt(end)
        )
        for c in (1, 2, 4)
    },
    "minus 3 times that of all canaries": lambda t, end, balance, last, rng, s: (
        -3 * s * balance.sum(1, keepdims=True) / math.sqrt(end * balance.shape[1])
    ),
    "plus 2 times the past coins' balance": lambda t, end, balance, last, rng, s: (
        2 * s * balance / math.sqrt(end)
    ),
    "3 outliers": outliers(3, 1.0),
    "4 large outliers": outliers(4, 30.0),
    "Cauchy": lambda t, end, balance, last, rng, s: s * rng.standard_cauchy(balance.shape),
    "minus the last reading": lambda t, end, balance, last, rng, s: -last,
    "drift": lambda t, end, balance, last, rng, s: 0.05 * s * t,
    "alternating": lambda t, end, balance, last, rng, s: 5.0 * s * (-1) ** t,
}


def of_interval(runs: int, rng: np.random.Generator) -> dict[str, str]:
    """Return how often the least noise of all tensors is outside, and how often it is named."""
    found = {}
    for name, counts in TENSORS.items():
        for ratios in RATIOS:
            least, n = min(ratios), np.array(counts, dtype=np.float64)
            squares = np.square(ratios) * rng.chisquare(n, (runs, len(n)))
            read = [noise_interval(n, each, INTERVAL) for each in squares]
            outside = np.mean([not one.lower <= least <= one.upper for one in read])
            apart = np.mean([one.least_noise is not None for one in read])
            law = " ".join(f"{ratio:g}" for ratio in ratios)
            found[f"noise, {name}: {law}"] = f"{outside:.4f} outside, {apart:.2f} distinguished"
    return found


def at_the_end(law: Law, game: tuple[int, int, float], runs: int, seed: int) -> Floats:
    """Return the limits at the end, over mu."""
    steps, k, sigma = game
    rng = np.random.default_rng(seed)
    header = RecordHeader(tuple(f"canary {i}" for i in range(k)), ("w",), (1,), 1)
    bounds = [StudentBound(header) for _ in range(runs)]
    balance, last = np.zeros((runs, k)), np.zeros((runs, k))
    for t in range(steps):
        coins = rng.integers(0, 2, (runs, k)).astype(np.float64)
        data = law(t, steps, balance, last, rng, sigma)
        last = coins + data + sigma * rng.standard_normal((runs, k))
        for bound, b, z in zip(bounds, coins, last, strict=True):
            seen: Any = SimpleNamespace(coins=b, readings=z, noise_multiplier=sigma)
            bound.update(seen)
        balance = balance + coins - 0.5
    return sigma * np.array([bound.mu_lower(END)[0] for bound in bounds])


def run(runs: int = 400) -> dict[str, object]:
    """Return false rates by law, and the median limit over mu; at the end by game."""
    found: dict[str, object] = {**of_interval(runs, np.random.default_rng(0))}
    for name, law in LAWS.items():
        cells = [at_the_end(law, game, runs, seed) for seed, game in enumerate(GAMES)]
        false = ", ".join(f"{np.mean(limits > 1.0):.4f}" for limits in cells)
        middle = ", ".join(f"{np.median(limits):.3f}" for limits in cells)
        found[f"end, {name}"] = f"false {false}; median over mu {middle}"
    return found


if __name__ == "__main__":
    for key, value in run().items():
        print(key, value)
