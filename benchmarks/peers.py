"""Comparison with privacy-estimates and jax-privacy on one data set: time, accuracy, tightness.

Each peer runs in its own virtual environment, created with pip on first use and kept in
benchmarks/.environments. If one cannot be created, the result says so and has only our half.
"""

from __future__ import annotations

import datetime
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from lightning_audit.stats.counts import ConfusionCounts
from lightning_audit.stats.named_bounds import named_bound
from lightning_audit.stats.one_run import (
    OneRunScores,
    epsilon_one_run,
    epsilon_one_run_fdp,
    mu_one_run,
)
from lightning_audit.stats.posteriors import Posterior
from lightning_audit.stats.thresholds import Fixed, Simultaneous, Split, candidate_thresholds
from lightning_audit.stats.tradeoff import gaussian_epsilon, gaussian_mu

FOLDER = Path(__file__).parent
ENVIRONMENTS = FOLDER / ".environments"
PINS = {
    "privacy-estimates": "0.1.0.post1",
    "jax-privacy": "2.0.0",
    "riskcal": "1.5.1",
    "privacy-meter": "1.0.1",
}
#: What a peer imports and does not declare.
UNDECLARED = {"privacy-meter": ("scikit-learn==1.6.1",)}
DELTA, SIGNIFICANCE = 1e-5, 0.05

Scores = tuple[np.ndarray, np.ndarray]
Game = tuple[float, int]

#: Counts (fn, tp, fp, tn), delta and the probability of the quantile.
CASES: dict[str, tuple[tuple[int, int, int, int], float, float]] = {
    "35+25 errors of 100+100, .025": ((35, 65, 25, 75), 0.05, 0.025),
    "35+25 errors of 100+100, .975": ((35, 65, 25, 75), 0.05, 0.975),
    "peer's README (0, 487, 512, 1), .05": ((0, 487, 512, 1), DELTA, 0.05),
    "41296+1296 errors of 5e4+5e4, .025": ((41296, 8704, 1296, 48704), DELTA, 0.025),
}

#: For each of our methods: its assumption on the scores, and whether it searches the threshold.
OURS = {
    "CP, fixed": ("independent", "fixed"),
    "CP, split 1:4": ("independent", "searched"),
    "CP, Berk-Jones": ("independent", "searched"),
    "CP, DKW": ("independent", "searched"),
    "one run, fixed": ("fair coins", "fixed"),
    "one run, ranks": ("fair coins", "searched"),
    "one run f-DP any, ranks": ("fair coins", "searched"),
    "one run f-DP, ranks": ("fair coins, Gaussian mechanism", "searched"),
    "GDP pooled, fixed": ("independent, Gaussian mechanism", "fixed"),
    "GDP pooled, split 1:4": ("independent, Gaussian mechanism", "searched"),
    "GDP CP, DKW": ("independent, Gaussian mechanism", "searched"),
    "GDP CP, Berk-Jones": ("independent, Gaussian mechanism", "searched"),
    "GDP noncentral t": ("independent, Gaussian scores", "none"),
}

#: Canaries, guesses and correct guesses for the bounds of one run.
GUESSES = (
    (1000, 1000, 1000),
    (1000, 1000, 900),
    (1000, 1000, 750),
    (1000, 100, 100),
    (1000, 20, 20),
    (10_000, 1000, 950),
    (100_000, 1000, 990),
    (100, 100, 100),
)

