"""CPU seconds of each test: measured by `make costs`, kept in tests/costs.json, and stages by them.

A test is quick up to `QUICK` CPU seconds (its own and those of processes that it waited for), heavy
up to `HEAVY`, and nightly above, unless it is in `CONTRACT`. The set-up of fixtures that
several tests share counts for none of them. A test without an entry is quick.
"""

import json
import math
import os
import subprocess
import zlib
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

COSTS = Path(__file__).parents[1] / "costs.json"
QUICK, HEAVY = 1.0, 3.0
#: A test without an entry, so of a second when it was measured, fails above this, or so much more
#: on a machine that is slower now: costs of one test differ by up to five times between machines.
MOST_WITHOUT_ENTRY = 10.0
#: CPU seconds of `_work` on the machine that these seconds are of.
REFERENCE = 0.083
#: What every change must keep, with one test of each environment: in CI at any cost.
CONTRACT = (
    "tests/callbacks/test_privacy_audit_faults.py",
    "tests/callbacks/test_privacy_audit_outputs.py",
    "tests/callbacks/test_privacy_audit_own_failures.py",
    "tests/loops/test_two_processes.py",
    "tests/loops/test_without_lightning.py",
    "tests/many/test_clusters.py::test_rows_are_those_of_this_process",
    "tests/test_lowest_versions.py::test_a_training_and_the_commands_work",
    "tests/test_tour.py::test_the_tour_shows",
    "tests/test_trackers.py::test_each_tracker_has_the_metrics",
    "tests/test_transformers.py::test_a_trainer_passes",
    "tests/testing/test_faults.py",
    "tests/verdict/test_gate.py",
)


def read() -> dict[str, float]:
    """Return the CPU seconds of the tests that are not quick, by their node ids."""
    known: dict[str, float] = json.loads(COSTS.read_text(encoding="utf-8"))
    return known


def stage(node: str, cost: float) -> str:
    """Return the stage of a test: "quick", "heavy" or "nightly"."""
    if cost <= QUICK:
        return "quick"
    return "heavy" if cost <= HEAVY or node.startswith(CONTRACT) else "nightly"


#: What the tests of stats/ depend on.
_STATISTICS = (
    "lightning_audit/stats",
    "lightning_audit/blackbox",
    "lightning_audit/_validate.py",
    "tests/stats",
)


def statistics_changed(root: Path) -> bool:
    """Whether the last 20 commits or edits change what tests/stats holds, or git cannot tell."""
    command = ["git", "diff", "--quiet", "HEAD~20", "--", *_STATISTICS]
    return subprocess.run(command, cwd=root, capture_output=True).returncode != 0


def seed_of_statistics(root: Path) -> int:
    """Return a number that changes with the content of what tests/stats holds."""
    files = (file for held in _STATISTICS for file in (root / held).glob("*.py"))
    return zlib.crc32(b"".join(file.read_bytes() for file in sorted(files)))


def _cpu() -> float:
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def _work() -> None:
    """Work of a fixed size."""
    text = ""
    for number in range(400_000):
        text = (text + str(number % 7))[-50:]


def slowness() -> float:
    """Return how many times slower than the reference this machine is now, at least 1."""
    begun = _cpu()
    _work()
    return max(1.0, (_cpu() - begun) / REFERENCE)


class Meter:
    """Measures tests, and fails those that cost much and have no entry.

    Args:
        known: CPU seconds by node id; None to fail no test.
        out: a file that gets a line of JSON for each test and each shared fixture.
    """

    def __init__(self, known: dict[str, float] | None, out: str | None) -> None:
        self._known, self._out = known, out
        self._shared = 0.0

    def _write(self, name: str, seconds: float) -> None:
        if self._out:
            with open(self._out, "a", encoding="utf-8") as file:
                file.write(json.dumps([name, round(seconds, 3)]) + "\n")

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
    ) -> Generator[None, Any, Any]:
        """Measure the set-up of a shared fixture, with that of the shared ones it asks for."""
        begun, shared = _cpu(), self._shared
        try:
            return (yield)
        finally:
            if fixturedef.scope != "function":
                spent = _cpu() - begun
                self._write(f"shared {fixturedef.baseid}::{fixturedef.argname}", spent)
                self._shared = shared + spent

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, None, None]:
        """Charge the last test of a file with none of the end of what the file shared."""
        begun = _cpu()
        yield
        if nextitem is None or nextitem.path != item.path:
            self._shared += _cpu() - begun

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, object, object]:
        """Measure a test; one that is too dear runs again, as the first may pay for a cache."""
        begun, self._shared = _cpu(), 0.0
        done = yield
        cost = _cpu() - begun - self._shared
        self._write(item.nodeid, cost)
        marked = item.get_closest_marker("nightly") is not None  # no entry moves it
        known = self._known is None or item.nodeid in self._known
        if known or marked or cost <= MOST_WITHOUT_ENTRY:
            return done
        most = MOST_WITHOUT_ENTRY * slowness()
        item._initrequest()  # type: ignore[attr-defined]  # as pytest-rerunfailures does
        begun, self._shared = _cpu(), 0.0
        (*_, last) = runtestprotocol(item, log=False, nextitem=nextitem)
        again = _cpu() - begun - self._shared
        if again > most:
            last.outcome = "failed"
            last.longrepr = (
                f"{item.nodeid} took {cost:.1f} and {again:.1f} CPU seconds and has no entry in "
                "tests/costs.json: make it cheaper, or run "
                f"`make costs SELECT='{item.nodeid}'` and commit the file"
            )
            item.ihook.pytest_runtest_logreport(report=last)
        return done


def main(measured: Path, whole: bool) -> None:
    """Write tests/costs.json from what a run has measured, in seconds of the reference machine.

    Args:
        measured: file of the run, a line a test; of several lines of a test the least counts.
        whole: whether every test but the nightly ones ran, so that entries of other tests go.
    """
    known = read() if COSTS.exists() else {}
    if whole:  # nightly tests did not run
        known = {name: cost for name, cost in known.items() if stage(name, cost) == "nightly"}
    found: dict[str, float] = {}
    slow = slowness()
    for line in measured.read_text(encoding="utf-8").splitlines():
        name, seconds = json.loads(line)
        if not name.startswith("shared "):
            found[name] = min(seconds / slow, found.get(name, math.inf))
    known |= found
    kept = {name: round(cost, 1) for name, cost in sorted(known.items()) if cost > QUICK}
    COSTS.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    print(f"{len(found)} tests measured, {len(kept)} above {QUICK:g} CPU s")


if __name__ == "__main__":
    import sys

    main(Path(sys.argv[1]), "--whole" in sys.argv)
