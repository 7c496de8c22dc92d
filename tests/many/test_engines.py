"""Processes of this machine: killed, hanging, without a guard."""

import concurrent.futures
import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import driven_trainings
import pytest
from driven_trainings import drive, facts, killed_once, quick, seeds_of, wait_for, work_of
from stages import staged

from lightning_audit._validate import BadArgument
from lightning_audit.many.engines import (
    FromExecutor,
    LocalProcesses,
    ThisProcess,
    Unpicklable,
    packed,
    settings_of,
)
from lightning_audit.many.records import ChosenRecord
from lightning_audit.many.store import Outcome, Plan, TrainingStore
from lightning_audit.many.worlds import Work, worlds_of

NUMBERS = seeds_of(Plan(0, 12, 3))
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


# --- Executors of the user, and this process.
def test_no_engine_means_local_processes_and_other_values_are_refused():
    assert (settings_of(None), settings_of(ThisProcess())) == (LocalProcesses(), ThisProcess())
    with pytest.raises(BadArgument, match=r"engine='fast' must be LocalProcesses\(workers\)"):
        settings_of("fast")
    with pytest.raises(ValueError, match="workers=0 must be a whole number >= 1"):
        LocalProcesses(0).start(work_of())


def test_threads_are_refused_because_they_share_a_generator():
    with (
        concurrent.futures.ThreadPoolExecutor(2) as executor,
        pytest.raises(BadArgument, match="share one random generator"),
    ):
        settings_of(executor).start(work_of())


@pytest.mark.heavy
def test_any_executor_of_processes_gives_what_this_process_gives(tmp_path):
    with concurrent.futures.ProcessPoolExecutor(1) as executor:
        rows = drive(quick, tmp_path / "executor", 6, FromExecutor(executor))
    assert facts(rows) == facts(drive(quick, tmp_path / "here", 6))


def workers_of(process: int) -> list[int]:
    """Processes of a pool that a process started."""
    found = []
    for task in Path(f"/proc/{process}/task").glob("*"):
        with contextlib.suppress(OSError):
            found += [int(child) for child in (task / "children").read_text().split()]
    return [child for child in found if "spawn_main" in command_of(child)]


def command_of(process: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_text()
    return ""


def alive(process: int) -> bool:
    try:
        return "(zombie)" not in Path(f"/proc/{process}/status").read_text().split("State:")[1][:12]
    except (OSError, IndexError):
        return False


def test_without_pebble_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "pebble", None)
    with pytest.raises(BadArgument, match=re.escape("pip install '.[many]'")):
        LocalProcesses(1).start(work_of())


@pytest.mark.heavy
@on_linux
def test_a_killed_worker_costs_no_training_and_a_hanging_one_costs_one(tmp_path):
    killed = killed_once(tmp_path / "flag", 4, NUMBERS)

    def train(dataset, seed):
        if NUMBERS[seed] == 7:
            time.sleep(1000)
        return killed(dataset, seed)

    rows = drive(train, tmp_path / "store", 12, LocalProcesses(2, ("torch",)), limit=3.0)
    whole = drive(quick, tmp_path / "whole", 12)
    assert (tmp_path / "flag").exists()
    assert facts(rows)[:7] + facts(rows)[8:] == facts(whole)[:7] + facts(whole)[8:]
    assert rows[7].error == "TimeLimit: did not end within 3 s"


@pytest.mark.heavy
@on_linux
def test_a_training_is_lost_twice_at_most_and_what_ended_before_it_is_kept(tmp_path):
    """Over all runs of the driver: a third start would be a third release."""

    def train(dataset, seed):
        with open(tmp_path / "started", "a") as file:
            file.write(f"{NUMBERS[seed]} ")
        if NUMBERS[seed] in (1, 7):
            os.kill(os.getpid(), signal.SIGKILL)
        return quick(dataset, seed)

    engine = LocalProcesses(1, ())
    with contextlib.closing(
        TrainingStore(tmp_path / "store", Plan(0, 12, 3), {"train": "this one"})
    ) as store:
        store.add([Outcome(11, (1.0,))])
        store.lost(7, "killed in an earlier run")
    rows = drive(train, tmp_path / "store", 12, engine)
    started = [int(number) for number in (tmp_path / "started").read_text().split()]
    assert sorted(started) == sorted([*range(11), 1])
    assert [row.number for row in rows if row.scores is None] == [1, 7]
    assert rows[1].error.startswith("ProcessExpired: ")


@pytest.mark.heavy
@on_linux
def test_a_training_that_hangs_is_not_started_again_and_costs_no_other(tmp_path):
    def train(dataset, seed):
        with open(tmp_path / "started", "a") as file:
            file.write(f"{NUMBERS[seed]} ")
        if NUMBERS[seed] == 4:
            time.sleep(1000)
        return quick(dataset, seed)

    rows = drive(train, tmp_path / "store", 12, LocalProcesses(1, ()), limit=1.0)
    started = [int(number) for number in (tmp_path / "started").read_text().split()]
    assert sorted(started) == list(range(12))
    assert [row.number for row in rows if row.scores is None] == [4]


