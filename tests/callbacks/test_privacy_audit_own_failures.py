"""The audit's own exceptions end no training and give no pass; the user's pass untouched."""

import errno
import logging
import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from injected_faults import (
    PASSING,
    TRAININGS,
    Faults,
    Injected,
    Kept,
    hooks_left,
    train,
    try_one,
)
from pytorch_lightning.callbacks import ModelCheckpoint
from stages import staged
from trained import Forwarding, failing
from training_support import PrivateModule, fit, report_in, trainer_for

from lightning_audit import InconclusiveAudit, PrivacyAudit
from lightning_audit.canaries import Mislabeled
from lightning_audit.hooks.boundary import Boundary
from lightning_audit.testing.faulty import HalfNoise

#: Functions of each way in which a step is audited, with the training that calls them.
PLACES = [
    ("prefilled", "write_all"),
    ("prefilled", "swap_rows"),
    ("copied", "exchange"),
    ("ghost", "_look_at"),
    ("ghost", "count_batch"),
    ("ghost", "batch_size"),
    ("by hand", "write_all"),
    ("input", "_own_direction"),
    ("split", "_put_in_part"),
    ("prefilled", "divisor_at_cut"),
    ("by hand", "_observe"),
    ("prefilled", "put_back"),
    ("prefilled", "_arrays"),
    ("prefilled", "_flat"),
]
#: Numbers of faults at random calls of each training: two hundred together, and a few of each.
FEW, MANY = ([(name, number) for name in TRAININGS] for number in (3, 29))


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """Trainings without an audit, by name."""
    return cache(lambda name: train(tmp_path_factory.mktemp("plain"), name))


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("name", "function"), PLACES)
def test_a_fault_leaves_the_training_as_it_is_without_an_audit(
    tmp_path, plain, caplog, name, function
):
    assert try_one(tmp_path, name, plain(name), Faults(named=function), caplog) == []


def at_random(
    directory: Path, plain: Any, caplog: pytest.LogCaptureFixture, name: str, number: int
) -> list[str]:
    """What is not as it must be after faults at random calls, with the call."""
    counting, rng = Faults(), random.Random(number)
    whole = train(directory / "whole", name, counting)
    assert torch.allclose(whole.weights, plain(name).weights, rtol=0.0, atol=1e-6)
    assert (whole.report.verdict.outcome == "PASS") == (name in PASSING)
    found = []
    for run in range(number):
        # While a checkpoint is loaded, a KeyError says that its state does not fit: a refusal.
        kind = rng.choice([Injected, MemoryError, KeyError][: 2 if name == "resumed" else 3])
        faults = Faults(counting.choose(rng), kind)
        wrong = try_one(directory / str(run), name, plain(name), faults, caplog)
        found += [f"{faults.place} at call {faults.at}: {item}" for item in wrong]
    return found


@pytest.mark.parametrize(("name", "number"), staged(heavy=FEW, nightly=MANY))
@pytest.mark.heavy_one_in(6)
def test_faults_at_random_calls_end_no_training(tmp_path, plain, caplog, name, number):
    assert at_random(tmp_path, plain, caplog, name, number) == []


# ------------------------------------------------------------------ the report


@pytest.mark.parametrize("error", [OSError(errno.EMFILE, "too many open files")], ids=repr)
def test_a_report_that_cannot_be_built_gives_no_pass(audited, monkeypatch, error):
    monkeypatch.setattr("lightning_audit.run.audit_run.build_report", failing(error))
    report = audited(PrivateModule())
    assert report.verdict.outcome == "INCONCLUSIVE"
    assert report.verdict.summary.startswith(f"the audit failed: {type(error).__name__} in run.")
    assert str(error) not in report.to_json()


def test_a_violation_that_was_found_before_stays_one(accused, monkeypatch):
    monkeypatch.setattr("lightning_audit.session.recorder.Recorder.close", failing(MemoryError()))
    report = accused(PrivateModule(optimizer_class=HalfNoise), steps=32)
    assert "noise scale too small" in report.verdict.fault
    assert any(note.startswith("the audit failed: MemoryError") for note in report.notes)


def test_on_inconclusive_holds_for_a_failed_audit(tmp_path, monkeypatch):
    monkeypatch.setattr("lightning_audit.run.audit_run.AuditRun.start", failing(MemoryError()))
    audit = PrivacyAudit(seed=1, on_inconclusive="raise")
    with pytest.raises(InconclusiveAudit, match="the audit failed: MemoryError"):
        trainer_for(tmp_path, audit, max_steps=4).fit(PrivateModule())
    monkeypatch.undo()
    assert fit(tmp_path, PrivateModule(), audit, max_steps=64).verdict.outcome == "PASS"


def test_a_failed_set_up_is_reported_too(audited, monkeypatch):
    monkeypatch.setattr("lightning_audit.run.audit_run.RunLints", failing(MemoryError()))
    verdict = audited(PrivateModule(), steps=4).verdict
    assert verdict.summary.startswith("the audit failed: MemoryError in run.audit_run")


