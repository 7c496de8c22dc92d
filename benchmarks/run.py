"""Runs the benchmarks, prints their figures, and writes them to benchmarks/results.

python benchmarks/run.py [--small] [NAME ...]
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import sys
from pathlib import Path
from typing import Any

NAMES = (
    "detection",
    "late_faults",
    "healthy",
    "healthy_matrix",
    "transformer",
    "drift",
    "epoch_cost",
    "overhead",
    "examination_cost",
    "examination_memory",
    "whole_runs",
    "plain_loops",
    "reports",
    "step_crossings",
    "plan_steps",
    "two_processes",
    "memory",
    "black_box",
    "many_trainings",
    "many_bounds",
    "many_at_once",
    "names",
    "lower_bound",
    "leakage_laws",
    "interval_coverage",
    "examined_records",
    "sequential_peers",
    "pytest_start",
    "report_page",
)

#: Arguments of a small run that checks that a benchmark works, for benchmarks that have them.
SMALL: dict[str, dict[str, Any]] = {
    "detection": {"seeds": 1},
    "late_faults": {"seeds": 1},
    "healthy": {"runs": 2},
    "healthy_matrix": {"seeds": 1, "steps": 4},
    "transformer": {"width": 64},
    "examination_cost": {"steps": 20},
    "drift": {"seeds": 1},
    "plan_steps": {"seeds": 1, "kinds": ["conv net"]},
    "whole_runs": {"pairs": 1, "only": "DPLSTM"},
    "plain_loops": {"pairs": 1, "only": "tiny"},
    "reports": {"steps": 40, "copies": 3},
    "black_box": {"runs": 1},
    "pytest_start": {"pairs": 2},
    "many_trainings": {"trainings": 8},
    "many_bounds": {"audits": 2, "sizes": (60,), "others": 60},
    "many_at_once": {"trainings": 20, "mlps": 2, "planned": 200},
    "lower_bound": {"seeds": 1, "trainings": 1, "lengths": (100,)},
    "leakage_laws": {"laws": 2, "climbs": 1, "tries": 1, "runs": 1},
    "interval_coverage": {"runs": 2},
    "examined_records": {"correct": 2, "seeds": 1, "faults": 2},
    "sequential_peers": {"seeds": 1, "most": 100},
    "report_page": {"trainings": 1, "repeats": 1},
    "names": {"kinds": ["small MLP"], "faults": ["half_noise", "clip_after_average"]},
}


def main(names: list[str], small: bool = False) -> None:
    folder = Path(__file__).parent / "results"
    folder.mkdir(exist_ok=True)
    for name in names or NAMES:
        module = importlib.import_module(name)
        with contextlib.redirect_stdout(io.StringIO()):  # the reports of hundreds of trainings
            results = module.run(**SMALL.get(name, {}) if small else {})
        print(f"{name}: {(module.__doc__ or '').splitlines()[0]}")
        for key, value in results.items():
            print(f"  {key}: {value}")
        (folder / f"{name}.json").write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main([name for name in sys.argv[1:] if name != "--small"], "--small" in sys.argv)
