"""`audit-training`, `plan`, `selftest` and `status`: exit codes, and what is refused in words."""

import contextlib
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
import pytorch_lightning as pl
import torch
import yaml
from places import EXAMPLES, REPOSITORY
from stages import staged

from lightning_audit import audit_training
from lightning_audit.accounting.claims import PrivacyClaim
from lightning_audit.accounting.composition import noise_for_attack
from lightning_audit.cli.main import Refused
from lightning_audit.cli.trainings import arguments_of
from lightning_audit.loops.events import listeners
from lightning_audit.many import Crafted, LocalProcesses, ThisProcess
from lightning_audit.many.store import StoreError, status_of
from lightning_audit.testing import selftest_pool
from lightning_audit.testing.faults import FAULTS
from lightning_audit.testing.selftest_pool import Result

# --- `lightning-audit audit-training`: a store that is continued, and the example.

EXAMPLE = EXAMPLES / "audit_training.yaml"
MODULE = """
import os
import sys
import time
import numpy as np

def shows(dataset, seed):
    return float(np.random.default_rng(seed).normal(len(dataset[0]), 0.1))

def hides(dataset, seed):
    return float(np.random.default_rng(seed).normal())

def strong(dataset, seed):
    return float(np.random.default_rng(seed).normal(len(dataset[0])))

def slow(dataset, seed):
    time.sleep(0.2)
    return hides(dataset, seed)

def nothing(dataset, seed):
    return None

def leaves(dataset, seed):
    return sys.exit(0) if seed % 3 == 0 else hides(dataset, seed)

def ends_with_0(dataset, seed):
    os._exit(0)

def ends_with_1(dataset, seed):
    os._exit(1)

class Leaves:
    def __len__(self):
        return 4

    def __getitem__(self, index):
        sys.exit(0)

def records():
    return np.eye(4, dtype=np.float32), np.arange(4)
"""
LOCAL = "lightning_audit.many.LocalProcesses"
CONFIG = """
train: own_training.shows
dataset: own_training.records
claim: {epsilon: 1.0, delta: 1.0e-5}
engine: lightning_audit.many.ThisProcess
trainings: 60
seed: 0
"""


@pytest.fixture
def own_path(monkeypatch):
    """Keep the folders that the command adds, one of which has a json.py, from later tests."""
    monkeypatch.setattr(sys, "path", [*sys.path])


@pytest.fixture
def config(tmp_path, own_path):
    (tmp_path / "own_training.py").write_text(MODULE)
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG + f"store: {tmp_path / 'store'}\n")
    yield path
    sys.modules.pop("own_training", None)


@pytest.fixture
def started():
    """Starts the command in a process of its own, which Ctrl-C interrupts and the test ends.

    Whoever starts the tests in the background has them ignore Ctrl-C, and so their children.
    """
    made = []

    def start(*arguments: object, warnings: str = "ignore", **given: Any) -> subprocess.Popen[str]:
        module = [sys.executable, "-W", warnings, "-m", "lightning_audit.cli.main"]
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "cwd": REPOSITORY, **given}
        interruptible = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # noqa: E731
        command = [*module, *map(str, arguments)]
        made.append(subprocess.Popen(command, text=True, preexec_fn=interruptible, **options))
        return made[-1]

    yield start
    for process in made:
        process.kill()
        process.communicate()


def outcome(process: subprocess.Popen[str], timeout: float = 300) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=timeout)
    return process.returncode, out, err


def done_in(folder: Path) -> int:
    try:
        return status_of(folder).done
    except StoreError:  # there is none yet
        return 0


@pytest.mark.parametrize(
    ("changes", "code"),
    [((), 1), (("--train", "own_training.hides"), 2), (("--claim.epsilon", "9"), 2)],
)
def test_the_exit_code_is_that_of_the_verdict(config, cli, changes, code):
    said = cli("audit-training", config, *changes)
    assert said.code == code
    assert ("VIOLATION" in said.out) == (code == 1)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (("--train", "own_training.nothing"), "train returned None for training"),
        (("--trainings", "0"), "trainings=0 must be a whole number >= 1"),
        (("--trainings", "[1, 2"), "trainings: must be int, not '[1, 2'"),
    ],
)
def test_what_cannot_run_is_refused_in_a_sentence(config, cli, changes, told):
    said = cli("audit-training", config, *changes)
    assert said.code == 2
    assert told in said.err
    assert "bug" not in said.err


