"""Rounds of federated learning: all of a client's rounds under one claim."""

import os
import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import plain_loops
import pytest
import torch
from plain_loops import Made, made

from lightning_audit import AuditReport, ClaimUsedUp, PrivacyViolation, Rounds, attach
from lightning_audit.accounting.history import Phase
from lightning_audit.accounting.spending import composed_epsilon
from lightning_audit.run.earlier_fits import UNKNOWN
from lightning_audit.testing.faulty import HalfNoise

GIVEN: dict[str, Any] = {"claimed_epsilon": 50.0, "seed": 1, "examinations": 0}


class Client:
    """Makes model, optimizer and engine anew in each round; its server averages parameters."""

    def __init__(self, directory: Path, *, weak_in: int = 0, keeps: bool = False, **given: Any):
        self.rounds = Rounds(directory, **{**GIVEN, **given})
        self.directory, self.weak_in, self.keeps = directory, weak_in, keeps
        self.accountant: dict[str, Any] | None = None
        self.last: Made | None = None

    def fit(self, number: int) -> AuditReport:
        weak = number == self.weak_in
        self.last = training = made(HalfNoise if weak else None, seed=number)
        if self.keeps and self.accountant is not None:
            training.engine.accountant.load_state_dict(self.accountant)
        with self.rounds.round(*training.training):
            plain_loops.mnist_form(training, epochs=1)
        self.accountant = training.engine.accountant.state_dict()
        return AuditReport.load(self.directory / "report.json")


def recorded(client: Client) -> int:
    """Steps that the accountant of the last round knows of."""
    assert client.last is not None
    return sum(steps for *_, steps in client.last.engine.accountant.history)


@pytest.mark.parametrize("way", ["the client keeps its accountant", "the audit continues it"])
def test_rounds_are_composed_whatever_the_server_does_to_the_parameters(tmp_path, way):
    mends = way == "the audit continues it"
    client = Client(tmp_path, keeps=not mends, **({"continue_accountant": True} if mends else {}))
    reports = [client.fit(number) for number in (1, 2, 3)]
    assert [report.steps for report in reports] == [32, 64, 96]
    spent = [report.epsilon_spent for report in reports]
    assert spent == sorted(spent)
    assert recorded(client) == 96
    assert reports[-1].verdict.outcome == "PASS"


def test_an_accountant_that_starts_again_is_named(tmp_path):
    client = Client(tmp_path)
    client.fit(1)
    with pytest.raises(PrivacyViolation, match=r"ledger\.accountant") as raised:
        client.fit(2)
    report = raised.value.report
    assert report.verdict.root.finding == "ledger.accountant"
    (found,) = (check for check in report.checks if check.name == "ledger.accountant")
    assert "a new PrivacyEngine has a new accountant" in found.advice
    assert "lightning_audit.Rounds(..., continue_accountant=True)" in report.verdict.root.look_at
    assert client.last.engine.accountant.history == []  # not mended in silence


def test_an_allowed_accountant_leaves_the_composition_of_all_rounds(tmp_path):
    client = Client(tmp_path, allow="ledger.accountant")
    client.fit(1)
    state = torch.load(tmp_path / "rounds.pt", weights_only=True)
    assert state["accountant"] == []
    report = client.fit(2)
    assert (report.steps, recorded(client)) == (64, 32)


def test_a_violation_of_an_earlier_round_is_kept(tmp_path):
    client = Client(tmp_path, weak_in=2, keeps=True)
    client.fit(1)
    with pytest.raises(PrivacyViolation, match="noise"):
        client.fit(2)
    with pytest.raises(PrivacyViolation, match="noise"):
        client.fit(3)
    assert AuditReport.load(tmp_path / "report.json").verdict.outcome == "VIOLATION"


def test_the_claim_is_that_of_all_rounds(tmp_path):
    one = Client(tmp_path / "probe").fit(1).epsilon_spent
    client = Client(tmp_path / "own", keeps=True, claimed_epsilon=1.05 * one)
    client.fit(1)
    with pytest.raises(ClaimUsedUp) as raised:
        client.fit(2)
    assert 32 < raised.value.report.steps < 64


def test_an_audit_a_round_is_told_from_the_second_on(tmp_path, capsys):
    notes = []
    for number in (1, 2, 3):
        training = made(seed=number)
        with attach(*training.training, **GIVEN, report_dir=tmp_path) as audit:
            plain_loops.mnist_form(training, epochs=1)
        notes.append([note for note in audit.report.notes if "Rounds" in note])
    assert [len(found) for found in notes] == [0, 1, 1]
    assert notes[2][0].startswith("2 earlier trainings")
    shown = " ".join(capsys.readouterr().out.split())
    assert "audit them with lightning_audit.Rounds" in shown  # the terminal does not cut it


