"""The file of `lightning-audit audit-training`: what it names is made, or refused in a sentence."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from places import EXAMPLES, REPOSITORY

from lightning_audit import audit_training
from lightning_audit.accounting.claims import PrivacyClaim
from lightning_audit.cli import main as main_of_cli
from lightning_audit.cli.main import Refused, main
from lightning_audit.cli.trainings import arguments_of
from lightning_audit.many import Crafted, LocalProcesses, ThisProcess
from lightning_audit.many.store import StoreError, status_of
from lightning_audit.testing import selftest_pool
from lightning_audit.testing.faults import FAULTS
from lightning_audit.testing.selftest_pool import Result

# --- `lightning-audit audit-training`: exit codes, a store that is continued, and the example.

EXAMPLE = str(EXAMPLES / "audit_training.yaml")
MODULE = """
import time
import numpy as np


def shows(dataset, seed):
    return float(np.random.default_rng(seed).normal(len(dataset[0]), 0.1))


def hides(dataset, seed):
    return float(np.random.default_rng(seed).normal())


def slow(dataset, seed):
    time.sleep(0.2)
    return hides(dataset, seed)


def nothing(dataset, seed):
    return None


def records():
    return np.eye(4, dtype=np.float32), np.arange(4)
"""
CONFIG = """
train: own_training.shows
dataset: own_training.records
claim: {epsilon: 1.0, delta: 1.0e-5}
engine: lightning_audit.many.ThisProcess
trainings: 60
"""


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "own_training.py").write_text(MODULE)
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG + f"store: {tmp_path / 'store'}\n")
    yield str(path)
    sys.modules.pop("own_training", None)


def started(*arguments):
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "lightning_audit.cli.main", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
    )


def done_in(folder):
    try:
        return status_of(folder).done
    except StoreError:  # there is none yet
        return 0


def stored(folder):
    """Return how many trainings `status` counts, in a process of its own."""
    told, _ = started("status", str(folder), "--json").communicate(timeout=120)
    return json.loads(told)["done"] if told else 0


@pytest.mark.parametrize(
    ("changes", "code"),
    [((), 1), (("--train", "own_training.hides"), 2), (("--claim.epsilon", "9"), 2)],
)
def test_the_exit_code_is_that_of_the_verdict(config, capsys, changes, code):
    assert main(["audit-training", config, *changes]) == code
    assert ("VIOLATION" in capsys.readouterr().out) == (code == 1)


def test_the_same_command_continues_and_a_longer_plan_adds_to_it(config, tmp_path, capsys):
    hidden = ["audit-training", config, "--train", "own_training.hides"]
    assert main([*hidden, "--trainings", "20"]) == 2
    assert main([*hidden, "--trainings", "30"]) == 2
    assert "30 trainings neither refute the claim" in capsys.readouterr().out
    assert main(["status", str(tmp_path / "store")]) == 0
    assert "30 of 30 planned have ended: 30 done" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (("--train", "own_training.nothing"), "train returned None for training"),
        (("--train", "own_training.absent"), "has no attribute 'absent'"),
        (("--trainings", "0"), "trainings=0 must be a whole number >= 1"),
        (("--significance", "3"), "significance=3.0 must be in (0, 1)"),
        (("--trainings", "@5"), "trainings: must be int, not '@5'"),
        (("--trainings", "[1, 2"), "trainings: must be int, not '[1, 2'"),
    ],
)
def test_what_cannot_run_is_refused_in_a_sentence(config, capsys, changes, told):
    assert main(["audit-training", config, *changes]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert "bug" not in error


def test_a_store_of_another_training_is_refused(config, capsys):
    assert main(["audit-training", config]) == 1
    assert main(["audit-training", config, "--train", "own_training.hides"]) == 2
    assert "holds trainings with another train; give store=" in capsys.readouterr().err


@pytest.mark.heavy
@pytest.mark.skipif(sys.platform == "win32", reason="SIGINT")
def test_an_interrupt_is_a_sentence_and_the_same_command_continues(config, tmp_path):
    arguments = ("audit-training", config, "--train", "own_training.slow", "--trainings", "60")
    audit = started(*arguments)
    deadline = time.monotonic() + 120
    # In this process, as a command takes seconds to start and the audit goes on.
    while not (ended := done_in(tmp_path / "store")) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert 0 < ended < 60
    os.kill(audit.pid, signal.SIGINT)
    _, told = audit.communicate(timeout=60)
    assert audit.returncode == 130
    assert told.endswith("lightning-audit: interrupted; the same command continues the audit\n")
    assert "Traceback" not in told
    before = stored(tmp_path / "store")
    assert before >= ended
    again = started(*arguments)
    out, _ = again.communicate(timeout=120)
    assert again.returncode == 2
    assert "60 trainings neither refute the claim" in out


@pytest.mark.training
@pytest.mark.heavy
def test_the_example_runs_and_the_same_command_continues_it(tmp_path):
    changes = ("--store", str(tmp_path / "store"), "--trainings")
    few = started("audit-training", EXAMPLE, *changes, "20")
    out, error = few.communicate(timeout=300)
    assert few.returncode == 2, error
    assert "20 trainings are planned" in error
    assert "INCONCLUSIVE" in out
    longer = started("audit-training", EXAMPLE, *changes, "24")
    out, error = longer.communicate(timeout=300)
    assert longer.returncode == 2, error
    assert "24 trainings neither refute the claim" in out
    assert stored(tmp_path / "store") == 24
    assert main(["check", str(tmp_path / "store")]) == 2


# --- `lightning-audit plan`: exit codes, and what is refused in words.

TRAININGS = """
import pytorch_lightning as pl
from training_support import PrivateModule
import torch
from lightning_audit import PrivacyAudit, PrivacyClaim
from lightning_audit.canaries import Mislabeled
from lightning_audit.testing.faulty import HalfNoise


