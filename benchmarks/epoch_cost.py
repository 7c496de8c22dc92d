"""Cost of composing epsilon at an epoch's end, after the first epoch."""

from __future__ import annotations

import statistics
import time

from lightning_audit.accounting.composition import epsilon_of_history
from lightning_audit.accounting.history import Phase


def run(epochs: int = 30) -> dict[str, object]:
    """Return the milliseconds of the first composition and the median of later ones."""
    results: dict[str, object] = {}
    for sigma, rate, steps in ((1.0, 0.01, 100), (0.8, 0.00512, 195), (3.0, 0.04, 25)):
        times = []
        for epoch in range(1, epochs + 1):
            start = time.perf_counter()
            epsilon_of_history([Phase(sigma, rate, steps * epoch)], 1e-5)
            times.append(1e3 * (time.perf_counter() - start))
        name = f"sigma {sigma}, q {rate}, {steps} steps an epoch"
        results[f"{name}: first epoch, ms"] = round(times[0], 1)
        results[f"{name}: later epochs, median ms"] = round(statistics.median(times[1:]), 1)
    return results