_DIVISOR = "not proved: the number of hypotheses is read off the data (the hull's corners)"
#: For each of the peer's methods: assumption, threshold, whether it is proved, our counterpart.
THEIRS: dict[str, tuple[str, str, str, str | None]] = {
    "CP, fixed": ("independent", "fixed", "proved", "CP, fixed"),
    "CP, split": ("independent", "searched", "proved", "CP, Berk-Jones"),
    "CP, 100 splits": ("independent", "searched", "proved", "CP, Berk-Jones"),
    "CP, hull": ("independent", "searched", _DIVISOR, "CP, Berk-Jones"),
    "one run, fixed": ("fair coins", "fixed", "proved", "one run, fixed"),
    "one run, split": ("fair coins", "searched", "proved", "one run, ranks"),
    "one run, hull": ("fair coins", "searched", _DIVISOR, "one run, ranks"),
    "GDP, hull": (
        "independent, Gaussian mechanism",
        "searched",
        "refuted: positive without leakage, see its misses; upper limits that sum to more than "
        "one count as evidence",
        "GDP pooled, split 1:4",
    ),
    "one run f-DP, split": (
        "fair coins, Gaussian mechanism",
        "searched",
        "not proved: the scores decide the number of guesses, which the theorem takes as fixed",
        "one run f-DP, ranks",
    ),
}


class UnavailableError(Exception):
    """A peer's environment could not be created, or its worker failed."""


def interpreter(peer: str) -> Path:
    """Return the Python of the peer's environment, which is created if it is missing.

    Args:
        peer: name on the package index, one of `PINS`.

    Returns:
        The path of the interpreter.

    Raises:
        UnavailableError: if pip or venv failed.
    """
    folder = ENVIRONMENTS / f"{peer}-{PINS[peer]}"
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    complete = folder / "complete"
    if not complete.exists():
        install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        try:
            _output([sys.executable, "-m", "venv", "--clear", str(folder)])
            packages = [f"{peer}=={PINS[peer]}", *UNDECLARED.get(peer, ())]
            _output([str(python), *install, *packages])
        except UnavailableError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise UnavailableError(f"no environment of {peer}=={PINS[peer]}: {error}") from error
        complete.touch()
    return python


def peer_results(peer: str, data: Path) -> dict[str, Any]:
    """Return what the peer's worker prints for a data file: its version and results."""
    worker = FOLDER / "peers_workers" / f"{peer.replace('-', '_')}_worker.py"
    result: dict[str, Any] = json.loads(_output([str(interpreter(peer)), str(worker), str(data)]))
    return result


def _output(command: list[str]) -> str:
    # PYTHONPATH must not shadow the peer's own packages.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    environment |= {"JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=3600, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(str(error)) from error
    if done.returncode:
        last = (done.stderr.strip() or "no message").splitlines()[-1]
        raise UnavailableError(f"{Path(command[0]).name} ended with {done.returncode}: {last}")
    return done.stdout


def simulated(epsilon: float, n: int, seeds: int) -> list[Scores]:
    """Gaussian scores of n canaries in and n out whose epsilon at `DELTA` is known."""
    mu = gaussian_mu(epsilon, DELTA) if epsilon else 0.0
    rng = np.random.default_rng([round(1000 * epsilon), n])
    return [(mu + rng.standard_normal(n), rng.standard_normal(n)) for _ in range(seeds)]


def middle(epsilon: float) -> float:
    """Return the threshold midway between the worlds, known before the scores."""
    return float(gaussian_mu(epsilon, DELTA)) / 2 if epsilon else 0.0


def cases() -> dict[str, dict[str, Any]]:
    """Return the quantiles to compare: `CASES` and three thresholds of 500 + 500 scores."""
    found = {
        name: {"counts": counts, "delta": delta, "probability": probability}
        for name, (counts, delta, probability) in CASES.items()
    }
    scores = simulated(4.0, 500, 1)[0]
    for threshold in (0.0, 0.5, 1.5):
        c = ConfusionCounts.from_scores(*scores, threshold)
        found[f"500+500 scores, threshold {threshold}, .05"] = {
            "counts": tuple(int(k) for k in (c.fn, c.tp, c.fp, c.tn)),
            "delta": DELTA,
            "probability": 0.05,
        }
    return found