def trainer(*callbacks):
    return pl.Trainer(max_epochs=1, accelerator="cpu", logger=False, callbacks=list(callbacks))


def build():
    return trainer(), PrivateModule()


def refused():
    return trainer(PrivacyAudit(canaries=[Mislabeled()])), PrivateModule()


class Shuffled(PrivateModule):
    def __init__(self):
        super().__init__(poisson=False, make_poisson=False)


class Plain(PrivateModule):
    def configure_optimizers(self):
        return torch.optim.SGD(self.net.parameters(), lr=0.1)


def half_noise_and_fixed_batches():
    return trainer(PrivacyAudit(seed=1)), PrivateModule(optimizer_class=HalfNoise, poisson=False)


def first_step_too_dear():
    return trainer(PrivacyAudit(claimed_epsilon=1e-3)), PrivateModule()


def epochs_too_many():
    claim = PrivacyClaim(sampling="shuffled", epsilon=5.0, delta=1e-5)
    planned = trainer(PrivacyAudit(claim=claim))
    planned.fit_loop.max_epochs = 3
    return planned, Shuffled()


def ends_early():
    return trainer(PrivacyAudit(claimed_epsilon=0.9)), PrivateModule()


def plain():
    return trainer(PrivacyAudit(seed=1)), Plain()


def broken():
    raise OSError("no data here")


def nothing():
    return trainer()


def swapped():
    return PrivateModule(), trainer()


number = 3
"""


@pytest.fixture
def own_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the folders that the command adds, one of which has a json.py, from later tests."""
    monkeypatch.setattr(sys, "path", [*sys.path])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "trainings_to_plan.py"
    path.write_text(TRAININGS)
    return path


