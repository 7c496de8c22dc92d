"""Runs what is too slow for every stage of `make test`, and writes docs/nightly.md.

python benchmarks/nightly.py [--small] [--page FILE] [--only PART ...]

It runs the tests marked `nightly`, the whole selftest, an exception in each function of the package
(failure_sweep.py), 300 mutants (mutants.py, which writes docs/mutants.md), and benchmarks.
Benchmarks of correct trainings fail if a training is accused; the numbers of the others are
recorded.
``--small`` runs a small version of each part in a few minutes, to check that this script works.
``--only tests`` runs one part again and keeps the results of the others from the previous run.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "nightly.md"
#: Parts of the last full run.
LAST = ROOT / "benchmarks" / "results" / "nightly.json"
#: Longest first: two run at a time.
BENCHMARKS = (
    "healthy",
    "healthy_matrix",
    "drift",
    "detection",
    "transformer",
    "black_box",
    "late_faults",
    "plan_steps",
)
PARTS = ("tests", "lowest", "selftest", "failures", "mutants", *BENCHMARKS)
#: Benchmarks of correct trainings.
HEALTHY = ("healthy_matrix", "healthy")
_HEAD = """# The last whole run

<!-- Made by `make nightly` (`python benchmarks/nightly.py`); do not edit. -->