@pytest.mark.heavy
@pytest.mark.heavy_one_in(2)
@pytest.mark.parametrize("engine", ["ThisProcess", "LocalProcesses"])
def test_a_training_that_exits_with_0_has_failed_and_does_not_end_the_command(
    config, tmp_path, started, engine
):
    changes = ("--train", "own_training.leaves", "--engine", f"lightning_audit.many.{engine}")
    code, out, error = outcome(started("audit-training", config, *changes))
    assert code == 2, error
    report = json.loads((tmp_path / "store" / "report.json").read_text())
    assert 5 < report["trainings"]["failures"] < 40
    assert "trainings failed, and each counts as a wrong guess" in out


@pytest.mark.parametrize("code", staged(heavy=[0], nightly=[1]))
def test_what_ends_the_process_gives_no_verdict_and_the_command_says_so(
    config, tmp_path, started, code
):
    said = outcome(started("audit-training", config, "--train", f"own_training.ends_with_{code}"))
    assert said[0] == 3
    assert f"lightning-audit: the process of the audit ended with code {code} before" in said[2]
    assert not (tmp_path / "store" / "report.json").exists()


@pytest.mark.nightly
def test_a_killed_command_ends_what_it_started(config, tmp_path, started):
    audit = started("audit-training", config, "--train", "own_training.slow", "--engine", LOCAL)
    deadline = time.monotonic() + 120
    while not done_in(tmp_path / "store") and time.monotonic() < deadline:
        time.sleep(0.1)
    below = [audit.pid]
    for pid in below:
        below += children(pid)
    assert len(below) > 3  # the watched process, and workers
    os.kill(audit.pid, signal.SIGKILL)
    while any(map(alive, below)) and time.monotonic() < deadline:
        time.sleep(0.05)
        audit.poll()
    assert not any(map(alive, below))


def test_a_data_set_that_exits_is_no_pass(config, cli):
    said = cli("audit-training", config, "--dataset", "own_training.Leaves")
    assert said.code == 2
    assert "ended by SystemExit(0)" in said.err


def test_a_pass_without_its_report_is_none(config, cli, monkeypatch):
    """The command exits with 0 only if it wrote a report that says PASS."""
    passing = (
        "--claim",
        '{"noise_multiplier": 1.0, "sample_rate": 1.0, "steps": 1, "delta": 1e-5}',
    )
    changes = (*passing, "--train", "own_training.strong", "--trainings", "400", "--seed", "1")
    assert cli("audit-training", config, *changes).code == 0

    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("lightning_audit.results.audit_report.AuditReport.save", full)
    said = cli("audit-training", config, *changes)
    assert said.code == 2
    assert "report.json could not be written (No space left on device)" in said.err


