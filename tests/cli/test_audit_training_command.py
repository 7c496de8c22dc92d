"""`lightning-audit audit-training`: exit codes, a store that is continued, and the example."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from places import EXAMPLES, REPOSITORY

from lightning_audit.cli.main import main
from lightning_audit.many.store import StoreError, status_of

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