def our_quantile(case: dict[str, Any]) -> dict[str, float]:
    """Return our quantile, its time, and its error against plain quadrature in 25 digits.

    Near the true quantile the error is that of the probability, divided by the density.
    """
    counts = ConfusionCounts(*case["counts"])
    value, ms = timed(
        lambda: Posterior.of_epsilon(counts, case["delta"]).quantile(case["probability"])
    )
    outside = sum(_twins().epsilon_outside(value, *case["counts"], case["delta"]))
    density = Posterior.of_epsilon(counts, case["delta"]).pdf(value)
    return {
        "value": float(value),
        "ms": ms,
        "error": abs(float(1 - outside - case["probability"])) / float(density),
    }


def _twins() -> Any:
    """Return the independent quadrature that the tests also compare with."""
    folder = str(FOLDER.parent / "tests" / "support")
    if folder not in sys.path:
        sys.path.append(folder)
    import beta_twins

    return beta_twins


def timed(call: Callable[[], Any], repetitions: int = 5) -> tuple[Any, float]:
    """Return the result, and the median milliseconds of some calls after a first one."""
    result, times = call(), []
    for _ in range(repetitions):
        start = time.perf_counter()
        call()
        times.append(1e3 * (time.perf_counter() - start))
    return result, statistics.median(times)


def all_thresholds(n: int) -> dict[str, Any]:
    """Time every quantile, and their pruned maximum, over all thresholds of n + n scores."""
    scores = simulated(4.0, n, 1)[0]
    counts = ConfusionCounts.from_scores(*scores, candidate_thresholds(*scores))
    every, ms = timed(lambda: Posterior.of_epsilon(counts, DELTA).quantile(0.05))
    (largest, _), ms_pruned = timed(lambda: Posterior.of_epsilon(counts, DELTA).maximum(0.05))
    return {
        "thresholds": counts.fn.size,
        "every quantile, ms a threshold": ms / counts.fn.size,
        "pruned maximum, ms": ms_pruned,
        "maximum is that of every quantile": bool(abs(largest - np.max(every)) <= 1e-9),
    }


def as_epsilon(mu: float) -> float:
    """Return epsilon at `DELTA` of mu-GDP."""
    return float(gaussian_epsilon(mu, DELTA))


def one_runs(folder: Path) -> dict[str, Any]:
    """Compare bounds from counts of guesses in one run with jax-privacy's, and their times."""
    wanted = {
        f"{canaries} canaries, {correct} of {guesses} correct": {
            "canaries": canaries,
            "guesses": guesses,
            "correct": correct,
        }
        for canaries, guesses, correct in GUESSES
    }
    file = folder / "guesses.json"
    file.write_text(json.dumps(wanted))
    results: dict[str, Any] = {}
    try:
        peer = peer_results("jax-privacy", file)["results"]
    except UnavailableError as error:
        peer = {}
        results["unavailable"] = str(error)
    ratios, gaps = [], []
    for name, case in wanted.items():
        counts = case["correct"], case["guesses"], case["canaries"]
        ours = {
            "Steinke": partial(epsilon_one_run, *counts, DELTA, SIGNIFICANCE),
            "f-DP": lambda counts=counts: as_epsilon(mu_one_run(*counts, SIGNIFICANCE)),
            "f-DP, any mechanism": partial(epsilon_one_run_fdp, *counts, DELTA, SIGNIFICANCE),
        }
        for method, call in ours.items():
            value, ms = timed(call)
            row = {"ours": round(float(value), 5), "ms": round(ms, 2)}
            other = peer.get(name, {}).get(method)
            if other:
                gaps.append(abs(other["value"] - value))
                row |= {"peer's": round(other["value"], 5), "peer's ms": round(other["ms"], 1)}
                row["ratio"] = round(other["ms"] / ms)
                if method == "f-DP":
                    ratios.append(other["ms"] / ms)
            results[f"{name}: {method}"] = row
    if ratios:
        results["ratio of times of f-DP, smallest"] = round(min(ratios))
        results["ratio of times of f-DP, median"] = round(statistics.median(ratios))
        results["holds: f-DP at least 20 times as fast"] = min(ratios) >= 20
        results["holds: the same bounds to 1e-5"] = max(gaps) <= 1e-5
    return results