@pytest.mark.usefixtures("own_path")
@pytest.mark.training
def test_what_can_be_audited_is_told_and_exits_with_0(file, capsys):
    assert main(["plan", f"{file}:build"]) == 0
    assert "can be audited: DPOptimizer, 6 tensors" in capsys.readouterr().out
    assert main(["plan", "--json", f"{file}:build"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["refused"] == ""
    assert told["steps_planned"] == 32


def planned(file: Path, name: str) -> tuple[int, list[str]]:
    """Exit code and lines of the command, in a process of its own."""
    found = subprocess.run(
        [sys.executable, "-m", "lightning_audit.cli.main", "plan", f"{file}:{name}"],
        env={**os.environ, "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'tests' / 'support'}"},
        cwd=file.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return found.returncode, found.stdout.splitlines()


@pytest.mark.usefixtures("own_path")
@pytest.mark.training
@pytest.mark.parametrize(
    ("name", "first", "others"),
    [
        ("half_noise_and_fixed_batches", "wrong: noise: ", ["also wrong: sampling.not_poisson: "]),
        ("first_step_too_dear", "wrong: accounting: the steps so far cost epsilon", []),
        ("epochs_too_many", "wrong: accounting: the 3 planned epochs cost", []),
        ("plain", "cannot be audited: no private optimizer took a step", []),
    ],
)
def test_a_fault_exits_with_1_and_its_root_is_the_first_line(file, name, first, others):
    code, lines = planned(file, name)
    assert code == 1
    assert lines[0].startswith(first)
    found = [line for line in lines if line.startswith("also wrong")]
    assert len(found) == len(others)
    assert all(line.startswith(other) for line, other in zip(found, others, strict=True))


@pytest.mark.usefixtures("own_path")
@pytest.mark.training
@pytest.mark.parametrize("name", ["build", "ends_early"])
def test_a_correct_training_exits_with_0(file, name):
    code, lines = planned(file, name)
    assert code == 0
    assert lines[0].startswith("can be audited: ")
    told = [line for line in lines if line.startswith("over the claim: the 32 planned steps")]
    assert len(told) == (name == "ends_early")


@pytest.mark.usefixtures("own_path")
@pytest.mark.training
def test_a_file_that_raises_or_exits_is_no_plan(tmp_path, capsys):
    for code, told in (("import nowhere_at_all", "ModuleNotFoundError"), ("exit(0)", "SystemExit")):
        (tmp_path / "json.py").write_text(code)
        assert main(["plan", f"{tmp_path / 'json.py'}:build"]) == 2
        assert told in capsys.readouterr().err
    assert json.loads("{}") == {}
    assert sys.modules["json"] is json


@pytest.mark.usefixtures("own_path")
@pytest.mark.training
def test_what_is_refused_exits_with_1(file, capsys):
    assert main(["plan", f"{file}:refused"]) == 1
    assert capsys.readouterr().out.startswith("cannot be audited: ")


@pytest.mark.usefixtures("own_path")
@pytest.mark.training
@pytest.mark.parametrize(
    ("named", "told"),
    [
        ("{file}", "must be FILE.py:FUNCTION"),
        ("{file}:", "must be FILE.py:FUNCTION"),
        ("nowhere.py:build", "there is no file nowhere.py"),
        ("no_such_module:build", "name a file, such as train.py:build"),
        ("{file}:absent", "has no function 'absent'"),
        ("{file}:number", "has no function 'number'"),
        ("{file}:nothing", "returned Trainer; it must return (trainer, model)"),
        ("{file}:broken", "broken raised OSError: no data here"),
        ("{file}:swapped", "it must return (trainer, model)"),
    ],
)
def test_what_is_no_training_exits_with_2_and_says_what_to_give(file, named, told, capsys):
    assert main(["plan", named.format(file=file)]) == 2
    streams = capsys.readouterr()
    assert streams.out == ""
    assert told in streams.err


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
def test_it_exits_with_zero_where_all_is_as_the_registry_says(monkeypatch, results, code):
    given(monkeypatch, *results)
    assert main_of_cli.main(["selftest"]) == code


def test_an_unknown_fault_is_refused_with_the_known_ones_before_anything_runs(monkeypatch, capsys):
    asked = given(monkeypatch)
    assert main_of_cli.main(["selftest", "--fault", "half_noise", "--fault", "noisy"]) == 2
    assert asked == []
    told = capsys.readouterr().err
    assert "--fault noisy must be one of" in told
    assert all(name in told for name in FAULTS)


@pytest.mark.parametrize("jobs", ["0", "-1", "two", "1.5"])
def test_jobs_are_a_positive_whole_number(jobs, capsys):
    with pytest.raises(SystemExit) as ended:
        main_of_cli.main(["selftest", f"--jobs={jobs}"])
    assert ended.value.code == 2
    assert "must be a whole number" in capsys.readouterr().err


def test_an_interrupt_has_its_own_exit_code(monkeypatch, capsys):
    def interrupted(*arguments: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(selftest_pool, "run_all", interrupted)
    assert main_of_cli.main(["selftest"]) == 130
    assert "interrupted" in capsys.readouterr().err


def test_processes_that_cannot_be_started_are_told_and_not_a_verdict(monkeypatch, capsys):
    def refused(*arguments: Any, **more: Any) -> None:
        raise OSError("too many processes")

    monkeypatch.setattr("multiprocessing.util.spawnv_passfds", refused)
    assert main_of_cli.main(["selftest", "--quick"]) == 2
    assert "no process can be started: too many processes" in capsys.readouterr().err


def test_a_missing_package_is_told_and_not_a_verdict(monkeypatch, capsys):
    monkeypatch.delattr("lightning_audit.testing.selftest_pool")
    monkeypatch.setitem(sys.modules, "lightning_audit.testing.selftest_pool", None)
    assert main_of_cli.main(["selftest"]) == 2
    assert "selftest cannot run" in capsys.readouterr().err


def test_on_a_terminal_the_table_is_drawn_and_progress_goes_to_stderr(monkeypatch, capsys):
    def run_all(rows: Any, jobs: int, told: Any) -> tuple[Result, ...]:
        told(FOUND)
        return FOUND, HEALTHY

    monkeypatch.setattr(selftest_pool, "run_all", run_all)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "200")
    main_of_cli.main(["selftest", "--quick"])
    told = capsys.readouterr()
    (row,) = [line for line in told.out.splitlines() if "half_noise" in line]
    assert "│ half_noise │ Opacus " in row
    assert "1 of 1 faults found and named; 0 of 1 healthy runs accused; " in told.out
    assert told.err == "1/3 half_noise, Opacus: found\n"


def test_json_holds_every_field_of_every_row(monkeypatch, capsys):
    given(monkeypatch, FOUND, CRASHED)
    assert main_of_cli.main(["selftest", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["exit_code"] == 1
    assert told["summary"] == "1 of 2 faults found and named; 1 crashed"
    assert [Result(**fields) for fields in told["rows"]] == [FOUND, CRASHED]


# ------------------------------------------------------------------ real processes


@pytest.mark.heavy
def test_a_quick_selftest_finds_its_faults_and_accuses_nothing_healthy():
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
def test_whatever_ends_the_command_ends_its_trainings(name, tmp_path):
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


# --- `lightning-audit status`: lines, JSON and exit codes.

DATA = (np.eye(4, dtype=np.float32), np.arange(4))


def shows(dataset, seed):
    if seed % 5 == 0:
        raise MemoryError("record 17 is too large")
    return float(np.random.default_rng(seed).normal(len(dataset[0]), 0.1))


def audited(folder, **given):
    audit_training(
        shows,
        DATA,
        (1.0, 1e-5),
        store=folder,
        engine=ThisProcess(),
        display=False,
        **{"trainings": 40, "stop": "end", **given},
    )


def test_the_lines_of_an_audit_that_ended(tmp_path, capsys):
    audited(tmp_path)
    assert main(["status", str(tmp_path)]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0].startswith("trainings   40 of 40 planned have ended: ")
    assert " started again" in told[0]
    assert told[1].startswith("time        a training takes ")
    assert "left" not in told[1]
    assert told[2] == "claim       (1, 1e-05)-DP"
    assert told[3].startswith("evidence    ")
    assert told[3].endswith("; 10^3.0 refutes the claim")
    assert told[4] == "last error  MemoryError"
    assert told[5] == f"audit       ended; `lightning-audit check {tmp_path}` prints its verdict"
    assert len(told) == 6


def test_an_audit_without_a_report_is_continued(tmp_path, capsys):
    audited(tmp_path)
    (tmp_path / "report.json").unlink()
    assert main(["status", str(tmp_path)]) == 0
    assert "not running; the same command or call continues it" in capsys.readouterr().out


def test_json_has_the_same_numbers(tmp_path, capsys):
    audited(tmp_path)
    assert main(["status", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["planned"] == found["done"] + found["failed"] == 40
    assert found["started_again"] == found["failed"] > 0
    assert found["reported"] is True
    assert found["evidence"]["log10_refuting"] == pytest.approx(3.0)
    assert found["last_error"] == "MemoryError"


def test_a_folder_without_a_store_and_a_damaged_file_are_refused_in_a_sentence(tmp_path, capsys):
    assert main(["status", str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        f"lightning-audit: {tmp_path} holds no store: there is no trainings.sqlite in it.\n"
    )
    (tmp_path / "trainings.sqlite").write_bytes(b"x" * 5000)
    assert main(["status", str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert "cannot be read (file is not a database); restore trainings.sqlite" in told
    assert told.count("\n") == 1


# --- The file of `lightning-audit audit-training`: what it names is made, or refused in a sentence.

MODULE_OF_TRAINING_CONFIG = """
import numpy as np
from torch import nn


def train(dataset, seed):
    return float(seed)


def score(model, record):
    return 1.0


def dataset():
    return np.eye(4), np.arange(4)


def records(count: int):
    return np.eye(count), np.arange(count)


def fails():
    raise RuntimeError("no disk")


def make_model() -> nn.Module:
    return nn.Linear(4, 4)


values = np.eye(2), np.arange(2)
"""
BASE = {"train": "own.train", "dataset": "own.dataset", "claim": {"epsilon": 1.0, "delta": 1e-5}}
MANY = {
    "class_path": "lightning_audit.many.DPSGDMany",
    "init_args": {
        "model": "own.make_model",
        "noise_multiplier": 1.0,
        "max_grad_norm": 1.0,
        "sample_rate": 1.0,
        "expected_batch_size": 4,
        "steps": 2,
        "learning_rate": 0.5,
    },
}


def made(class_path, **init_args):
    return {"class_path": class_path, "init_args": init_args}


@pytest.fixture
def read(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "own", raising=False)
    monkeypatch.delitem(sys.modules, "broken", raising=False)
    (tmp_path / "own.py").write_text(MODULE_OF_TRAINING_CONFIG)
    (tmp_path / "broken.py").write_text("raise ValueError('no GPU')")

    def read(change=None, *changes):
        path = tmp_path / "config.yaml"
        path.write_text(yaml.safe_dump({**BASE, **(change or {})}))
        return arguments_of(str(path), changes)

    yield read
    for name in ("own", "broken"):
        sys.modules.pop(name, None)


def test_a_file_gives_the_arguments_of_the_audit_and_options_replace_its_values(read):
    given = read(
        {
            "claim": {"noise_multiplier": 2, "sample_rate": 1.0, "steps": 3, "delta": 1e-5},
            "canary": made("lightning_audit.many.Crafted", length=2),
            "score": "own.score",
            "engine": made("lightning_audit.many.LocalProcesses", workers=2),
            "trainings": 30,
            "stop": "end",
        },
        *("--trainings", "70", "--claim.steps=5"),
    )
    assert given["train"](None, 3) == 3.0
    assert given["score"](None, None) == 1.0
    assert len(given["dataset"][1]) == 4
    claim = PrivacyClaim(noise_multiplier=2, sample_rate=1.0, steps=5, delta=1e-5)
    assert given["claim"] == claim
    assert given["canary"] == Crafted(length=2.0)
    assert given["engine"] == LocalProcesses(workers=2)
    assert (given["trainings"], given["stop"], given["seed"]) == (70, "end", 0)
    assert "config" not in given


@pytest.mark.parametrize(
    ("stated", "records"),
    [
        ("own.dataset", 4),
        ("own.values", 2),
        (made("own.records", count=3), 3),
        ({"class_path": "own.dataset"}, 4),
    ],
)
def test_a_data_set_is_returned_by_a_function_or_is_a_value(read, stated, records):
    assert len(read({"dataset": stated})["dataset"][1]) == records


def test_a_training_of_many_models_is_made_from_its_settings(read):
    given = read({"train": MANY, "engine": made("lightning_audit.many.ThisProcess")})
    assert len(given["train"].many([given["dataset"]] * 2, [1, 2])) == 2
    assert given["engine"] == ThisProcess()


def test_modules_of_the_user_are_sent_to_the_machines_of_a_cluster(read):
    import cloudpickle

    read({"engine": made("lightning_audit.many.LocalProcesses")})
    assert "own" not in cloudpickle.list_registry_pickle_by_value()
    executor = made("lightning_audit.many.FromExecutor", executor="a cluster")
    read({"engine": executor})
    assert "own" in cloudpickle.list_registry_pickle_by_value()
    cloudpickle.unregister_pickle_by_value(sys.modules["own"])


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"trainngs": 3}, "unknown key 'trainngs'"),
        ({"claim": {"noise": 3}}, "claim: unknown key 'noise'"),
        (
            {"canary": made("lightning_audit.many.Crafted", lenght=1)},
            "canary: lightning_audit.many.Crafted: unknown key 'lenght'",
        ),
        ({"dataset": made("own.records", cont=1)}, "dataset: unknown key 'cont'"),
        ({"trainings": "x"}, "trainings: must be int, not 'x'"),
        ({"claim": {"steps": "many"}}, "claim.steps: must be int, not 'many'"),
        ({"stop": "soon"}, "stop: must be Literal['refuted', 'end'], not 'soon'"),
        ({"dataset": made("own.records", count="x")}, "dataset: count: must be int, not 'x'"),
        ({"train": "absent.train"}, "module absent cannot be imported (ModuleNotFoundError: "),
        ({"train": "broken.train"}, "module broken cannot be imported (ValueError: no GPU)"),
        ({"train": "own.nope"}, "train: module 'own' has no attribute 'nope'"),
        ({"train": "own"}, "train='own' must be an import path, such as my_module.name"),
        ({"train": 3}, "train: must be an import path, not 3"),
        ({"train": None}, "the following arguments are required: train"),
        ({"dataset": "own.nope"}, "dataset: module own has no attribute 'nope'"),
        ({"dataset": "own.fails"}, "own.fails raised RuntimeError: no disk"),
        ({"dataset": {"init_args": {}}}, "dataset: must be an import path, or have a class_path"),
        ({"train": made("own.fails")}, "RuntimeError: no disk"),
        ({"train": {**MANY, "init_args": {}}}, "train: the following arguments are required: "),
        ({"engine": "fast"}, "engine: must be an import path, such as my_module.name, not 'fast'"),
        (
            {"engine": made("lightning_audit.many.Fast")},
            "lightning_audit.many.Fast: module 'lightning_audit.many' has no attribute 'Fast'",
        ),
        ({"claim": {"delta": 3.0}}, "delta=3.0 must be in (0, 1)"),
        ({"claim": {}}, "PrivacyClaim() claims nothing; give at least one of epsilon"),
        ({"claim": 4}, "claim: must have keys such as noise_multiplier, or epsilon"),
    ],
)
def test_a_value_that_cannot_be_used_is_refused_in_a_sentence(read, change, told):
    with pytest.raises(Refused) as refusal:
        read(change)
    text = str(refusal.value)
    assert told in text
    assert "config.yaml: " in text
    assert "\n" not in text
    assert len(text) < 500


def test_an_option_that_is_unknown_or_of_another_type_is_refused(read):
    with pytest.raises(Refused, match="unrecognized arguments: --trainngs 3"):
        read({}, "--trainngs", "3")
    with pytest.raises(Refused, match="seed: must be int, not 'x'"):
        read({}, "--seed", "x")


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "cannot be read: No such file"),
        ("a: [", "is not YAML: while parsing"),
        ("- a", "must have keys such as train, dataset and claim"),
        ("", "must have keys such as train, dataset and claim"),
        (b"\xff\xfe\x00", "cannot be read: 'utf-8' codec"),
        ("[" * 2000, "is not YAML"),
    ],
)
def test_a_file_without_such_keys_is_refused_in_a_sentence(tmp_path, content, told):
    path = tmp_path / "config.yaml"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(Refused) as refusal:
        arguments_of(str(path), [])
    assert told in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_without_jsonargparse_a_sentence_names_the_extra(read, monkeypatch):
    monkeypatch.setitem(sys.modules, "jsonargparse", None)
    with pytest.raises(Refused, match=r"pip install 'lightning-audit\[cli\]'"):
        read()


@pytest.mark.parametrize("option", ["--help", "--print_config"])
def test_help_and_the_values_of_all_keys_are_printed(read, capsys, option):
    with pytest.raises(SystemExit) as end:
        read({"trainings": 30}, option)
    assert end.value.code == 0
    told = capsys.readouterr().out
    for key in ("train", "dataset", "claim", "canary", "score", "engine", "trainings", "store"):
        assert key in told
    assert ("trainings: 30" in told) == (option == "--print_config")
