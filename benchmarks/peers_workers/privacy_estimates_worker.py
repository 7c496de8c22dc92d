"""Run by privacy-estimates' own interpreter: DATA.json to quantiles and seconds, as JSON."""

import json
import sys
import time
from importlib.metadata import version
from pathlib import Path

from privacy_estimates import AttackResults, compute_eps_lo


def measured(case: dict) -> dict:
    """A quantile of one threshold, or why there is none."""
    fn, tp, fp, tn = case["counts"]
    counts = AttackResults(FN=fn, TP=tp, FP=fp, TN=tn)
    start = time.perf_counter()
    try:
        # A "lower bound" at alpha is the alpha-quantile, for any alpha.
        value = compute_eps_lo(counts, case["delta"], case["probability"], "joint-beta")
        found = {"value": float(value)}
    except ValueError as error:
        found = {"error": str(error)}
    return found | {"seconds": time.perf_counter() - start}


if __name__ == "__main__":
    cases = json.loads(Path(sys.argv[1]).read_text())
    results = {name: measured(case) for name, case in cases.items()}
    print(json.dumps({"version": version("privacy-estimates"), "results": results}))