@pytest.mark.heavy
@pytest.mark.skipif(sys.platform == "win32", reason="SIGINT")
def test_an_interrupt_is_a_sentence_and_the_same_command_continues(config, tmp_path, started):
    arguments = ("audit-training", config, "--train", "own_training.slow", "--trainings", "60")
    audit, store = started(*arguments), tmp_path / "store"
    deadline = time.monotonic() + 300
    # In this process, as a command takes seconds to start and the audit goes on.
    while not (before := done_in(store)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert 0 < before < 60
    os.kill(audit.pid, signal.SIGINT)
    code, _, told = outcome(audit, 60)
    assert code == 130
    assert told.endswith("lightning-audit: interrupted; the same command continues the audit\n")
    assert "Traceback" not in told
    assert done_in(store) >= before
    code, out, _ = outcome(started(*arguments))
    assert code == 2
    assert "60 trainings neither refute the claim" in out


@pytest.mark.training
@pytest.mark.nightly
def test_the_example_runs_and_the_same_command_continues_it(tmp_path, cli, started):
    changes = ("--store", tmp_path / "store", "--trainings")
    code, out, error = outcome(started("audit-training", EXAMPLE, *changes, 20))
    assert code == 2, error
    assert "20 trainings are planned" in error
    assert "INCONCLUSIVE" in out
    code, out, error = outcome(started("audit-training", EXAMPLE, *changes, 24))
    assert code == 2, error
    assert "24 trainings neither refute the claim" in out
    assert cli("status", tmp_path / "store", "--json").json["done"] == 24
    assert cli("check", tmp_path / "store").code == 2


# --- `lightning-audit plan`: exit codes, and what is refused in words.

TRAININGS = """
import pytorch_lightning as pl
from training_support import PrivateModule
import torch
from lightning_audit import PrivacyAudit
from lightning_audit.testing.faulty import HalfNoise

def trainer(*callbacks):
    return pl.Trainer(max_epochs=1, accelerator="cpu", logger=False, callbacks=list(callbacks))

def build():
    return trainer(), PrivateModule()

def build_anywhere():
    return pl.Trainer(max_epochs=1, logger=False), PrivateModule()

class Plain(PrivateModule):
    def configure_optimizers(self):
        return torch.optim.SGD(self.net.parameters(), lr=0.1)

def half_noise_and_fixed_batches():
    return trainer(PrivacyAudit(seed=1)), PrivateModule(optimizer_class=HalfNoise, poisson=False)

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

def loop(kind=None, *more):
    from plain_loops import loss_of, made

    training = made(kind)

    def step(batch):
        training.optimizer.zero_grad()
        loss_of(training, batch).backward()
        training.optimizer.step()

    return (*training.training, step, *more)

def weak_loop():
    return loop(HalfNoise)

def loop_over_its_claim():
    return loop(None, {"claimed_epsilon": 1.5, "epochs": 4})

def half_an_epoch():
    return loop(None, {"epochs": 0.5})

def no_step():
    return loop()[:3] + (None,)

def step_that_fails():
    return loop()[:3] + (lambda batch: 1 / 0,)

def misspelled():
    return loop(None, {"epoch": 4})

"""


@pytest.fixture
def plan(tmp_path, own_path, cli):
    """Gives what `lightning-audit plan` says of a function of the file."""
    path = tmp_path / "trainings_to_plan.py"
    path.write_text(TRAININGS)
    return lambda named, *options: cli("plan", *options, named.format(file=path))


@pytest.fixture
def has_mps(monkeypatch):
    """A machine of which torch says that it has MPS."""
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("mps"))


@pytest.mark.training
def test_a_trainer_that_states_no_accelerator_gets_that_of_the_command(plan, monkeypatch):
    made = []
    begin = pl.Trainer.__init__

    def told(self: Any, *arguments: Any, **settings: Any) -> None:
        made.append(os.environ.get("PL_TRAINER_ACCELERATOR"))
        begin(self, *arguments, **settings)

    monkeypatch.setattr(pl.Trainer, "__init__", told)
    assert plan("{file}:build_anywhere", "--accelerator", "cpu").code == 0
    assert (made[0], "PL_TRAINER_ACCELERATOR" in os.environ) == ("cpu", False)


@pytest.mark.filterwarnings("default")
@pytest.mark.usefixtures("has_mps")
@pytest.mark.parametrize(
    ("name", "there"),
    [("build", "state no accelerator in its Trainer"), ("loop", "put its model there")],
)
def test_a_training_that_is_elsewhere_is_not_planned_on_an_accelerator(plan, name, there):
    said = plan(f"{{file}}:{name}", "--accelerator", "auto")
    assert said.code == 2
    assert said.err.endswith(f"trains on cpu, and --accelerator says mps; {there}\n")


@pytest.mark.training
def test_a_correct_training_that_is_longer_than_its_claim_exits_with_1(plan):
    said = plan("{file}:ends_early")
    assert said.code == 1
    assert said.out.startswith("can be audited: DPOptimizer, 6 tensors")
    told = [line for line in said.lines if line.startswith("over the claim: the 32 planned steps")]
    assert len(told) == 1


