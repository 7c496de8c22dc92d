"""Changes the checks and the verdict, one place at a time, and counts what their tests find.

python benchmarks/mutants.py [--draw N | --all] [--seed S] [--jobs N] [--page FILE]

A mutant is the package with one change of mutators.py. It is killed if a quick test of its room
fails, or uses far more CPU time than without it. What survives is listed, also if it computes the
same.

One run without a mutant records the lines that each test executes. A mutant is tested by the tests
that execute its statement, the shortest first, up to the first failure; a mutant outside functions
by all tests that execute a line of its room. Tests that execute none in their own process (some
start other processes) are left out. Each mutant is tested in a fork of a process that has imported
everything but the package, so that it costs the time of its tests and less than a second.

cosmic-ray 8.7 starts the whole test command for each mutant: 42 CPU seconds for the verdict and 80
for the checks if it survives, hours for 300 mutants. mutmut 3.8 forks, too, and is fast enough (7 s
for each of 15 mutants of the verdict), but it tests something else: it changes only functions
without decorators, and 22 % of the conditions, operators and numbers are outside of these, in
thresholds, declarations of checks and properties. Six in ten of its 9,662 mutants change a text or
drop an argument of a call, one in eight assigns None, and none changes the condition of an `if`.
"""

from __future__ import annotations

import argparse
import ast
import datetime
import gc
import importlib
import inspect
import os
import pickle
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from mutators import Mutant, mutants
from nightly import ROOT, commit

PAGE = ROOT / "docs" / "mutants.md"
#: Folders that are changed; the tests of each are in tests/<its name>.
ROOMS = ("lightning_audit/checks", "lightning_audit/verdict")
#: CPU seconds that a mutant may take, and how many times those of its tests on top.
_SECONDS, _TIMES = 20, 5
#: Bytes that a mutant may allocate.
_MEMORY = 8 << 30
#: Exit codes of pytest if all tests pass, or none is left to run; of a fork that did not start it.
_SURVIVED, _BROKEN = (0, 5), 70
#: What the tests of a tree print.
_LOG = ".log"
_HEAD = """# Mutants of the checks and the verdict

<!-- Made by `python benchmarks/mutants.py`; do not edit. -->

`make nightly` changes `lightning_audit/checks/` and `lightning_audit/verdict/` in places that a
seed draws, one place at a time, and runs the quick tests of the room (`tests/checks` or
`tests/verdict`) on each of these mutants. A mutant is killed if a test fails. If it survives, no
quick test of its room holds the changed code, or the mutant computes the same as the original:
these are not left out. `benchmarks/mutants.py` says which tests run, `benchmarks/mutators.py` what
is changed.

## Before and now

Each run adds a row. The tables below are of the last row.

| date | commit | seed | drawn | checks: killed | verdict: killed | killed | minutes | CPU minutes |
|---|---|---|---|---|---|---|---|---|"""

_SURVIVORS = "The last column is the number of tests that execute the code and passed."


@dataclass
class Watched:
    """A plugin of pytest that records the tests of a room without a mutant.

    Args:
        prefix: begin of the paths of the files whose lines count.
        lines: by test, or "" while tests are collected: file and number of executed lines.
        seconds: CPU seconds by test.
        failed: tests that fail.
        modules: what was imported from elsewhere, in order.
        now: the test that runs.
    """

    prefix: str
    lines: dict[str, set[tuple[str, int]]] = field(default_factory=lambda: {"": set()})
    seconds: dict[str, float] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)
    modules: list[str] = field(default_factory=list)
    now: str = ""

    def calls(self, frame: FrameType, event: str, _: Any) -> Callable[..., Any] | None:
        """Trace functions of the room, and not what runs at an import; see `sys.settrace`."""
        code = frame.f_code
        ours = code.co_filename.startswith(self.prefix) and code.co_flags & inspect.CO_OPTIMIZED
        return self._line if ours else None

    def _line(self, frame: FrameType, event: str, _: Any) -> Callable[..., Any]:
        self.lines[self.now].add((frame.f_code.co_filename, frame.f_lineno))
        return self._line

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Shuffle, so that a test that needs an earlier one fails here and not with a mutant."""
        random.Random(0).shuffle(items)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Record the lines and the CPU seconds of a test."""
        self.now, begun = item.nodeid, time.process_time()
        self.lines[self.now] = set()
        result = yield
        self.seconds[self.now], self.now = time.process_time() - begun, ""
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record a failure."""
        if report.failed:
            self.failed.add(report.nodeid)

    def outside(self) -> set[str]:
        """Return the tests that execute no line of the room."""
        return {test for test in self.seconds if not self.lines[test]}

    def tests_of(self, mutant: Mutant, tree: Path) -> list[str]:
        """Return the tests that test a mutant of a tree, the shortest first."""
        at = {(str(tree / mutant.path), line) for line in mutant.lines or ()}
        found = {test for test, lines in self.lines.items() if lines & at}
        if mutant.lines is None or "" in found:
            found = self.seconds.keys() - self.outside()
        return sorted(found - self.failed, key=self.seconds.__getitem__)


@dataclass
class Chosen:
    """A plugin of pytest that runs tests in an order, and then those that only a mutant has.

    Args:
        tests: in their order.
        known: all tests without a mutant.
    """

    tests: Sequence[str]
    known: frozenset[str]

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave out the others."""
        places = {test: place for place, test in enumerate(self.tests)}
        left = [i for i in items if i.nodeid in places or i.nodeid not in self.known]
        items[:] = sorted(left, key=lambda item: places.get(item.nodeid, len(places)))


