"""Steps until noise that becomes wrong at some step is flagged, by simulated probe coordinates.

Six tensors of 64 probe coordinates, data with a tenth of the noise's variance, the audit's checks.
"""

from __future__ import annotations

import statistics

import numpy as np

from lightning_audit.checks.noise import NOISE, WitnessNoiseCheck
from lightning_audit.record.store import Observation, RecordHeader

TENSORS, WITNESSES, DATA = 6, 64, 0.1
SIGNIFICANCE = 1e-3


def steps_to_flag(onset: int, factor: float, seed: int, limit: int = 2000) -> int | None:
    """Return the steps after the onset until a noise check flags; None if none does in time.

    Args:
        onset: correct steps before the fault.
        factor: true noise over the claim after the onset.
        seed: of the simulation.
        limit: largest number of faulty steps.
    """
    rng = np.random.default_rng(seed)
    names = tuple(f"tensor {j}" for j in range(TENSORS))
    header = RecordHeader(("none",), names, (WITNESSES,) * TENSORS, lags=1)
    check = WitnessNoiseCheck(NOISE, header, SIGNIFICANCE)
    entry = np.zeros((), dtype=header.dtype)
    for step in range(onset + limit):
        variance = (1.0 if step < onset else factor**2) + DATA
        entry["step"] = step
        entry["tensor_squares"] = variance * rng.chisquare(WITNESSES, TENSORS)
        check.update(Observation.of(entry))
        if any(test.violated for test in (check.test, check.single, check.burst)):
            return step - onset + 1
    return None


def run(seeds: int = 5) -> dict[str, object]:
    """Return median steps after the onset, for no noise and for 0.8 times the claimed noise."""
    results: dict[str, object] = {}
    for factor in (0.0, 0.8):
        for onset in (0, 2000, 8000):
            found = [steps_to_flag(onset, factor, seed) for seed in range(seeds)]
            seen = [steps if steps is not None else 10**9 for steps in found]
            results[f"noise x{factor:g} after {onset} correct steps"] = statistics.median(seen)
    return results
