"""Runs selftest, training matrix, examples, overhead, many trainings and large nets on a device.

python benchmarks/gpu.py [--accelerator auto] [--quick] [--out benchmarks/results/gpu.json]

One JSON has what each part gave. Without an accelerator it says so and exits with 0; with
``--accelerator cpu`` it runs on the CPU. ``--quick`` runs a small version of each part, to check
that this script works. The exit code is 1 if a fault was missed, a correct training accused, or a
part failed.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import io
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import healthy_matrix
import large_nets
import many_at_once
import overhead
import torch
from nightly import ROOT, commit
from support import now, quiet

EXAMPLES = ("hand_written", "digits")
#: Largest difference of a parameter from the CPU's after five steps.
CLOSE = 1e-4


def selftest(accelerator: str, quick: bool) -> dict[str, Any]:
    """Return the result of `lightning-audit selftest`; its rows if they are not as expected."""
    command = [sys.executable, "-m", "lightning_audit.cli.main", "selftest", "--json"]
    command += ["--accelerator", accelerator, *(["--quick"] if quick else [])]
    command += ["--jobs", str(max(1, min(8, (os.cpu_count() or 2) // 2)))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise RuntimeError(done.stderr[-500:])
    found = json.loads(done.stdout)
    fine = ("found", "warned", "not accused")
    return {
        "failed": done.returncode != 0,
        "summary": found["summary"],
        "seconds": found["seconds"],
        "failures": [row for row in found["rows"] if row["status"] not in fine],
    }


def matrix(accelerator: str, quick: bool) -> dict[str, Any]:
    """Return the verdict of each correct training of the matrix, or the error that ended it."""
    rows = healthy_matrix.rows()[: 2 if quick else None]
    given = {
        f"{row.group}: {row.name}": _tried(
            lambda row=row: healthy_matrix.outcome(row, 0, 30 if quick else 120, accelerator)
        )
        for row in rows
    }
    wrong = [name for name, found in given.items() if found[0] not in ("PASS", "INCONCLUSIVE")]
    return {"failed": bool(wrong), "wrong": wrong, "trainings": given}


def examples(accelerator: str, quick: bool) -> dict[str, Any]:
    """Return the exit code and the last lines of each example; 0 is as expected."""
    found = {}
    for name in EXAMPLES[: 1 if quick else None]:
        with tempfile.TemporaryDirectory() as folder:
            script = [sys.executable, f"examples/{name}.py", "--report-dir", folder]
            script += ["--accelerator", accelerator]
            done = subprocess.run(script, cwd=ROOT, capture_output=True, text=True, check=False)
        said = done.stdout + (done.stderr if done.returncode else "")
        found[name] = [done.returncode, said.splitlines()[-6:]]
    return {"failed": any(code for code, _ in found.values()), "exit codes": found}


def costs(accelerator: str, quick: bool) -> dict[str, Any]:
    """Return the times of audited steps over those of unaudited ones."""
    if quick:
        return overhead.ratios("mlp of 103k", 64, 260, accelerator=accelerator)
    return overhead.run(600, accelerator)


def many(accelerator: str, quick: bool) -> dict[str, Any]:
    """Return the seconds and the accuracy of 1,000 models of `DPSGDMany`.

    Without noise and with full batches, its models must be those of the CPU.
    """
    here = many_at_once.flat_digits()
    inputs, labels = data = tuple(one.to(accelerator) for one in here)
    count, found, wrong = 20 if quick else 1000, {}, False
    sound = {"noise_multiplier": 0.0, "sample_rate": 1.0, "expected_batch_size": len(labels)}
    for make in (many_at_once.softmax_regression, many_at_once.mlp, many_at_once.per_sample_mlp):
        train = replace(many_at_once.training(make, len(labels)), memory_mib=4000.0)
        plain = replace(train, steps=5, **sound)
        pairs = zip(plain(data, 1).parameters(), plain(here, 1).parameters(), strict=True)
        apart = max(float((one.cpu() - other).detach().abs().max()) for one, other in pairs)
        began = now()
        models = train.many([data] * count, list(range(count)))
        seconds = round(now() - began, 2)
        right = [float((model(inputs).argmax(1) == labels).float().mean()) for model in models[:50]]
        where = str(next(models[0].parameters()).device)
        found[make.__name__] = {
            "models": count,
            "s": seconds,
            "on": where,
            "accuracy": round(sum(right) / len(right), 3),
            "largest difference from the CPU, full batches without noise": apart,
        }
        wrong = wrong or apart > CLOSE
    return {"failed": wrong, **found}


def large(accelerator: str, quick: bool) -> dict[str, Any]:
    """Return time and memory of four trainings of the size that is trained on a GPU."""
    return large_nets.run(accelerator, quick, "conv" if quick else "")


def _tried(call: Callable[[], Any]) -> Any:
    """Return what a training gives, or its error as an outcome."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            return call()
    except Exception as error:
        return ("ERROR", f"{type(error).__name__}: {error}"[:500], [])


def main() -> int:
    """Run all parts, and write what they gave."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--accelerator", default="auto", help="auto, cpu, cuda or mps")
    parser.add_argument("--quick", action="store_true", help="a small version of each part")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "gpu.json")
    options = parser.parse_args()
    place = options.accelerator
    if place == "auto":
        if not torch.accelerator.is_available():
            print("torch has no accelerator here; --accelerator cpu runs the same on the CPU")
            return 0
        place = torch.accelerator.current_accelerator().type
    quiet()
    packages = ("torch", "pytorch-lightning", "opacus", "numpy")
    found: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": commit(),
        "device": torch.cuda.get_device_name() if place == "cuda" else place,
        "versions": {"Python": platform.python_version(), **{p: version(p) for p in packages}},
        "quick": options.quick,
    }
    options.out.parent.mkdir(exist_ok=True)
    for part in (selftest, matrix, examples, costs, many, large):
        began = now()
        given = _tried(lambda part=part: part(place, options.quick))
        given = given if isinstance(given, dict) else {"failed": True, "error": given[1]}
        found[part.__name__] = {"minutes": round((now() - began) / 60, 1), **given}
        options.out.write_text(json.dumps(found, indent=2) + "\n")  # an interrupted run keeps it
        print(f"{part.__name__}: {'FAILED' if given.get('failed') else 'as expected'}", flush=True)
    print(f"open {options.out}")
    return int(any(part.get("failed") for part in found.values() if isinstance(part, dict)))


if __name__ == "__main__":
    sys.exit(main())