@pytest.mark.parametrize(
    ("view", "words"),
    [
        ("print_summary", "printing the report failed"),
        ("send_report_figure", "drawing the report's figure"),
    ],
)
def test_a_view_that_fails_leaves_the_verdict_and_adds_a_note(audited, monkeypatch, view, words):
    monkeypatch.setattr(f"lightning_audit.run.outcome.{view}", failing(RuntimeError("0.123")))
    report = audited(PrivateModule())
    assert report.verdict.outcome == "PASS"
    assert any(words in note for note in report.notes)
    assert "0.123" not in "".join(report.notes)


CONCEAL = "lightning_audit.session.step.AuditSession.conceal"


def test_neither_log_nor_report_holds_an_exceptions_message(audited, monkeypatch, caplog):
    monkeypatch.setattr(CONCEAL, failing(ValueError("the third record is 0.123")))
    with caplog.at_level(logging.INFO):
        report = audited(PrivateModule(), steps=4)
    assert "the audit failed (ValueError in " in caplog.text
    assert "0.123" not in caplog.text + report.to_json()


def test_a_checkpoint_of_a_failed_audit_resumes_without_a_pass(tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(CONCEAL, failing(MemoryError()))
        trainer = trainer_for(tmp_path, PrivacyAudit(seed=1), max_epochs=1)
        trainer.fit(Kept())
        trainer.save_checkpoint(tmp_path / "x.ckpt")
    trainer_for(tmp_path, PrivacyAudit(seed=1), max_epochs=3).fit(
        Kept(), ckpt_path=tmp_path / "x.ckpt", weights_only=True
    )
    assert report_in(tmp_path).verdict.outcome == "INCONCLUSIVE"


# ------------------------------------------------------------------ the user's own


class Theirs(Exception):
    """An exception of the user's code."""


class InTrainingStep(Forwarding):
    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        if batch_idx == 3:
            raise self.error
        return super().training_step(batch, batch_idx)


class InAddNoise(PrivateModule):
    def configure_optimizers(self) -> Any:
        self.optimizer_class = type("Fails", (HalfNoise,), {"add_noise": failing(self.error)})
        return super().configure_optimizers()


class InInnerStep(PrivateModule):
    def configure_optimizers(self) -> Any:
        kind = type("Fails", (torch.optim.SGD,), {"step": failing(self.error)})
        self.inner = lambda params: kind(params, lr=0.1)
        return super().configure_optimizers()


@pytest.mark.parametrize(
    ("kind", "of"),
    [
        *((kind, Theirs) for kind in (InTrainingStep, InAddNoise, InInnerStep)),
        (InTrainingStep, MemoryError),
    ],
)
def test_the_users_exception_reaches_the_user_as_the_same_object(tmp_path, kind, of):
    module = kind()
    module.error = error = of("theirs")
    canaries = [Mislabeled(amplitude=100.0)] if kind is InTrainingStep else None
    with pytest.raises(of, match="theirs") as raised:
        trainer_for(tmp_path, PrivacyAudit(seed=1, canaries=canaries), max_steps=8).fit(module)
    assert raised.value is error
    assert hooks_left(module) == []
    assert report_in(tmp_path).verdict.pass_blockers[0].startswith("the training broke off")


def test_an_interrupt_in_the_audits_code_passes_with_the_canaries_out(tmp_path, monkeypatch):
    module, leave = PrivateModule(mode="functorch"), Boundary.leave
    sizes: list[set[int]] = []

    def leave_and_look(*args: Any) -> None:
        leave(*args)
        sizes.append({len(p.grad_sample) for p in module.parameters()})

    count = "lightning_audit.session.planner.StepPlanner.count_batch"
    monkeypatch.setattr(count, failing(SystemExit(3)))
    monkeypatch.setattr(Boundary, "leave", leave_and_look)
    with pytest.raises(SystemExit):
        trainer_for(tmp_path, PrivacyAudit(seed=1), max_steps=4).fit(module)
    assert len(sizes[0]) == 1
    assert hooks_left(module) == []


@pytest.mark.parametrize("function", ["start_batch", "end_epoch"])
def test_callbacks_that_monitor_the_audit_go_on_when_it_fails(tmp_path, function):
    logger, audit = pl.loggers.CSVLogger(tmp_path), PrivacyAudit(seed=1, examinations=0)
    stopping = pl.callbacks.EarlyStopping("audit/epsilon_lower", mode="max", patience=9)
    best = ModelCheckpoint(tmp_path / "best", monitor="audit/epsilon_spent", mode="max")
    callbacks, saves = (stopping, audit, best), {"enable_checkpointing": True}
    trainer = trainer_for(tmp_path, *callbacks, max_epochs=3, logger=logger, **saves)
    with Faults(named=function):
        trainer.fit(PrivateModule())
    assert trainer.current_epoch == 3
    assert audit.report.verdict.outcome == "INCONCLUSIVE"
    metrics = Path(logger.log_dir) / "metrics.csv"
    assert not metrics.exists() or "audit/" not in metrics.read_text()
