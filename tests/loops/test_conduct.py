"""Loops that are killed, interrupted or out of room, and two of them with one directory."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import plain_loops
import pytest
import torch
from plain_loops import Made, made
from test_attach import moved

from lightning_audit import AuditReport, attach
from lightning_audit.loops.events import listeners
from lightning_audit.results.audit_report import UnauditableTraining

GIVEN: dict[str, Any] = {"claimed_epsilon": 50.0, "seed": 1, "examinations": 0}

#: A training that saves its checkpoint after each epoch, and is killed in the second one.
KILLED = """
import os, signal, sys
import plain_loops, torch
from lightning_audit import attach
folder, resumes = sys.argv[1], sys.argv[2] == "resumes"
training, file = plain_loops.made(), os.path.join(folder, "checkpoint.pt")
held = torch.load(file, weights_only=True) if resumes else {}
if resumes:
    training.model.load_state_dict(held["model"])
    training.engine.accountant.load_state_dict(held["accountant"])
torch.manual_seed(3 + resumes)
given = dict(claimed_epsilon=50.0, seed=1, examinations=0)
given["report_dir"] = os.path.join(folder, "audit")
with attach(*training.training, state=held.get("audit"), **given) as audit:
    for epoch in range(2):
        for step, batch in enumerate(training.loader):
            training.optimizer.zero_grad()
            plain_loops.loss_of(training, batch).backward()
            training.optimizer.step()
            if epoch and step == 10 and not resumes:
                os.kill(os.getpid(), signal.SIGKILL)
        held = {"model": training.model.state_dict(), "audit": audit.state_dict()}
        torch.save({**held, "accountant": training.engine.accountant.state_dict()}, file)
"""


def run_script(code: str, *told: object) -> "subprocess.CompletedProcess[bytes]":
    paths = os.pathsep.join(filter(None, sys.path))
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, *map(str, told)],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
    )


@pytest.mark.heavy
def test_a_loop_that_was_killed_goes_on_from_its_checkpoint_to_a_pass(tmp_path):
    assert run_script(KILLED, tmp_path, "begins").returncode == -signal.SIGKILL
    done = run_script(KILLED, tmp_path, "resumes")
    assert done.returncode == 0, done.stderr
    report = AuditReport.load(tmp_path / "audit" / "report.json")
    assert report.steps == 96  # an epoch before the checkpoint, and two since
    assert report.verdict.outcome == "PASS", report.verdict.pass_blockers


def full(*_: Any, **__: Any) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def without_audit() -> Made:
    torch.manual_seed(2)
    training = made()
    plain_loops.mnist_form(training)
    return training


def audited(folder: Path) -> tuple[Made, AuditReport]:
    torch.manual_seed(2)
    training = made()
    with attach(*training.training, **GIVEN, report_dir=folder) as audit:
        plain_loops.mnist_form(training)
    assert listeners() == []
    assert audit.report is not None
    return training, audit.report


@pytest.mark.parametrize(
    "what",
    ["results.audit_report.replacing", "record.store.ObservationStore._see_whether_it_is_there"],
    ids=["the report", "the record"],
)
def test_a_full_disk_ends_no_loop_and_the_report_says_so(tmp_path, monkeypatch, what):
    monkeypatch.setattr(f"lightning_audit.{what}", full)
    training, report = audited(tmp_path)
    monkeypatch.undo()
    assert report.steps == plain_loops.STEPS
    assert moved(training.model, without_audit().model) < 1e-6
    said = (*report.notes, *report.verdict.pass_blockers)
    assert any("No space left" in one for one in said), said


def test_a_directory_that_cannot_be_written_is_refused_before_the_first_step(tmp_path):
    (tmp_path / "file").write_text("")  # root writes to a read-only directory
    with pytest.raises(UnauditableTraining, match="give another directory as report_dir"):
        audited(tmp_path / "file" / "audit")
    assert listeners() == []


#: A training whose directory is another's, which is open meanwhile.
BESIDE = """
import sys
import plain_loops
from lightning_audit import attach
training = plain_loops.made()
given = dict(seed=1, examinations=0, report_dir=sys.argv[1])
with attach(*training.training, 50.0, **given) as audit:
    plain_loops.mnist_form(training, epochs=1)
"""


@pytest.mark.heavy
def test_two_processes_with_one_directory_have_a_report_each(tmp_path):
    training = made()
    with attach(*training.training, **GIVEN, report_dir=tmp_path) as audit:
        plain_loops.mnist_form(training, epochs=1)
        done = run_script(BESIDE, tmp_path)
        assert done.returncode == 0, done.stderr
        plain_loops.mnist_form(training, epochs=1)
    assert audit.report.steps == plain_loops.STEPS
    reports = [AuditReport.load(path) for path in tmp_path.rglob("report.json")]
    assert sorted(report.steps for report in reports) == [32, plain_loops.STEPS]


class Interrupted(Exception):
    """Raised by the user's own code."""


def broken_off(training: Made, *, at: int, passes: int) -> None:
    """Ghost clipping whose last backward pass fails in one step."""
    for number, (x, y) in enumerate(training.loader):
        calls = iter([*[False] * (passes - 1), number == at])

        def interrupts(_: torch.Tensor, calls: Any = calls) -> None:
            if next(calls):
                raise Interrupted

        training.optimizer.zero_grad()
        logits = training.model(x)
        logits.register_hook(interrupts)
        training.criterion(logits, y).backward()
        training.optimizer.step()


def test_ghost_clipping_that_breaks_off_between_its_passes_leaves_no_canary(tmp_path):
    def trained(folder: Path | None) -> Made:
        torch.manual_seed(2)
        training = made(grad_sample_mode="ghost", criterion=torch.nn.CrossEntropyLoss())
        torch.manual_seed(3)
        audit = attach(*training.training, **GIVEN, report_dir=folder) if folder else None
        with pytest.raises(Interrupted):
            broken_off(training, at=5, passes=2 if audit is None else 3)  # one for the canaries
        training.optimizer.zero_grad()  # as a notebook's next cell; Opacus can go no further
        if audit is not None:
            audit.close(Interrupted())
            assert audit.report.verdict.outcome == "INCONCLUSIVE"
            assert [getattr(p, "summed_grad", None) for p in training.optimizer.params] == [
                None
            ] * 6
        return training

    assert moved(trained(tmp_path).model, trained(None).model) < 1e-6


def interrupted(training: Made, *, at: int) -> None:
    """Batches in two parts by skip signals; one is left out after its first part."""
    for number, (x, y) in enumerate(training.loader):
        half = len(x) // 2
        for part, last in ((slice(half), False), (slice(half, None), True)):
            if number == at and last:
                break
            training.optimizer.signal_skip_step(do_skip=not last)
            training.optimizer.zero_grad()
            plain_loops.loss_of(training, (x[part], y[part])).backward()
            training.optimizer.step()
        else:
            continue
        training.optimizer._step_skip_queue.clear()
        training.optimizer.zero_grad()
        for p in training.optimizer.params:
            p.summed_grad = None


def test_an_interrupt_among_skip_signals_leaves_no_canary(tmp_path):
    def trained(folder: Path | None) -> Made:
        torch.manual_seed(2)
        training = made(dtype=torch.float64)
        torch.manual_seed(3)
        if folder is None:
            interrupted(training, at=5)
            return training
        with attach(*training.training, **GIVEN, report_dir=folder) as audit:
            interrupted(training, at=5)
        assert audit.report.verdict.outcome != "VIOLATION", audit.report.verdict
        return training

    assert moved(trained(tmp_path).model, trained(None).model) < 1e-6