@pytest.mark.training
@pytest.mark.parametrize(
    ("name", "code", "first"),
    [
        ("weak_loop", 1, "wrong: noise"),
        ("loop_over_its_claim", 1, "can be audited: "),
        ("no_step", 2, ""),
    ],
)
def test_a_plain_loop_is_planned_by_its_step(plan, name, code, first):
    said = plan(f"{{file}}:{name}")
    assert said.code == code, said.err
    assert said.out.startswith(first)
    assert ("a PASS takes " in said.out) == said.out.startswith(("can be", "wrong"))
    assert ("over the claim: the 128 planned steps" in said.out) == (name == "loop_over_its_claim")
    assert ("(model, optimizer, loader, step) of a plain loop" in said.err) == (code == 2)


@pytest.mark.training
def test_what_ends_the_plan_of_a_loop_is_one_sentence_and_leaves_no_audit(plan):
    said = plan("{file}:step_that_fails")
    assert (said.code, said.out) == (2, "")
    assert said.err == "lightning-audit: ZeroDivisionError: division by zero\n"
    assert not listeners()
    told = "there is no argument 'epoch'; did you mean 'epochs'?"
    assert told in plan("{file}:misspelled").err


@pytest.mark.training
def test_the_noise_for_a_wanted_attack_is_that_of_the_planned_steps(plan):
    said = plan("{file}:build", "--attack-tpr=0.05", "--no-progress", "--json")
    wanted = noise_for_attack(0.05, 0.01, said.json["sample_rate"], said.json["steps_planned"])
    assert said.json["noise_for_attack"] == wanted
    refused = plan("{file}:build", "--attack-tpr=0.001")
    assert refused.code == 2
    assert "tpr=0.001 must exceed fpr=0.01" in refused.err
    unknown = plan("{file}:loop", "--attack-tpr=0.05", "--no-progress")
    assert unknown.code == 2
    assert unknown.err.endswith("a planned number of steps: give attach epochs\n")
    assert "a PASS takes " in unknown.out


@pytest.mark.training
def test_json_has_the_steps_and_no_refusal(plan):
    said = plan("{file}:build", "--json")
    assert said.code == 0
    assert (said.json["refused"], said.json["steps_planned"]) == ("", 32)


@pytest.mark.training
@pytest.mark.parametrize(
    ("name", "first", "also"),
    [
        ("half_noise_and_fixed_batches", "wrong: noise: ", ["also wrong: sampling.not_poisson: "]),
        ("plain", "cannot be audited: no private optimizer took a step", []),
    ],
)
def test_a_fault_exits_with_1_and_its_root_is_the_first_line(plan, name, first, also):
    said = plan(f"{{file}}:{name}")
    assert said.code == 1
    assert said.lines[0].startswith(first)
    found = [line for line in said.lines if line.startswith("also wrong")]
    assert all(line.startswith(other) for line, other in zip(found, also, strict=True))


@pytest.mark.training
def test_a_file_that_raises_or_exits_is_no_plan(tmp_path, own_path, cli):
    for code, told in (("import nowhere_at_all", "ModuleNotFoundError"), ("exit(0)", "SystemExit")):
        (tmp_path / "json.py").write_text(code)
        said = cli("plan", f"{tmp_path / 'json.py'}:build")
        assert said.code == 2
        assert told in said.err
    assert json.loads("{}") == {}
    assert sys.modules["json"] is json


@pytest.mark.training
@pytest.mark.parametrize(
    ("named", "told"),
    [
        ("{file}", "must be FILE.py:FUNCTION"),
        ("nowhere.py:build", "there is no file nowhere.py"),
        ("no_such_module:build", "name a file, such as train.py:build"),
        ("{file}:absent", "has no function 'absent'"),
        ("{file}:nothing", "returned Trainer; it must return (trainer, model)"),
        ("{file}:broken", "broken raised OSError: no data here"),
        ("{file}:swapped", "it must return (trainer, model)"),
        ("{file}:half_an_epoch", "epochs=0.5 must be a whole number >= 1; these are whole passes"),
    ],
)
def test_what_is_no_training_exits_with_2_and_says_what_to_give(plan, named, told):
    said = plan(named)
    assert (said.code, said.out) == (2, "")
    assert told in said.err