`make nightly` runs what is too slow for every stage of `make test`: the tests marked `nightly`
(simulations, figures and benchmarks at full size, of which `make heavy` runs a smaller version),
the quick tests with the lowest versions that pyproject.toml allows, `lightning-audit selftest` with
every fault, an exception at the first call of each function that a training calls
(`benchmarks/failure_sweep.py`), mutants of the checks and the verdict ([mutants.md](mutants.md)),
and benchmarks.
Benchmarks of correct trainings fail if a training is accused; the numbers of the others are
recorded, and the tests check them.
"""


@dataclass(frozen=True)
class Part:
    """One part of the run.

    Args:
        name: what ran.
        passed: whether it ended as expected.
        said: its result, in one line.
        seconds: its duration.
        commit: the commit that ran.
    """

    name: str
    passed: bool
    said: str
    seconds: float
    commit: str = ""


def tests(small: bool) -> Part:
    """Run the tests marked `nightly`."""
    chosen = ["-k", "raw_gradients or post_processing or doubles or doubled"] if small else []
    command = [sys.executable, "-m", "pytest", "--quiet", "--numprocesses=2", "--dist=worksteal"]
    return _tested("tests marked `nightly`", [*command, "-m", "nightly", *chosen, "tests"])


def lowest(small: bool) -> Part:
    """Run the quick tests, or those of a package, with the lowest versions in pyproject.toml."""
    command = ["make", "lowest", f"PYTHON={sys.executable}"]
    chosen = ["SELECT=tests/accounting"] if small else []
    return _tested("quick tests with the lowest versions", [*command, *chosen])


def _tested(name: str, command: Sequence[str]) -> Part:
    """Run pytest; the result is the last line that it prints."""
    code, out, seconds = _run(command)
    closing = [
        line.strip("= ") for line in out.splitlines() if " passed" in line or "failed" in line
    ]
    return Part(name, code == 0, closing[-1] if closing else "no result", seconds)


def selftest(small: bool) -> Part:
    """Run the whole selftest, or two faults and a healthy training."""
    command = [sys.executable, "-m", "lightning_audit.cli.main", "selftest", "--jobs", "2"]
    code, out, seconds = _run([*command, *(["--quick"] if small else [])])
    last = out.splitlines()[-1] if out.strip() else "no result"
    return Part("`lightning-audit selftest`", code == 0, last.rpartition("; ")[0] or last, seconds)


def failures(small: bool) -> Part:
    """Raise an exception in each function of the package that a training calls, or in some."""
    command = [sys.executable, str(ROOT / "benchmarks" / "failure_sweep.py"), "--jobs", "2"]
    code, out, seconds = _run([*command, *(["--one-in", "400"] if small else [])])
    last = out.splitlines()[-1] if out.strip() else "no result"
    return Part("an exception in each function of the package", code == 0, last, seconds)


def mutants(small: bool) -> Part:
    """Run mutants of the checks and the verdict, or two of the verdict without their page."""
    few = ["--draw=2", "--rooms", "lightning_audit/verdict", f"--page={os.devnull}"]
    script = [sys.executable, str(ROOT / "benchmarks" / "mutants.py")]
    code, out, seconds = _run([*script, *(few if small else [])])
    return Part("mutants", code == 0, (out.splitlines() or ["no result"])[-1], seconds)


def benchmark(name: str, small: bool) -> Part:
    """Run a benchmark, which writes its results to benchmarks/results."""
    script = [sys.executable, str(ROOT / "benchmarks" / "run.py")]
    file = ROOT / "benchmarks" / "results" / f"{name}.json"
    file.unlink(missing_ok=True)  # a run without results must not show the previous ones
    code, out, seconds = _run([*script, *(["--small"] if small else []), name])
    if code or not file.exists():
        return Part(f"benchmark `{name}`", False, (out.splitlines() or ["no result"])[-1], seconds)
    results = json.loads(file.read_text())
    if name in HEALTHY:
        alarms = results["alarms"]
        said = f"{alarms} of {results['trainings']} healthy trainings accused"
        return Part(f"benchmark `{name}`", alarms == 0, said, seconds)
    said = "; ".join(f"{key}: {value}" for key, value in results.items() if "ms" not in key)
    return Part(f"benchmark `{name}`", True, said, seconds)


def _run(command: Sequence[str]) -> tuple[int, str, float]:
    """Return exit code, output and seconds of a command."""
    begun = time.monotonic()
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        print(done.stdout, file=sys.stderr)
    return done.returncode, done.stdout, time.monotonic() - begun


def commit() -> str:
    """Return the commit that ran, and whether files differed from it."""

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.strip()

    # Each run rewrites the pages itself.
    pages = [f":!docs/{name}.md" for name in ("nightly", "mutants")]
    changed = git("status", "--porcelain", "--untracked-files=no", *pages)
    return git("rev-parse", "HEAD") + (", with changes" if changed else "")


def markdown(parts: Sequence[Part], commit: str, date: str, *, small: bool = False) -> str:
    """Return the page."""
    failed = sum(not part.passed for part in parts)
    minutes = sum(part.seconds for part in parts) / 60
    packages = ", ".join(
        f"{name} {version(name)}" for name in ("torch", "opacus", "pytorch-lightning")
    )
    parts_failed = f"{failed} part{'s' * (failed > 1)} failed"
    lines = [
        _HEAD,
        f"Of {date}, commit {commit}: **{parts_failed if failed else 'all passed'}**.",
        f"Python {platform.python_version()}, {packages}. {minutes:.0f} minutes in all parts.",
        *(
            ["**A small run, which shows that the script works and nothing else.**"]
            if small
            else []
        ),
        "",
        "| part | came out | result | minutes | commit |",
        "|---|---|---|---|---|",
    ]
    for part in parts:
        said = part.said.replace("|", "\\|")
        outcome = "passed" if part.passed else "**failed**"
        minutes, ran = part.seconds / 60, part.commit or commit
        lines.append(f"| {part.name} | {outcome} | {said} | {minutes:.1f} | {ran[:7]} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run all parts; return 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true", help="a small version of each part")
    parser.add_argument("--page", type=Path, default=PAGE, help="where the page goes")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="parts to run")
    options = parser.parse_args()
    ran = commit()
    parts = {} if options.only == PARTS else _before()

    def take(part: Part) -> None:
        parts[part.name] = dataclasses.replace(part, commit=ran)
        print(part, flush=True)
        if not options.small:  # so that an interrupted run keeps its parts
            LAST.parent.mkdir(exist_ok=True)
            LAST.write_text(json.dumps([dataclasses.asdict(p) for p in parts.values()], indent=1))

    if "tests" in options.only:
        take(tests(options.small))
    if "lowest" in options.only:
        take(lowest(options.small))
    if "selftest" in options.only:
        take(selftest(options.small))
    if "failures" in options.only:
        take(failures(options.small))
    if "mutants" in options.only:
        take(mutants(options.small))
    chosen = [name for name in BENCHMARKS if name in options.only]
    with ThreadPoolExecutor(2) as pool:
        for part in pool.map(lambda name: benchmark(name, options.small), chosen):
            take(part)
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    page = markdown(list(parts.values()), ran, today, small=options.small)
    options.page.write_text(page, encoding="utf-8")
    return int(not all(part.passed for part in parts.values()))


def _before() -> dict[str, Part]:
    """Return the parts of the previous run, by name; none before the first."""
    kept = json.loads(LAST.read_text()) if LAST.exists() else []
    return {part["name"]: Part(**part) for part in kept}


if __name__ == "__main__":
    sys.exit(main())
