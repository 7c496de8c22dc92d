"""Fraction of the spent epsilon that the audit proves, simulated and in the digits demo."""

from __future__ import annotations

import runpy
import statistics
import tempfile
from pathlib import Path

import numpy as np
from support import quiet

from lightning_audit import AuditReport
from lightning_audit.accounting.composition import epsilon_of_history
from lightning_audit.accounting.history import StepHistory
from lightning_audit.accounting.spending import epsilon_at_ratio, epsilon_of_parts
from lightning_audit.checks.accounting import LeakageBound, StudentBound
from lightning_audit.record.store import INJECTED, Observation, RecordHeader

DELTA, LEVEL, CANARIES = 1e-5, 0.05, 8
SIGMA, RATE = 1.0, 1 / 28
#: Stated noise multiplier, sampling rate and steps of schedules, which the training follows.
SCHEDULES: dict[str, list[tuple[float, float, int]]] = {
    "noise multiplier 1.6 -> 0.8": [(s, 0.02, 50) for s in np.geomspace(1.6, 0.8, 20).tolist()],
    "sample rate .01, then .04": [(1.0, 0.01, 500), (1.0, 0.04, 500)],
}

#: Names of examples/digits.py.
DEMO = runpy.run_path(str(Path(__file__).parents[1] / "examples" / "digits.py"))


def proved(
    claims: list[tuple[float, float, int]], seed: int, *, planned: bool = True
) -> tuple[float, float]:
    """Return the proved fractions of the epsilon of correct steps, without data in the readings.

    That of all looks, and that of one look at the end, which is for steps of one claim.
    """
    steps = sum(count for *_, count in claims)
    names = tuple(f"canary {i}" for i in range(CANARIES))
    header = RecordHeader(names, ("w",), (1,), 1, planned_steps=steps if planned else None)
    bound, student = LeakageBound(header), StudentBound(header)
    rng = np.random.default_rng(seed)
    entries, t = np.zeros(steps, dtype=header.dtype), 0
    entries["step"], entries["canaries"] = np.arange(steps), INJECTED
    for sigma, rate, count in claims:
        for entry in entries[t : t + count]:
            coins = rng.integers(0, 2, CANARIES)
            entry["noise_multiplier"], entry["sample_rate"], entry["coins"] = sigma, rate, coins
            entry["readings"] = coins + sigma * rng.standard_normal(CANARIES)
            bound.update(Observation.of(entry))
            student.update(Observation.of(entry))
        t += count
    history = StepHistory()
    for sigma, rate, count in claims:
        for _ in range(count):
            history.add(sigma, rate)
    spent = epsilon_of_history(history.phases(), DELTA)
    anytime = epsilon_of_parts(history, bound.front(LEVEL), DELTA) or 0.0
    mu, sigma = student.mu_lower(LEVEL)
    at_end = epsilon_at_ratio(history.phases(), mu * sigma, DELTA) or 0.0
    return anytime / spent, at_end / spent


def of_digits(seed: int) -> float:
    """Return the fraction that the report of the demo's correct training proves."""
    with tempfile.TemporaryDirectory() as folder:
        DEMO["train"]("correct", Path(folder), seed)
        report = AuditReport.load(Path(folder) / "report.json")
    assert report.epsilon_spent
    return (report.epsilon_lower or 0.0) / report.epsilon_spent


def run(
    seeds: int = 20, trainings: int = 10, lengths: tuple[int, ...] = (300, 3000)
) -> dict[str, object]:
    """Return medians and ranges of the proved fraction."""
    quiet()
    results: dict[str, object] = {}
    for steps in lengths:
        for planned in (True, False):
            found = [proved([(SIGMA, RATE, steps)], seed, planned=planned) for seed in range(seeds)]
            end = "its end is known" if planned else "its end is unknown"
            results[f"simulated, {steps} steps, {end}"] = _summary([one for one, _ in found])
        results[f"simulated, {steps} steps, one look at the end"] = _summary(
            [at_end for _, at_end in found]
        )
    if max(lengths) > 1000:
        for name, claims in SCHEDULES.items():
            results[f"simulated, {name}"] = _summary([proved(claims, s)[0] for s in range(seeds)])
    results["digits demo, 290 steps"] = _summary([of_digits(seed) for seed in range(trainings)])
    return results


def _summary(found: list[float]) -> str:
    return f"{statistics.median(found):.3f} ({min(found):.3f} to {max(found):.3f}) of {len(found)}"
