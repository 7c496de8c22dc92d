from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from lightning_audit.cli import main
from lightning_audit.testing import selftest_pool
from lightning_audit.testing.faults import FAULTS
from lightning_audit.testing.selftest_pool import Result

FOUND = Result(
    *("fault", "half_noise", "Opacus", "found", 20, 1.5, "VIOLATION"),
    *("noise", True, "noise scale too small: 0.5", 3),
)
HEALTHY = Result("healthy", "healthy", "Opacus", "not accused", 100, outcome="PASS")
CRASHED = Result("fault", "no_noise", "Opacus", "crashed", 20, error="ValueError: a pity")
MISSED = Result("fault", "few_seeds", "Opacus", "not found", 100, outcome="PASS", named=False)
WARNED = Result("published", "few_seeds", "figure 8", "warned", 625, outcome="PASS", named=True)


def given(monkeypatch: pytest.MonkeyPatch, *results: Result) -> list[tuple[Any, ...]]:
    """Let the trainings end like this; return what was asked for."""
    asked: list[tuple[Any, ...]] = []

    def run_all(*arguments: Any) -> tuple[Result, ...]:
        asked.append(arguments)
        return results

    monkeypatch.setattr(selftest_pool, "run_all", run_all)
    return asked


# ------------------------------------------------------------------ the command


@pytest.mark.parametrize(
    ("results", "code"),
    [
        ((FOUND, HEALTHY), 0),
        ((FOUND, HEALTHY, WARNED), 0),
        ((FOUND, MISSED), 1),
        ((FOUND, CRASHED), 1),
        ((HEALTHY, CRASHED), 1),
    ],
)
def test_it_exits_with_zero_where_all_is_as_the_registry_says(
    monkeypatch: pytest.MonkeyPatch, results: tuple[Result, ...], code: int
) -> None:
    given(monkeypatch, *results)
    assert main.main(["selftest"]) == code


def test_an_unknown_fault_is_refused_with_the_known_ones_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = given(monkeypatch)
    assert main.main(["selftest", "--fault", "half_noise", "--fault", "noisy"]) == 2
    assert asked == []
    told = capsys.readouterr().err
    assert "--fault noisy must be one of" in told
    assert all(name in told for name in FAULTS)


@pytest.mark.parametrize("jobs", ["0", "-1", "two", "1.5"])
def test_jobs_are_a_positive_whole_number(jobs: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main.main(["selftest", f"--jobs={jobs}"])
    assert ended.value.code == 2
    assert "must be a whole number" in capsys.readouterr().err


def test_an_interrupt_has_its_own_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*arguments: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(selftest_pool, "run_all", interrupted)
    assert main.main(["selftest"]) == 130
    assert "interrupted" in capsys.readouterr().err


def test_processes_that_cannot_be_started_are_told_and_not_a_verdict(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*arguments: Any, **more: Any) -> None:
        raise OSError("too many processes")

    monkeypatch.setattr("multiprocessing.util.spawnv_passfds", refused)
    assert main.main(["selftest", "--quick"]) == 2
    assert "no process can be started: too many processes" in capsys.readouterr().err


def test_a_missing_package_is_told_and_not_a_verdict(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delattr("lightning_audit.testing.selftest_pool")
    monkeypatch.setitem(sys.modules, "lightning_audit.testing.selftest_pool", None)
    assert main.main(["selftest"]) == 2
    assert "selftest cannot run" in capsys.readouterr().err


def test_on_a_terminal_the_table_is_drawn_and_progress_goes_to_stderr(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run_all(rows: Any, jobs: int, told: Any) -> tuple[Result, ...]:
        told(FOUND)
        return FOUND, HEALTHY

    monkeypatch.setattr(selftest_pool, "run_all", run_all)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "200")
    main.main(["selftest", "--quick"])
    told = capsys.readouterr()
    (row,) = [line for line in told.out.splitlines() if "half_noise" in line]
    assert "│ half_noise │ Opacus " in row
    assert "1 of 1 faults found and named; 0 of 1 healthy runs accused; " in told.out
    assert told.err == "1/3 half_noise, Opacus: found\n"


def test_json_holds_every_field_of_every_row(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given(monkeypatch, FOUND, CRASHED)
    assert main.main(["selftest", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["exit_code"] == 1
    assert told["summary"] == "1 of 2 faults found and named; 1 crashed"
    assert [Result(**fields) for fields in told["rows"]] == [FOUND, CRASHED]


# ------------------------------------------------------------------ real processes


@pytest.mark.heavy
def test_a_quick_selftest_finds_its_faults_and_accuses_nothing_healthy() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "lightning_audit.cli.main", "selftest", "--quick", "--jobs", "2"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    last = done.stdout.splitlines()[-1]
    assert last.startswith("2 of 2 faults found and named; 0 of 1 healthy runs accused; ")


def children(parent: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # ended in between
            continue
        if int(fields[1]) == parent and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.heavy
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are read off /proc")
@pytest.mark.parametrize("name", ["SIGINT", "SIGKILL"])
def test_whatever_ends_the_command_ends_its_trainings(name: str, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "lightning_audit.cli.main", "selftest", "--jobs", "2"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        # Whoever starts the tests in the background has them ignore Ctrl-C, and so their children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        deadline = time.monotonic() + 60
        while len(workers := children(process.pid)) < 3 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert len(workers) == 3  # and the one that multiprocessing starts to tidy up
        os.kill(process.pid, getattr(signal, name))
        code = process.wait(timeout=30)
    finally:
        process.kill()
    assert code == {"SIGINT": 130, "SIGKILL": -9}[name]
    while any(map(alive, workers)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(alive, workers))
    if name == "SIGINT":  # who is killed cannot tidy up
        assert list(tmp_path.iterdir()) == []