def our_methods(at: float) -> dict[str, Callable[[Scores], float]]:
    """Return our bounds by the names of `OURS`; ``at`` is a threshold fixed in advance."""

    def named(method: str, choice: Any = None) -> Callable[[Scores], float]:
        return lambda scores: (
            named_bound(method, *scores, DELTA, SIGNIFICANCE, choice).epsilon_lower
        )

    def one_run(scores: Scores) -> float:
        correct, wrong = (int(np.sum(group >= at)) for group in scores)
        canaries = sum(len(group) for group in scores)
        return epsilon_one_run(correct, correct + wrong, canaries, DELTA, SIGNIFICANCE)

    fifth = Split(0.2)
    return {
        "CP, fixed": named("eps_cp", Fixed(at)),
        "CP, split 1:4": named("eps_cp", fifth),
        "CP, Berk-Jones": named("eps_cp", Simultaneous()),
        "CP, DKW": named("eps_cp", Simultaneous("dkw")),
        "one run, fixed": one_run,
        "one run, ranks": lambda s: OneRunScores(*s).epsilon(DELTA, SIGNIFICANCE).value,
        "one run f-DP any, ranks": lambda s: (
            OneRunScores(*s).epsilon_fdp(DELTA, SIGNIFICANCE).value
        ),
        "one run f-DP, ranks": lambda s: as_epsilon(OneRunScores(*s).mu(SIGNIFICANCE).value),
        "GDP pooled, fixed": named("fdp_pooled_cp", Fixed(at)),
        "GDP pooled, split 1:4": named("fdp_pooled_cp", fifth),
        "GDP CP, DKW": named("fdp_cp", Simultaneous("dkw")),
        "GDP CP, Berk-Jones": named("fdp_cp", Simultaneous()),
        "GDP noncentral t": named("fdp_t"),
    }


def our_bounds(epsilon: float, scores: list[Scores]) -> dict[str, dict[str, Any]]:
    """Return one bound per seed and the median milliseconds, for each of our methods."""
    results = {}
    for name, method in our_methods(middle(epsilon)).items():
        method(scores[0])  # the bands of a sample size are computed once
        values, times = [], []
        for pair in scores:
            start = time.perf_counter()
            values.append(float(method(pair)))
            times.append(1e3 * (time.perf_counter() - start))
        results[name] = {"values": values, "ms": statistics.median(times)}
    return results


def summary(epsilon: float, found: dict[str, Any], *labels: str) -> dict[str, Any]:
    """Return the median bound over epsilon (the bound itself if that is 0), misses, and time."""
    values = np.array([np.nan if v is None else v for v in found["values"]], dtype=np.float64)
    median = float(np.nanmedian(values))
    return {
        "tightness" if epsilon else "median": round(median / epsilon if epsilon else median, 3),
        "missed": round(float(np.mean(values > epsilon + 1e-9)), 3),
        "ms": round(found["ms"], 2),
        "is": "; ".join(labels),
    }


