"""`lightning-audit plan`: exit codes, and what is refused in words."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from lightning_audit.cli.main import main

pytestmark = pytest.mark.training

TRAININGS = """
import pytorch_lightning as pl
from training_support import PrivateModule
from lightning_audit import PrivacyAudit
from lightning_audit.canaries import Mislabeled


def trainer(*callbacks):
    return pl.Trainer(max_epochs=1, accelerator="cpu", logger=False, callbacks=list(callbacks))


def build():
    return trainer(), PrivateModule()


def refused():
    return trainer(PrivacyAudit(canaries=[Mislabeled()])), PrivateModule()


def broken():
    raise OSError("no data here")


def nothing():
    return trainer()


def swapped():
    return PrivateModule(), trainer()


number = 3
"""


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
