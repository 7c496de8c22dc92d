"""Stages by cost, and what ends a run of the tests."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import costs
import pytest
from places import REPOSITORY

BURN = (
    "import time\n"
    "def burn(seconds):\n"
    "    end = time.process_time() + seconds\n"
    "    while time.process_time() < end: pass\n"
)


@pytest.mark.parametrize(
    ("node", "cost", "stage"),
    [
        ("tests/stats/test_power.py::test_a", 1.0, "quick"),
        ("tests/stats/test_power.py::test_a", 1.1, "heavy"),
        ("tests/stats/test_power.py::test_a", 3.0, "heavy"),
        ("tests/stats/test_power.py::test_a", 3.1, "nightly"),
        (f"{costs.CONTRACT[0]}::test_a", 50.0, "heavy"),
    ],
)
def test_a_test_has_the_stage_of_its_cost(node, cost, stage):
    assert costs.stage(node, cost) == stage


def test_entries_and_files_of_the_contract_are_of_tests_that_exist():
    files = {name.partition("::")[0] for name in (*costs.read(), *costs.CONTRACT)}
    assert {name for name in files if not (REPOSITORY / name).exists()} == set()


def test_a_dear_test_without_an_entry_fails_with_the_line_to_run(pytester, monkeypatch):
    monkeypatch.setattr(costs, "MOST_WITHOUT_ENTRY", 0.05)
    monkeypatch.setattr(costs, "slowness", lambda: 1.0)
    pytester.makepyfile(
        f"import pytest\n{BURN}"
        "@pytest.fixture(scope='module')\n"
        "def shared(): burn(0.1)\n"
        "def test_reads(shared): pass\n"
        "def test_known(): burn(0.1)\n"
        "def test_new(): burn(0.1)\n"
        "@pytest.mark.nightly\n"
        "def test_nightly(): burn(0.1)\n"
        "def test_first(paid=[]):\n"
        "    burn(0 if paid else 0.1)\n"
        "    paid.append(1)\n"
    )
    file = next(pytester.path.glob("test_*.py")).name
    known = {f"{file}::test_known": 2.0}
    marked = "--override-ini=markers=nightly"
    result = pytester.inline_run(marked, plugins=[costs.Meter(known, None)])
    passed, _, failed = result.listoutcomes()
    assert [report.nodeid for report in failed] == [f"{file}::test_new"]
    assert f"make costs SELECT='{file}::test_new'" in str(failed[0].longrepr)
    assert len(passed) == 5


def test_a_test_may_cost_more_on_a_slower_machine(monkeypatch):
    assert costs.slowness() >= 1
    monkeypatch.setattr(costs, "_work", lambda: sum(range(3_000_000)))
    monkeypatch.setattr(costs, "REFERENCE", 0.001)
    assert costs.slowness() > 5


def test_costs_are_the_least_of_each_test_and_replace_older_ones(tmp_path, monkeypatch):
    monkeypatch.setattr(costs, "COSTS", tmp_path / "costs.json")
    monkeypatch.setattr(costs, "slowness", lambda: 2.0)
    costs.COSTS.write_text('{"a": 2.0, "gone": 3.0}')
    measured = tmp_path / "measured.jsonl"
    lines = [["b", 3.08], ["b", 2.52], ["c", 1.8], ["shared tests::net", 9.0], ["a", 1.0]]
    measured.write_text("\n".join(map(json.dumps, lines)))
    costs.main(measured, whole=False)
    assert costs.read() == {"b": 1.3, "gone": 3.0}
    costs.main(measured, whole=True)
    assert costs.read() == {"b": 1.3}


def test_all_statistics_run_within_20_commits_of_a_change(tmp_path):
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(tmp_path)]
    stats = tmp_path / "lightning_audit" / "stats"
    stats.mkdir(parents=True)
    subprocess.run([*git, "init", "--quiet"], check=True)
    assert costs.statistics_changed(tmp_path)  # no such commit
    for number in range(22):
        (stats / "power.py").write_text(f"x = {min(number, 1)}\n")
        subprocess.run([*git, "add", "."], check=True)
        subprocess.run([*git, "commit", "-qm", "a", "--allow-empty"], check=True)
        assert number == 21 or costs.statistics_changed(tmp_path)
    assert not costs.statistics_changed(tmp_path)
    seed = costs.seed_of_statistics(tmp_path)
    (stats / "power.py").write_text("x = 2\n")
    assert costs.statistics_changed(tmp_path)
    assert costs.seed_of_statistics(tmp_path) != seed


def test_sigterm_ends_a_run_with_its_workers(tmp_path):
    file = tmp_path / "test_endless.py"
    file.write_text(
        "import os, pathlib, time\n"
        "def test_endless():\n"
        "    pathlib.Path('pid').write_text(str(os.getpid()))\n"
        "    time.sleep(60)\n"
    )
    command = [sys.executable, "-m", "pytest", "--numprocesses=1", "-p", "no:cacheprovider"]
    conftest = f"--confcutdir={tmp_path}"
    (tmp_path / "conftest.py").write_text(
        f"import sys\nsys.path[:0] = [{str(REPOSITORY / 'tests' / 'support')!r}]\n"
        "from ended import end_on_sigterm\n"
        "def pytest_configure(config): end_on_sigterm(hasattr(config, 'workerinput'))\n"
    )
    run = subprocess.Popen([*command, conftest, str(file)], cwd=tmp_path, stdout=subprocess.DEVNULL)
    pid = tmp_path / "pid"
    try:
        until = time.monotonic() + 60
        while not (pid.exists() and pid.read_text()) and time.monotonic() < until:
            time.sleep(0.05)
        worker = int(pid.read_text())
        run.send_signal(signal.SIGTERM)
        assert run.wait(20) == 128 + signal.SIGTERM
        until = time.monotonic() + 20
        while _runs(worker) and time.monotonic() < until:
            time.sleep(0.05)
        assert not _runs(worker)
    finally:
        run.kill()


def _runs(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"