def _forked(tree: Path, work: Callable[[], int], seconds: float = 0) -> int:
    """Return the exit code of what runs in a fork, in its own tree; negative for a signal.

    Args:
        tree: where it runs.
        work: what runs.
        seconds: its most CPU seconds; 0 for no limit.

    Raises:
        RuntimeError: it did not come to an exit code.
    """
    child = os.fork()
    if child == 0:
        code = _BROKEN
        try:
            os.setsid()
            os.chdir(tree)
            log = os.open(_LOG, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
            os.dup2(log, 1)
            os.dup2(log, 2)
            sys.path[0] = os.environ["PYTHONPATH"] = str(tree)
            os.environ["LIGHTNING_AUDIT_COSTS"] = os.devnull  # no test fails for its time
            sys.dont_write_bytecode = seconds > 0  # what is compiled is without a mutant
            if seconds:
                os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
                resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), int(seconds) + 5))
                resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
                signal.alarm(30 * int(seconds))
            code = work()
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if code == _BROKEN:
        raise RuntimeError((tree / _LOG).read_text(encoding="utf-8", errors="replace")[-2000:])
    return code


def _pytest(files: Iterable[str], plugin: object, *options: str) -> int:
    """Run the quick tests of files with a plugin."""
    # What is imported before, pytest cannot rewrite.
    usual = ("-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning")
    return int(pytest.main([*usual, "-m", "not heavy", *options, *files], plugins=[plugin]))


def watched(tree: Path, room: str) -> Watched:
    """Run the tests of a room without a mutant.

    Args:
        tree: a copy of the repository.
        room: one of `ROOMS`.

    Raises:
        RuntimeError: no test passes.
    """
    name = Path(room).name

    def run() -> int:
        seen = Watched(f"{tree / room}{os.sep}")
        threading.settrace(seen.calls)
        sys.settrace(seen.calls)
        code = _pytest([f"tests/{name}"], seen)
        sys.settrace(None)
        files = {m: getattr(module, "__file__", None) for m, module in sys.modules.items()}
        seen.modules += [m for m, file in files.items() if file and not file.startswith(str(tree))]
        Path(f"{name}.pickle").write_bytes(pickle.dumps(seen))
        return code if seen.seconds.keys() - seen.failed else _BROKEN

    _forked(tree, run)
    seen: Watched = pickle.loads((tree / f"{name}.pickle").read_bytes())
    return seen


@dataclass(frozen=True)
class Task:
    """A mutant and the tests that test it.

    Args:
        mutant: the mutant.
        tests: in their order.
        known: all tests without a mutant.
        seconds: CPU seconds of these tests without a mutant.
    """

    mutant: Mutant
    tests: Sequence[str]
    known: frozenset[str]
    seconds: float


def tested(base: Path, task: Task) -> int:
    """Return the exit code of the tests of a mutant.

    Args:
        base: a tree without a mutant; a process makes its own copy at its first task.
        task: what to test.
    """
    if not task.tests:
        return _SURVIVED[0]
    tree = base.with_name(f"{base.name}-{os.getpid()}")
    if not tree.exists():
        shutil.copytree(base, tree)
    file = tree / task.mutant.path
    changed = task.mutant.of(file.read_bytes())
    ast.parse(changed)
    file.write_bytes(changed)
    os.utime(file, (0, 0))  # not the time of the compiled file, which is without a mutant
    files = sorted({test.partition("::")[0] for test in task.tests})
    run = partial(_pytest, files, Chosen(task.tests, task.known), "--exitfirst")
    try:
        return _forked(tree, run, _SECONDS + _TIMES * task.seconds)
    finally:
        shutil.copy2(base / task.mutant.path, file)


