"""`lightning-audit plan`: exit codes, and what is refused in words."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from places import REPOSITORY

from lightning_audit.cli.main import main

pytestmark = pytest.mark.training

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


@pytest.fixture(autouse=True)
def own_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the folders that the command adds, one of which has a json.py, from later tests."""
    monkeypatch.setattr(sys, "path", [*sys.path])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "trainings_to_plan.py"
    path.write_text(TRAININGS)
    return path


def test_what_can_be_audited_is_told_and_exits_with_0(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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


@pytest.mark.parametrize(
    ("name", "first", "others"),
    [
        ("half_noise_and_fixed_batches", "wrong: noise: ", ["also wrong: sampling.not_poisson: "]),
        ("first_step_too_dear", "wrong: accounting: the steps so far cost epsilon", []),
        ("epochs_too_many", "wrong: accounting: the 3 planned epochs cost", []),
        ("plain", "cannot be audited: no private optimizer took a step", []),
    ],
)
def test_a_fault_exits_with_1_and_its_root_is_the_first_line(
    file: Path, name: str, first: str, others: list[str]
) -> None:
    code, lines = planned(file, name)
    assert code == 1
    assert lines[0].startswith(first)
    found = [line for line in lines if line.startswith("also wrong")]
    assert len(found) == len(others)
    assert all(line.startswith(other) for line, other in zip(found, others, strict=True))


@pytest.mark.parametrize("name", ["build", "ends_early"])
def test_a_correct_training_exits_with_0(file: Path, name: str) -> None:
    code, lines = planned(file, name)
    assert code == 0
    assert lines[0].startswith("can be audited: ")
    told = [line for line in lines if line.startswith("over the claim: the 32 planned steps")]
    assert len(told) == (name == "ends_early")


def test_a_file_that_raises_or_exits_is_no_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for code, told in (("import nowhere_at_all", "ModuleNotFoundError"), ("exit(0)", "SystemExit")):
        (tmp_path / "json.py").write_text(code)
        assert main(["plan", f"{tmp_path / 'json.py'}:build"]) == 2
        assert told in capsys.readouterr().err
    assert json.loads("{}") == {}
    assert sys.modules["json"] is json


def test_what_is_refused_exits_with_1(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", f"{file}:refused"]) == 1
    assert capsys.readouterr().out.startswith("cannot be audited: ")


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
def test_what_is_no_training_exits_with_2_and_says_what_to_give(
    file: Path, named: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", named.format(file=file)]) == 2
    streams = capsys.readouterr()
    assert streams.out == ""
    assert told in streams.err
