"""Runs the benchmarks, prints their figures, and writes them to benchmarks/results.

python benchmarks/run.py [NAME ...]
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import sys
from pathlib import Path

NAMES = (
    "detection",
    "late_faults",
    "healthy",
    "healthy_matrix",
    "transformer",
    "drift",
    "epoch_cost",
    "overhead",
    "two_processes",
    "memory",
)


def main(names: list[str]) -> None:
    folder = Path(__file__).parent / "results"
    folder.mkdir(exist_ok=True)
    for name in names or NAMES:
        module = importlib.import_module(name)
        with contextlib.redirect_stdout(io.StringIO()):  # the reports of hundreds of trainings
            results = module.run()
        print(f"{name}: {(module.__doc__ or '').splitlines()[0]}")
        for key, value in results.items():
            print(f"  {key}: {value}")
        (folder / f"{name}.json").write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