def tightness(games: list[Game], seeds: int, folder: Path) -> dict[str, Any]:
    """Return the bounds of all methods on the same scores, and where the peer's are larger."""
    data = {game: simulated(*game, seeds) for game in games}
    file = folder / "scores.npz"
    arrays = {}
    for (epsilon, n), scores in data.items():
        name = f"epsilon {epsilon:g}, n {n}"
        arrays[f"{name}/middle"] = np.array(middle(epsilon))
        arrays[f"{name}/in"] = np.array([inside for inside, _ in scores])
        arrays[f"{name}/out"] = np.array([outside for _, outside in scores])
    np.savez(file, **arrays)
    results: dict[str, Any] = {}
    try:
        peer = peer_results("jax-privacy", file)
        results["version of jax-privacy"] = peer["version"]
    except UnavailableError as error:
        peer = {"results": {}}
        results["unavailable"] = str(error)
    larger: dict[str, dict[str, str]] = {"proved": {}, "not proved": {}, "no counterpart": {}}
    for (epsilon, n), scores in data.items():
        name = f"epsilon {epsilon:g}, n {n}"
        ours, theirs = our_bounds(epsilon, scores), peer["results"].get(name, {})
        for method, found in ours.items():
            results[f"{name}: ours, {method}"] = summary(epsilon, found, *OURS[method])
        for method, found in theirs.items():
            *labels, counterpart = THEIRS[method]
            row = summary(epsilon, found, *labels)
            results[f"{name}: jax-privacy, {method}"] = row
            if counterpart is None:
                larger["no counterpart"][f"{name}, {method}"] = f"{row.get('tightness', 0)}"
            elif epsilon:
                mine = summary(epsilon, ours[counterpart])
                # Rounded to a thousandth, so that a root's last digits do not decide.
                if row["tightness"] > mine["tightness"]:
                    kind = "proved" if labels[2] == "proved" else "not proved"
                    larger[kind][f"{name}, {method}"] = (
                        f"{row['tightness']} against {mine['tightness']} of {counterpart}"
                    )
    if theirs:
        results["peer tighter, its bound proved"] = larger["proved"]
        results["peer tighter, its bound not proved"] = larger["not proved"]
        results["peer's bounds that we have no counterpart of"] = larger["no counterpart"]
        results["holds: nothing less tight at equal validity"] = not larger["proved"]
    return results


def quantiles(folder: Path) -> dict[str, Any]:
    """Compare our quantiles with the peer's."""
    wanted = cases()
    file = folder / "cases.json"
    file.write_text(json.dumps(wanted))
    results: dict[str, Any] = {}
    try:
        peer = peer_results("privacy-estimates", file)
        results["version of privacy-estimates"] = peer["version"]
    except UnavailableError as error:
        peer = {"results": {}}
        results["unavailable"] = str(error)
    errors, times = [], []
    for name, case in wanted.items():
        mine, other = our_quantile(case), peer["results"].get(name, {})
        errors.append(mine["error"])
        row: dict[str, Any] = {
            "ours": round(mine["value"], 9),
            "our error": float(f"{mine['error']:.0e}"),
            "ms, alone": round(mine["ms"], 2),
        }
        if other:
            times.append(1e3 * other["seconds"])
            row |= {"peer's ms": round(times[-1]), "ratio": round(times[-1] / mine["ms"])}
            if "value" in other:
                row["peer's error"] = round(other["value"] - mine["value"], 4)
            else:
                row["peer's error"] = other["error"]
        results[name] = row
    many = all_thresholds(500)
    results["500+500 scores, all thresholds"] = many
    if times:
        each = statistics.median(times)
        results["ratio of times a threshold"] = round(each / many["every quantile, ms a threshold"])
        # A thousand thresholds of the peer would take hours: its time is extrapolated.
        results["ratio of times of the maximum (peer's extrapolated)"] = round(
            each * many["thresholds"] / many["pruned maximum, ms"]
        )
    results["holds: quantile right to 1e-9"] = max(errors) <= 1e-9
    results["holds: quantile within 1 ms a threshold"] = (
        many["every quantile, ms a threshold"] <= 1.0
    )
    results["holds: pruned maximum within 0.1 s"] = many["pruned maximum, ms"] <= 100.0
    return results


def run(seeds: int = 100, sizes: tuple[int, ...] = (500, 5000)) -> dict[str, object]:
    """Return all comparisons; keys that begin with "holds" are requirements."""
    games = [(epsilon, n) for n in sizes for epsilon in (0.0, 1.0, 2.0, 4.0, 8.0)]
    results: dict[str, object] = {
        "date": datetime.date.today().isoformat(),
        "versions": {
            "python": sys.version.split()[0],
            **{name: version(name) for name in ("lightning-audit", "numpy", "scipy")},
        },
        "seeds": seeds,
    }
    with tempfile.TemporaryDirectory() as folder:
        for part, found in (
            ("quantile", quantiles(Path(folder))),
            ("one run", one_runs(Path(folder))),
            ("bounds", tightness(games, seeds, Path(folder))),
        ):
            results |= {f"{part}: {name}": value for name, value in found.items()}
    return results