def one_engine(training: Made, number: int) -> None:
    """A round whose weights come from a server, with one engine; it evaluates on its records."""
    weights = {name: one + 1e-3 * number for name, one in training.model.state_dict().items()}
    training.model.load_state_dict(weights)


def test_weights_of_a_server_are_answered_by_the_rounds_that_audit_them(tmp_path):
    training = made()
    with attach(*training.training, **GIVEN, report_dir=tmp_path / "loop") as audit:
        for number in (0, 1):
            one_engine(training, number)
            plain_loops.train_accuracy_form(training, epochs=1)
    (told,) = (one for one in audit.report.verdict.pass_blockers if "fence.weights" in one)
    assert "lightning_audit.Rounds" in told

    training, rounds = made(), Rounds(tmp_path / "rounds", **GIVEN)
    for number in (0, 1):
        one_engine(training, number)
        with rounds.round(*training.training) as audit:
            plain_loops.train_accuracy_form(training, epochs=1)
    assert audit.report.verdict.outcome == "PASS"
    assert audit.report.steps == 64


# --- Rounds that end without their audit.

#: A round of a client's process, which is killed after as many steps as stated.
ROUND = """
import os, signal, sys
import plain_loops, torch
from lightning_audit import Rounds
folder, number, last, how = sys.argv[1], *map(int, sys.argv[2:])
training = plain_loops.made(seed=number)
given = dict(claimed_epsilon=50.0, seed=1, examinations=0, continue_accountant=True)
with Rounds(folder, **given).round(*training.training) as audit:
    for step, batch in enumerate(training.loader, start=1):
        training.optimizer.zero_grad()
        plain_loops.loss_of(training, batch).backward()
        training.optimizer.step()
        if step == last:
            os.kill(os.getpid(), how)
"""


def fails(*_: Any, **__: Any) -> Any:
    raise OSError("no space left on device")


@pytest.mark.heavy
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_the_steps_of_rounds_that_were_killed_count(tmp_path, how):
    folder = tmp_path / "audit"
    for number, last in enumerate([0, 31, 7], start=1):
        told = [str(one) for one in (folder, number, last, int(how))]
        paths = os.pathsep.join(filter(None, sys.path))
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", ROUND, *told],
            env={**os.environ, "PYTHONPATH": paths},
            capture_output=True,
        )
        assert done.returncode == (-how if last else 0), done.stderr
    client = Client(folder, continue_accountant=True)
    report = client.fit(4)
    whole, lost = Phase(1.0, 1 / 32, 64), Phase(1.0, 1 / 32, 38)
    assert report.steps == 64
    assert report.epsilon_spent == pytest.approx(composed_epsilon([whole, lost], report.delta))
    assert report.verdict.outcome == "PASS", report.verdict.pass_blockers
    assert client.fit(5).epsilon_spent > report.epsilon_spent  # counted once, in the state
    assert not (folder / "rounds.open").exists()


def test_a_round_whose_audit_failed_keeps_later_ones_from_a_pass(tmp_path, monkeypatch):
    client = Client(tmp_path, keeps=True)
    client.fit(1)
    with monkeypatch.context() as patched:
        patched.setattr("lightning_audit.run.audit_run.AuditRun.end_batch", fails)
        client.fit(2)
    for number in (3, 4):
        report = client.fit(number)
        assert report.verdict.outcome == "INCONCLUSIVE"
        assert UNKNOWN in report.verdict.pass_blockers


def test_a_round_that_cannot_be_kept_ends_no_client(tmp_path, monkeypatch, caplog):
    client = Client(tmp_path, keeps=True)
    with monkeypatch.context() as patched:
        patched.setattr("torch.save", fails)
        client.fit(1)
    assert "this round could not be kept" in caplog.text
    assert UNKNOWN in client.fit(2).verdict.pass_blockers


def test_a_violation_of_a_killed_round_keeps_later_ones_from_a_pass(tmp_path):
    client = Client(tmp_path, weak_in=1, keeps=True, on_violation="warn")
    client.fit(1)
    (tmp_path / "rounds.pt").unlink()  # as if it was killed after its report was written
    (tmp_path / "rounds.open").write_bytes(struct.pack("<3d", 1.0, 1 / 32, 31))
    assert UNKNOWN in client.fit(2).verdict.pass_blockers


def test_no_file_is_written_through_a_link(tmp_path):
    outside = tmp_path / "outside"
    outside.write_text("held")
    folder = tmp_path / "audit"
    folder.mkdir()
    for name in ("rounds.open", "rounds.pt.part", "fits.jsonl"):
        (folder / name).symlink_to(outside)
    Client(folder).fit(1)
    assert outside.read_text() == "held"
