"""Run by jax-privacy's own interpreter: DATA to lower bounds and milliseconds, as JSON.

DATA.npz holds scores, DATA.json counts of guesses in one run.
"""

import json
import statistics
import sys
import time
from importlib.metadata import version
from pathlib import Path

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


def from_counts(method, case) -> dict:
    """The bound of one case, and the median time of some calls after a first one."""
    arguments = (0.0, case["canaries"], case["guesses"], case["correct"], SIGNIFICANCE, DELTA)
    value, times = method(*arguments), []
    for _ in range(5):
        start = time.perf_counter()
        method(*arguments)
        times.append(1e3 * (time.perf_counter() - start))
    return {"value": float(value), "ms": statistics.median(times)}


def of_scores(file: str) -> dict:
    data = np.load(file)
    games = {}
    for name in {key.rpartition("/")[0] for key in data.files}:
        middle = float(data[f"{name}/middle"])
        scores = list(zip(data[f"{name}/in"], data[f"{name}/out"], strict=True))
        games[name] = {key: measured(m, scores) for key, m in methods(middle).items()}
    return games


def of_counts(file: str) -> dict:
    # What its auditor calls once it has counted: less than a call of the auditor.
    return {
        name: {
            "Steinke": from_counts(auditing._epsilon_one_run, case),
            "f-DP": from_counts(auditing._epsilon_one_run_fdp, case),
        }
        for name, case in json.loads(Path(file).read_text()).items()
    }


if __name__ == "__main__":
    results = (of_counts if sys.argv[1].endswith(".json") else of_scores)(sys.argv[1])
    print(json.dumps({"version": version("jax-privacy"), "results": results}))
