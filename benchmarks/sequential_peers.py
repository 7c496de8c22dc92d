"""Outputs until `SequentialTradeoffTest` refutes, in the settings of two published auditors.

Those of arXiv:2509.07055 and arXiv:2602.06518.
`python benchmarks/run.py sequential_peers` prints, at significance .05, the outputs of each world;
a run ends at 10,000. docs/estimators/black-box.md has the table, with the papers' own figures.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from lightning_audit.stats.output_tests import SequentialTradeoffTest
from lightning_audit.stats.tradeoff import ApproxDPTradeoff, GaussianTradeoff, TradeoffFunction

Floats = NDArray[np.float64]
#: Draws outputs of both worlds.
Draw = Callable[[np.random.Generator, int], tuple[Floats, Floats]]

SIGNIFICANCE, MOST = 0.05, 10_000


class LaplaceTradeoff:
    """The trade-off function of Laplace noise whose scale is one over a shift mu."""

    def __init__(self, mu: float) -> None:
        self.mu = mu

    def __call__(self, alpha: Floats) -> Floats:
        """Return the type II error rate at each type I error rate, both ``[n]``."""
        a, ratio = np.asarray(alpha, dtype=np.float64), math.exp(self.mu)
        with np.errstate(divide="ignore"):
            middle = 1.0 / (4.0 * ratio * np.maximum(a, 1e-300))
        rest = np.where(a <= 0.5, middle, (1.0 - a) / ratio)
        return np.where(a < 0.5 / ratio, 1.0 - ratio * a, rest)


def shifted(kind: str) -> Draw:
    """Return noise of scale 1 and the same shifted by 1, as in arXiv:2602.06518."""

    def draw(rng: np.random.Generator, n: int) -> tuple[Floats, Floats]:
        noise = rng.laplace if kind == "laplace" else rng.normal
        return noise(0.0, 1.0, n), noise(1.0, 1.0, n)

    return draw


def mean_of(kind: str, epsilon: float, fault: str) -> Draw:
    """Return a noisy mean of {0} and of {0, 1}, as in Table 1 of arXiv:2509.07055.

    Args:
        kind: Noise, "laplace" or "normal".
        epsilon: That the mechanism claims.
        fault: "private": noisy count and noise of its size; "exact count": the count has no noise;
            "exact mean": the noise is that of a noisy count, the mean is exact.
    """

    def draw(rng: np.random.Generator, n: int) -> tuple[Floats, Floats]:
        noise = rng.laplace if kind == "laplace" else rng.normal
        worlds = []
        for size, total in ((1.0, 0.0), (2.0, 1.0)):
            count = np.full(n, size)
            if fault != "exact count":
                count = np.maximum(1e-12, size + noise(0.0, 2.0 / epsilon, n))
            mean = total / (count if fault == "private" else size)
            worlds.append(mean + noise(0.0, 2.0 / (count * epsilon), n))
        return worlds[0], worlds[1]

    return draw


SETTINGS: dict[str, tuple[Draw, TradeoffFunction]] = {
    "Gaussian of mu 1, claim .5": (shifted("normal"), GaussianTradeoff(0.5)),
    "Gaussian of mu 1, claim .8": (shifted("normal"), GaussianTradeoff(0.8)),
    "Gaussian of mu 1, claim 1 (true)": (shifted("normal"), GaussianTradeoff(1.0)),
    "Laplace of mu 1, claim .5": (shifted("laplace"), LaplaceTradeoff(0.5)),
    "Laplace of mu 1, claim .8": (shifted("laplace"), LaplaceTradeoff(0.8)),
    **{
        f"{name}, epsilon {epsilon:g}": (
            mean_of(kind, epsilon, fault),
            ApproxDPTradeoff(epsilon, 0.0 if kind == "laplace" else 1e-5),
        )
        for epsilon in (0.01, 0.1)
        for name, kind, fault in (
            ("NonDPGaussian1", "normal", "exact count"),
            ("NonDPLaplace1", "laplace", "exact count"),
            ("NonDPGaussian2", "normal", "exact mean"),
            ("NonDPLaplace2", "laplace", "exact mean"),
            ("DPLaplace (true)", "laplace", "private"),
        )
    },
}


def outputs_needed(name: str, seed: int, most: int = MOST) -> float:
    """Return the outputs of each world until the claim is refuted; infinity if it is not."""
    draw, claim = SETTINGS[name]
    rng, test = np.random.default_rng([seed, 3]), SequentialTradeoffTest(claim, delta=1e-5)
    while test.samples < most:
        test.update(*draw(rng, 10 if test.samples < 1000 else 50))
        if test.log_e >= -math.log(SIGNIFICANCE):
            return float(test.samples)
    return math.inf


def run(seeds: int = 20, most: int = MOST, names: tuple[str, ...] = ()) -> dict[str, str]:
    """Return mean, median and .95 quantile of the outputs needed, by setting."""
    results = {}
    for name in names or SETTINGS:
        found = np.array([outputs_needed(name, seed, most) for seed in range(seeds)])
        refuted = found[np.isfinite(found)]
        numbers = "-"
        if refuted.size:
            middle, high = np.quantile(refuted, [0.5, 0.95])
            numbers = f"mean {refuted.mean():.0f}, median {middle:.0f}, .95 {high:.0f}"
        results[name] = f"{numbers}; refuted {refuted.size} of {seeds}"
    return results
