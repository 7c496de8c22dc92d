"""Black-box audits: time of the estimates, and outputs needed until a false claim is refuted."""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from lightning_audit.stats.output_estimates import estimate_by_kernel, estimate_by_neighbours
from lightning_audit.stats.output_tests import SequentialTradeoffTest

# The tests' known mechanisms are those of the paper.
sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))
from known_mechanisms import MECHANISMS

SAMPLES = 100_000
CLAIMS = (0.9, 0.8, 0.5)
RUNS, MOST, SIGNIFICANCE = 20, 60_000, 1e-3


def milliseconds(call: Callable[[], object], repeats: int = 7) -> float:
    """Return the median time of a call in milliseconds."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)


def outputs_needed(name: str, claimed: float, seed: int, most: int = MOST) -> float:
    """Return the outputs per data set until a claim is refuted; infinite if ``most`` is too few.

    Drawn as `audit_mechanism` draws them, from noise whose true parameter is 1.
    """
    sampler, claim = MECHANISMS[name]
    rng = np.random.default_rng(seed)
    test = SequentialTradeoffTest(claim(claimed))
    while test.samples < most:
        test.update(*sampler(rng, max(16, test.samples // 8)))
        if test.log_e >= -math.log(SIGNIFICANCE):
            return float(test.samples)
    return math.inf


def run(runs: int = RUNS) -> dict[str, object]:
    """Return times at 100,000 outputs, and the median outputs needed over ``runs`` runs."""
    results: dict[str, object] = {}
    rng = np.random.default_rng(0)
    for name, (sampler, _) in MECHANISMS.items():
        p, q = sampler(rng, SAMPLES)
        results[f"{name}, kernel estimate, ms"] = round(
            milliseconds(lambda p=p, q=q: estimate_by_kernel(p, q)), 1
        )
        results[f"{name}, neighbours estimate, ms"] = round(
            milliseconds(lambda p=p, q=q: estimate_by_neighbours(p, q)), 1
        )
        for claimed in CLAIMS:
            needed = sorted(outputs_needed(name, claimed, seed) for seed in range(runs))
            results[f"{name}, claim {claimed}, median outputs"] = statistics.median(needed)
            results[f"{name}, claim {claimed}, largest of {runs}"] = needed[-1]
        false = sum(outputs_needed(name, 1.0, seed, 5000) < math.inf for seed in range(runs))
        results[f"{name}, true claim, refuted of {runs}"] = false
    return results
