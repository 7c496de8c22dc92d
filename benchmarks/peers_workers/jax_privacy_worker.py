"""Run by jax-privacy's own interpreter: DATA.npz to lower bounds and milliseconds, as JSON."""

import json
import sys
import time
from importlib.metadata import version

import numpy as np
from jax_privacy import auditing

DELTA, SIGNIFICANCE = 1e-5, 0.05


def clopper_pearson(auditor, strategy):
    """At the larger of both ratios, like ours; by default the auditor looks at one only."""
    return auditor.epsilon_clopper_pearson(
        SIGNIFICANCE, DELTA, one_sided=False, threshold_strategy=strategy
    )


def one_run(auditor, strategy):
    return auditor.epsilon_one_run(SIGNIFICANCE, DELTA, threshold_strategy=strategy)


def methods(middle: float) -> dict:
    """Name to a function of an auditor; ``middle`` is a threshold fixed beforehand."""
    fixed, split = auditing.Explicit(middle), auditing.Split(seed=0)
    hull, many = auditing.Bonferroni(), auditing.MultiSplit(num_samples=100, seed=0)
    return {
        "CP, fixed": lambda a: clopper_pearson(a, fixed),
        "CP, split": lambda a: clopper_pearson(a, split),
        "CP, 100 splits": lambda a: clopper_pearson(a, many),
        "CP, hull": lambda a: clopper_pearson(a, hull),
        "one run, fixed": lambda a: one_run(a, fixed),
        "one run, split": lambda a: one_run(a, split),
        "one run, hull": lambda a: one_run(a, hull),
        "GDP, hull": lambda a: a.epsilon_from_gdp(SIGNIFICANCE, DELTA),
        "one run f-DP, split": lambda a: a.epsilon_one_run_fdp(
            SIGNIFICANCE, DELTA, threshold_strategy=split
        ),
    }


def measured(method, scores) -> dict:
    """A bound a seed, and the median time with the auditor's construction."""
    values, times = [], []
    for inside, outside in scores:
        start = time.perf_counter()
        try:
            values.append(float(method(auditing.CanaryScoreAuditor(inside, outside))))
        except ValueError:
            values.append(None)
        times.append(1e3 * (time.perf_counter() - start))
    return {"values": values, "ms": float(np.median(times))}


if __name__ == "__main__":
    data = np.load(sys.argv[1])
    games = {}
    for name in {key.rpartition("/")[0] for key in data.files}:
        middle = float(data[f"{name}/middle"])
        scores = list(zip(data[f"{name}/in"], data[f"{name}/out"], strict=True))
        games[name] = {key: measured(m, scores) for key, m in methods(middle).items()}
    print(json.dumps({"version": version("jax-privacy"), "results": games}))