# --- `lightning-audit selftest`.

FOUND = Result(
    *("fault", "half_noise", "Opacus", "found", 20, 1.5, "VIOLATION"),
    *("noise", True, "noise scale too small: 0.5", 3),
)
HEALTHY = Result("healthy", "healthy", "Opacus", "not accused", 100, outcome="PASS")
CRASHED = Result("fault", "no_noise", "Opacus", "crashed", 20, error="ValueError: a pity")
MISSED = Result("fault", "few_seeds", "Opacus", "not found", 100, outcome="PASS", named=False)
WARNED = Result("published", "few_seeds", "figure 8", "warned", 625, outcome="PASS", named=True)


@pytest.fixture
def run_all(monkeypatch):
    """Lets this run the trainings of a selftest."""
    return lambda run: monkeypatch.setattr(selftest_pool, "run_all", run)


@pytest.mark.parametrize(
    ("results", "code"),
    [((FOUND, HEALTHY, WARNED), 0), ((FOUND, MISSED), 1), ((HEALTHY, CRASHED), 1)],
)
def test_it_exits_with_zero_where_all_is_as_the_registry_says(run_all, cli, results, code):
    run_all(lambda *_: results)
    assert cli("selftest").code == code


def test_an_unknown_fault_is_refused_with_the_known_ones_before_anything_runs(run_all, cli):
    run_all(lambda *_: pytest.fail("a training ran"))
    said = cli("selftest", "--fault", "half_noise", "--fault", "noisy")
    assert said.code == 2
    assert "--fault noisy must be one of" in said.err
    assert all(name in said.err for name in FAULTS)


@pytest.mark.usefixtures("has_mps")
@pytest.mark.parametrize(("named", "place"), [("auto", "mps"), ("cpu", None)])
def test_all_faults_train_on_the_accelerator_with_their_other_settings(run_all, cli, named, place):
    seen: list[Any] = []
    run_all(lambda rows, *_: seen.extend(rows) or (FOUND,))
    assert cli("selftest", "--accelerator", named).code == 0
    assert {row.fault.trainer.get("accelerator") for row in seen} == {place}
    (one,) = [row.fault for row in seen if row.fault.name == "accumulation_scales_twice"]
    assert one.trainer["accumulate_grad_batches"] == 2


@pytest.mark.parametrize("command", [("selftest",), ("plan", "json:dumps")])
def test_an_accelerator_that_torch_lacks_is_refused_before_anything_runs(
    run_all, cli, monkeypatch, command
):
    run_all(lambda *_: pytest.fail("a training ran"))
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    said = cli(*command, "--accelerator", "cuda")
    assert said.code == 2
    assert "--accelerator cuda is not available: torch has cpu here; pass --acc" in said.err


def test_an_interrupt_has_its_own_exit_code(run_all, cli):
    def interrupted(*arguments: Any) -> None:
        raise KeyboardInterrupt

    run_all(interrupted)
    said = cli("selftest")
    assert said.code == 130
    assert "interrupted" in said.err


def test_processes_that_cannot_be_started_are_told_and_not_a_verdict(cli, monkeypatch):
    def refused(*arguments: Any, **more: Any) -> None:
        raise OSError("too many processes")

    monkeypatch.setattr("multiprocessing.util.spawnv_passfds", refused)
    said = cli("selftest", "--quick")
    assert said.code == 2
    assert "no process can be started: too many processes" in said.err


def test_a_missing_package_is_told_and_not_a_verdict(cli, monkeypatch):
    monkeypatch.delattr("lightning_audit.testing.selftest_pool")
    monkeypatch.setitem(sys.modules, "lightning_audit.testing.selftest_pool", None)
    said = cli("selftest")
    assert said.code == 2
    assert "selftest cannot run" in said.err


