"""Trade-off curves of DP-SGD trainings compared with riskcal: values and times, in one run."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from dp_accounting.pld import privacy_loss_distribution
from peers import UnavailableError, peer_results, timed
from pld_tradeoff import tradeoff_from_pld

#: (noise multiplier, sample rate, steps).
TRAININGS = ((1.0, 0.01, 1000), (0.8, 0.00512, 20_000), (2.0, 0.1, 300))
GRID = 1e-3
ALPHAS = np.concatenate([[1e-6, 1e-5, 1e-4, 1e-3], np.linspace(0.01, 0.99, 99)])


def cases() -> dict[str, dict[str, Any]]:
    """Return the trainings, with the type I errors at which their curves are evaluated."""
    return {
        f"sigma {sigma}, q {rate}, {steps} steps": {
            "sigma": sigma,
            "sample_rate": rate,
            "steps": steps,
            "grid": GRID,
            "alphas": ALPHAS.tolist(),
        }
        for sigma, rate, steps in TRAININGS
    }


def ours(case: dict[str, Any]) -> tuple[np.ndarray, float]:
    """Return type II error rates, and the milliseconds for the curve and its values."""
    step = privacy_loss_distribution.from_gaussian_mechanism(
        case["sigma"],
        value_discretization_interval=case["grid"],
        sampling_prob=case["sample_rate"],
    )
    pld = step.self_compose(case["steps"])
    alphas = np.array(case["alphas"])
    return timed(lambda: np.asarray(tradeoff_from_pld(pld)(alphas)))


def run() -> dict[str, object]:
    """Return the curves of the same distributions, ours and riskcal's."""
    wanted = cases()
    results: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "cases.json"
        file.write_text(json.dumps(wanted))
        try:
            peer = peer_results("riskcal", file)
            results["version of riskcal"] = peer["version"]
        except UnavailableError as error:
            peer = {"results": {}}
            results["unavailable"] = str(error)
    for name, case in wanted.items():
        betas, ms = ours(case)
        row = {"ms": round(ms, 1), "type II error at .01 and .1": _at(betas)}
        theirs = peer["results"].get(name)
        if theirs is not None:
            other = np.array(theirs["betas"])
            row |= {
                "riskcal's ms": round(theirs["ms"], 1),
                "riskcal's at .01 and .1": _at(other),
                "largest difference": float(f"{np.abs(other - betas).max():.1e}"),
                "ours above theirs by at most": float(f"{(betas - other).max():.1e}"),
            }
        results[name] = row
    return results


def _at(betas: np.ndarray) -> list[float]:
    return [round(float(np.interp(alpha, ALPHAS, betas)), 5) for alpha in (0.01, 0.1)]
