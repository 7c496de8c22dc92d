"""Run by riskcal's own interpreter: DATA.json to type II error rates and milliseconds, as JSON."""

import json
import sys
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np
from dp_accounting.pld import privacy_loss_distribution
from riskcal.analysis import get_beta_from_pld

REPETITIONS = 5


def measured(case: dict) -> dict:
    """The trade-off curve at the wanted type I error rates; the distribution is not timed."""
    step = privacy_loss_distribution.from_gaussian_mechanism(
        case["sigma"],
        value_discretization_interval=case["grid"],
        sampling_prob=case["sample_rate"],
    )
    pld = step.self_compose(case["steps"])
    alphas = np.array(case["alphas"])
    times = []
    for _ in range(REPETITIONS):
        start = time.perf_counter()
        betas = get_beta_from_pld(pld, alpha=alphas)
        times.append(1e3 * (time.perf_counter() - start))
    return {"betas": [float(beta) for beta in betas], "ms": float(np.median(times))}


if __name__ == "__main__":
    cases = json.loads(Path(sys.argv[1]).read_text())
    results = {name: measured(case) for name, case in cases.items()}
    print(json.dumps({"version": version("riskcal"), "results": results}))