def test_on_a_terminal_the_table_is_drawn_and_progress_goes_to_stderr(run_all, cli, monkeypatch):
    def told_of_one(rows: Any, jobs: int, train: Any, told: Any) -> tuple[Result, ...]:
        told(FOUND)
        return FOUND, HEALTHY

    run_all(told_of_one)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    said = cli("selftest", "--quick")
    (row,) = [line for line in said.lines if "half_noise" in line]
    assert "│ half_noise │ Opacus " in row
    assert "1 of 1 faults found and named; 0 of 1 healthy runs accused; " in said.out
    assert "trainings" in said.err
    assert "1/3" in said.err
    bare = cli("selftest", "--quick", "--no-progress")
    assert "1/3" not in bare.err


def test_json_holds_every_field_of_every_row(run_all, cli):
    run_all(lambda *_: (FOUND, CRASHED))
    said = cli("selftest", "--json")
    assert said.code == said.json["exit_code"] == 1
    assert said.json["summary"] == "1 of 2 faults found and named; 1 crashed"
    assert [Result(**fields) for fields in said.json["rows"]] == [FOUND, CRASHED]


def fields_of(pid: int) -> list[str]:
    """The state of a process, the process that started it, and so on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def children(parent: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # ended in between
            state, started_by, *_ = fields_of(int(path.name))
            found += [int(path.name)] * (int(started_by) == parent and state != "Z")
    return found


def alive(pid: int) -> bool:
    try:
        return fields_of(pid)[0] != "Z"
    except OSError:
        return False


@pytest.mark.heavy
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are read off /proc")
@pytest.mark.parametrize("name", ["SIGINT", "SIGKILL"])
def test_whatever_ends_the_command_ends_its_trainings(name, tmp_path, started):
    silent = dict.fromkeys(("stdout", "stderr"), subprocess.DEVNULL)
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    process = started("selftest", "--jobs", "2", env=environment, **silent)
    deadline = time.monotonic() + 300
    while len(workers := children(process.pid)) < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(workers) == 3  # and the one that multiprocessing starts to tidy up
    os.kill(process.pid, getattr(signal, name))
    code = process.wait(timeout=30)
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


@pytest.fixture
def status(tmp_path, cli):
    """Gives what `lightning-audit status` says of an audit that ended in the test's folder."""
    audit_training(
        shows,
        DATA,
        (1.0, 1e-5),
        store=tmp_path,
        engine=ThisProcess(),
        display=False,
        **{"trainings": 40, "stop": "end", "seed": 0},
    )
    return lambda *options: cli("status", tmp_path, *options)


def test_the_lines_of_an_audit_that_ended(tmp_path, status):
    said = status()
    trainings, needed, claim, evidence, *rest = said.lines
    assert said.code == 0
    assert trainings.startswith("trainings   40 of 40 planned have ended: ")
    assert " started again" in trainings
    assert needed.startswith("time        a training takes ")
    assert "left" not in needed
    assert claim == "claim       (1, 1e-05)-DP"
    assert evidence.startswith("evidence    ")
    assert evidence.endswith("; 10^3.0 refutes the claim")
    assert rest == [
        "last error  MemoryError",
        f"audit       ended; `lightning-audit check {tmp_path}` prints its verdict",
    ]
    (tmp_path / "report.json").unlink()
    assert "not running; the same command or call continues it" in status().out


def test_json_has_the_same_numbers(status):
    said = status("--json")
    found = said.json
    assert said.code == 0
    assert found["planned"] == found["done"] + found["failed"] == 40
    assert found["started_again"] == 0 < found["failed"]
    assert found["reported"] is True
    assert found["evidence"]["log10_refuting"] == pytest.approx(3.0)
    assert found["last_error"] == "MemoryError"