@pytest.mark.heavy
def test_workers_draw_what_this_process_draws_for_each_seed(tmp_path):
    def unseeded(dataset, seed):
        import random

        import numpy as np
        import torch

        return random.random() + float(np.random.normal()) + float(torch.randn(()))

    rows = drive(unseeded, tmp_path / "two", 6, LocalProcesses(2, ("torch",)))
    assert facts(rows) == facts(drive(unseeded, tmp_path / "here", 6))
    assert len({row.scores for row in rows}) == 6


@pytest.mark.heavy
def test_a_script_without_a_guard_is_told_to_add_it(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "from lightning_audit.many.driver import Driver\n"
        "from lightning_audit.many.engines import LocalProcesses\n"
        "from lightning_audit.many.store import Plan\n"
        "from lightning_audit.many.worlds import Neighbors, Work, Worlds\n"
        "from lightning_audit.many.store import TrainingStore\n"
        f"store = TrainingStore({str(tmp_path / 'store')!r}, Plan(0, 6, 1), {{}})\n"
        "work = Work(lambda data, seed: 1.0, Worlds(Neighbors(0, 1), (None,), 'add_remove'))\n"
        "Driver(work, LocalProcesses(1, ()), store).run()\n"
    )
    command = [sys.executable, script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1
    assert "put the call of audit_training under `if __name__ == '__main__':`" in done.stderr
    assert "EngineError: the engine ended 3 times before a training" in done.stderr


class KilledDrivers:
    """Starts a driver again and again, and kills it, or first one of its workers."""

    def __init__(self, folder: Path, trainings: int) -> None:
        self.folder, self.trainings = folder, trainings
        self.told: set[int] = set()
        self.twice = self.kills = 0

    def run(self, kill: str, after: float) -> bool:
        """Let the driver store something, then kill; return whether it came to the end."""
        command = [sys.executable, driven_trainings.__file__, str(self.folder), str(self.trainings)]
        lines: list[str] = []
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as driver:
            reader = threading.Thread(target=lambda: lines.extend(driver.stdout))
            reader.start()
            start = time.monotonic()
            while not lines and driver.poll() is None and time.monotonic() - start < 120:
                time.sleep(0.02)
            time.sleep(after)
            workers = workers_of(driver.pid)
            if kill == "worker":
                self._kill(workers[-1], signal.SIGKILL)
                time.sleep(after)
                workers += workers_of(driver.pid)
            if kill != "nothing" and driver.poll() is None:
                self._kill(driver.pid, signal.SIGINT if kill == "interrupt" else signal.SIGKILL)
            driver.wait(timeout=280)
            reader.join()
            wait_for(lambda: not any(map(alive, workers)), 30)
        for line in lines:
            if line.endswith("\n"):
                numbers = set(map(int, line.split()))
                self.twice += len(numbers & self.told)
                self.told |= numbers
        return driver.returncode == 0

    def _kill(self, process: int, by: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.kill(process, by)
            self.kills += 1


KILLS = staged(
    heavy=[(["driver", "worker"], 200)], nightly=[(["driver", "worker", "interrupt"] * 25, 9000)]
)


@on_linux
@pytest.mark.training
@pytest.mark.parametrize(("kills", "trainings"), KILLS)
def test_rows_after_random_kills_are_those_of_an_undisturbed_run(tmp_path, kills, trainings):
    times = random.Random(7)
    drivers = KilledDrivers(tmp_path / "killed", trainings)
    for kill in kills:
        drivers.run(kill, times.uniform(0.05, 1.0))
    drivers.run("nothing", 0.0)
    rows, whole = (
        drive(driven_trainings.softmax_regression(), tmp_path / folder, trainings)
        for folder in ("killed", "whole")
    )
    assert (facts(rows), drivers.twice) == (facts(whole), 0)
    assert drivers.kills == len(kills) + kills.count("worker")  # none came after the end
    assert drivers.told <= {row.number for row in rows}
    assert len(drivers.told) > trainings // 4


# --- What cannot be sent to another process is named.
LOCKED = worlds_of([(1.0, threading.Lock())], ChosenRecord((0.0, 1)), "add_remove")


@pytest.mark.parametrize(
    ("work", "named"),
    [
        (work_of(threading.Lock(), None), "train"),
        (work_of(quick, threading.Lock()), "score"),
        (Work(quick, LOCKED), "dataset"),
    ],
)
def test_what_cannot_be_pickled_is_named(work, named):
    match = rf"^{named} cannot be sent to another process \(TypeError: .*lock.*engine=ThisProcess"
    with pytest.raises(Unpicklable, match=match):
        packed(work)