def _import(names: Iterable[str]) -> None:
    """Import modules, so that forks need not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in names:
            with suppress(Exception):
                importlib.import_module(name)
    gc.collect()
    gc.freeze()  # pytest collects garbage twice at its end


@dataclass(frozen=True)
class Results:
    """What came out.

    Args:
        seen: the tests of each room without a mutant.
        sizes: number of all mutants of each file.
        codes: each drawn mutant, in the order of the files, with the exit code of its tests.
    """

    seen: dict[str, Watched]
    sizes: Counter[str]
    codes: list[tuple[Task, int]]

    def killed(self, path: str = "") -> tuple[int, int]:
        """Return the number of killed mutants and of those drawn, of files with this begin."""
        codes = [code for task, code in self.codes if task.mutant.path.startswith(path)]
        return sum(code not in _SURVIVED for code in codes), len(codes)


def results(root: Path, rooms: Sequence[str], draw: int | None, seed: int, jobs: int) -> Results:
    """Test drawn mutants.

    Args:
        root: the repository.
        rooms: folders that are changed.
        draw: the number of mutants; None for all.
        seed: of the draw.
        jobs: processes at a time.
    """
    fork = get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder).resolve() / "tree"
        shutil.copytree(root, base, ignore=shutil.ignore_patterns(".*", "__pycache__"))
        with ProcessPoolExecutor(jobs, fork) as pool:
            seen = dict(zip(rooms, pool.map(partial(watched, base), rooms), strict=True))
        every = [
            (room, mutant)
            for room in rooms
            for file in sorted((base / room).rglob("*.py"))
            for mutant in mutants(str(file.relative_to(base)), file.read_bytes())
        ]
        drawn = random.Random(seed).sample(range(len(every)), draw or len(every))
        tasks = []
        for room, mutant in (every[place] for place in sorted(drawn)):
            costs = seen[room].seconds
            tests = seen[room].tests_of(mutant, base)
            tasks.append(Task(mutant, tests, frozenset(costs), sum(costs[t] for t in tests)))
        _import(name for one in seen.values() for name in one.modules)
        codes = []
        with ProcessPoolExecutor(jobs, fork) as pool:
            for task, code in zip(tasks, pool.map(partial(tested, base), tasks), strict=True):
                codes.append((task, code))
                print(f"{task.mutant.path}:{task.mutant.line}: {code}", flush=True)
    return Results(seen, Counter(mutant.path for _, mutant in every), codes)


def page(root: Path, found: Results, runs: Sequence[str]) -> str:
    """Return the page.

    Args:
        root: the repository.
        found: of the last run.
        runs: rows of all runs.
    """
    lines = [_HEAD, *runs, "", "## The last run", ""]
    lines += ["| module | mutants | drawn | killed | survived |", "|---|---|---|---|---|"]
    for path, size in found.sizes.items():
        killed, drawn = found.killed(path)
        lines.append(f"| {path} | {size} | {drawn} | {killed} | {drawn - killed} |")
    over = sum(code < 0 for _, code in found.codes)
    lines += ["", f"Killed for their CPU time or by another signal: {over}.", ""]
    for room, seen in found.seen.items():
        left = f"{len(seen.outside())} execute no line of the room, {len(seen.failed)} fail without"
        lines.append(f"- `{room}`: of {len(seen.seconds)} quick tests {left} a mutant")
        lines += [f"  - `{test}` fails without a mutant" for test in sorted(seen.failed)]
    lines += [
        "",
        "## What survived",
        "",
        _SURVIVORS,
        "",
        "| place | code | mutant | tests |",
        "|---|---|---|---|",
    ]
    for task, code in found.codes:
        if code in _SURVIVED:
            mutant, source = task.mutant, (root / task.mutant.path).read_bytes()
            rows = [text.splitlines()[mutant.line - 1] for text in (source, mutant.of(source))]
            before, after = (f"`{row.decode().strip()}`".replace("|", "\\|") for row in rows)
            place = f"{mutant.path}:{mutant.line}"
            lines.append(f"| {place} | {before} | {after} | {len(task.tests)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--draw", type=int, default=300, help="the number of mutants")
    parser.add_argument("--all", action="store_true", help="test all mutants")
    parser.add_argument("--seed", type=int, default=52, help="of the draw")
    parser.add_argument("--rooms", nargs="+", default=ROOMS, help="folders that are changed")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--root", type=Path, default=ROOT, help="the repository")
    parser.add_argument("--page", type=Path, default=PAGE, help="where the page goes")
    options = parser.parse_args()
    ran, begun = commit(), time.monotonic()
    draw = None if options.all else options.draw
    found = results(options.root, options.rooms, draw, options.seed, options.jobs)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = (time.monotonic() - begun, used.ru_utime + used.ru_stime)
    killed = ["{} of {}".format(*found.killed(path)) for path in (*ROOMS, "")]
    cells = [
        datetime.datetime.now(datetime.UTC).date().isoformat(),
        ran[:8] + ran[40:],
        *(str(options.seed), f"{len(found.codes)} of {found.sizes.total()}", *killed),
        *(f"{seconds / 60:.0f}" for seconds in spent),
    ]
    text = options.page.read_text(encoding="utf-8") if options.page.exists() else ""
    runs = [*re.findall(r"^\| \d{4}-.+$", text, re.MULTILINE), f"| {' | '.join(cells)} |"]
    options.page.write_text(page(options.root, found, runs), encoding="utf-8")
    print(f"{killed[-1]} mutants killed")


if __name__ == "__main__":
    main()