def test_a_folder_without_a_store_and_one_without_a_status_are_refused_in_a_sentence(tmp_path, cli):
    told = f"lightning-audit: {tmp_path} holds no store: there is no trainings.sqlite in it.\n"
    assert cli("status", tmp_path) == (2, "", told)
    (tmp_path / "trainings.sqlite").write_bytes(b"x" * 5000)
    said = cli("status", tmp_path)
    assert said.code == 2
    assert "has no status.json, which releases before did not write; the same command" in said.err
    assert said.err.count("\n") == 1


# --- The file of `lightning-audit audit-training`: what it names is made, or refused in a sentence.

OWN = """
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
ROOM = "lightning_audit.many"
SETTINGS = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "sample_rate": 1.0, "steps": 2}
SETTINGS |= {"model": "own.make_model", "expected_batch_size": 4, "learning_rate": 0.5}
MANY = {"class_path": f"{ROOM}.DPSGDMany", "init_args": SETTINGS}


def made(class_path: str, **init_args: Any) -> dict[str, Any]:
    return {"class_path": class_path, "init_args": init_args}


@pytest.fixture
def read(tmp_path, own_path, monkeypatch):
    """Gives the arguments that a file makes with these changes, and with these options."""
    for name, code in (("own", OWN), ("broken", "raise ValueError('no GPU')")):
        monkeypatch.delitem(sys.modules, name, raising=False)
        (tmp_path / f"{name}.py").write_text(code)

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
            "canary": made(f"{ROOM}.Crafted", length=2),
            "score": "own.score",
            "engine": made(f"{ROOM}.LocalProcesses", workers=2),
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
    assert (given["trainings"], given["stop"], given["seed"]) == (70, "end", None)
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
    given = read({"train": MANY, "engine": made(f"{ROOM}.ThisProcess")})
    assert len(given["train"].many([given["dataset"]] * 2, [1, 2])) == 2
    assert given["engine"] == ThisProcess()


def test_modules_of_the_user_are_sent_to_the_machines_of_a_cluster(read):
    import cloudpickle

    read({"engine": made(f"{ROOM}.LocalProcesses")})
    assert "own" not in cloudpickle.list_registry_pickle_by_value()
    read({"engine": made(f"{ROOM}.FromExecutor", executor="a cluster")})
    assert "own" in cloudpickle.list_registry_pickle_by_value()
    cloudpickle.unregister_pickle_by_value(sys.modules["own"])


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"trainngs": 3}, "unknown key 'trainngs'"),
        (
            {"canary": made(f"{ROOM}.Crafted", lenght=1)},
            f"canary: {ROOM}.Crafted: unknown key 'len",
        ),
        ({"dataset": made("own.records", cont=1)}, "dataset: unknown key 'cont'"),
        ({"trainings": "x"}, "trainings: must be int, not 'x'"),
        ({"stop": "soon"}, "stop: must be Literal['refuted', 'end'], not 'soon'"),
        ({"dataset": made("own.records", count="x")}, "dataset: count: must be int, not 'x'"),
        ({"train": "absent.train"}, "module absent cannot be imported (ModuleNotFoundError: "),
        ({"train": "broken.train"}, "module broken cannot be imported (ValueError: no GPU)"),
        ({"train": "own.nope"}, "train: module 'own' has no attribute 'nope'"),
        ({"train": 3}, "train: must be an import path, not 3"),
        ({"train": None}, "the following arguments are required: train"),
        ({"dataset": "own.nope"}, "dataset: module own has no attribute 'nope'"),
        ({"dataset": "own.fails"}, "own.fails raised RuntimeError: no disk"),
        ({"dataset": {"init_args": {}}}, "dataset: must be an import path, or have a class_path"),
        ({"train": {**MANY, "init_args": {}}}, "train: the following arguments are required: "),
        ({"engine": made(f"{ROOM}.Fast")}, f"{ROOM}.Fast: module '{ROOM}' has no attribute 'Fast'"),
        ({"claim": {"delta": 3.0}}, "delta=3.0 must be in (0, 1)"),
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


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "cannot be read: No such file"),
        ("a: [", "is not YAML: while parsing"),
        ("- a", "must have keys such as train, dataset and claim"),
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
    with pytest.raises(Refused, match=r"pip install '.\[cli\]'"):
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
