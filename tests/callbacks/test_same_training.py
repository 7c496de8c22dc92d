"""`trainer.fit` again: the same training goes on with its audit, another one starts anew."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from hand_written_support import CLAIM, HandWritten
from resume_support import RESUMING, StepwiseModule, StopAt, checkpoint_at, saver
from training_support import PrivateModule, assert_no_hooks_left, report_in, trainer_for

from lightning_audit import AuditReport, PrivacyAudit, PrivacyViolation
from lightning_audit.canaries import Dirac
from lightning_audit.record.store import RECORD_NAME, read_observations
from lightning_audit.testing.faulty import HalfNoise

pytestmark = RESUMING


def steps_on_disk(directory: Path) -> list[int]:
    return read_observations(directory / "audit" / RECORD_NAME)[1]["step"].tolist()


def as_on_disk(report: AuditReport) -> AuditReport:
    return AuditReport.from_json(report.to_json())


def report_file(directory: Path) -> bytes:
    return (directory / "audit" / "report.json").read_bytes()


# ------------------------------------------------------------------ more epochs


@pytest.mark.heavy
@pytest.mark.parametrize("kind", [StepwiseModule, HandWritten])
def test_more_epochs_go_on_with_the_audit_that_the_callback_holds(
    tmp_path: Path, kind: type[pl.LightningModule]
) -> None:
    claim = CLAIM if kind is HandWritten else None
    audit, module = PrivacyAudit(seed=1, claim=claim), kind()
    trainer = trainer_for(tmp_path, audit, max_epochs=1, limit_train_batches=32)
    trainer.fit(module)
    trainer.fit_loop.max_epochs = 3
    trainer.fit(module)
    report = report_in(tmp_path)
    assert (report.steps, report.verdict.outcome) == (96, "PASS")
    assert steps_on_disk(tmp_path) == list(range(96))
    assert not any("without this audit's state" in lack for lack in report.verdict.pass_blockers)
    assert [row["epoch"] for row in report.epochs] == [0, 1, 2]
    assert not (tmp_path / "audit" / "previous-1").exists()
    assert as_on_disk(audit.report) == report
    assert_no_hooks_left(module)


@pytest.mark.heavy
@pytest.mark.whole_report
def test_more_epochs_give_the_report_of_one_long_training(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    # Each fit is examined anew, at other steps: `test_a_resumed_training_is_examined_anew`.
    audits = [PrivacyAudit(seed=1, examinations=0) for _ in (whole, parts)]
    trainer_for(whole, audits[0], max_epochs=3).fit(StepwiseModule())
    module = StepwiseModule()
    trainer = trainer_for(parts, audits[1], max_epochs=1)
    trainer.fit(module)
    for epochs in (2, 3):
        trainer.fit_loop.max_epochs = epochs
        trainer.fit(module)
    one, other = report_in(whole), report_in(parts)
    evidence = [{c.name: c.log_e_value for c in report.checks} for report in (one, other)]
    evidence[1].pop("reuse.resume", None)
    assert evidence[0] == evidence[1]
    assert one.bounds == other.bounds
    assert one.verdict == other.verdict


def test_a_violation_of_the_first_fit_stands_in_the_second(tmp_path: Path) -> None:
    module = StepwiseModule(optimizer_class=HalfNoise)
    audit = PrivacyAudit(seed=1)
    trainer = trainer_for(tmp_path, audit, max_epochs=1)
    with pytest.raises(PrivacyViolation):
        trainer.fit(module)
    trainer.fit_loop.max_epochs = 2
    module.optimizer_class = None  # the noise is mended, and what it released is out
    with pytest.raises(PrivacyViolation):
        trainer.fit(module)
    assert 1 <= report_in(tmp_path).steps < 20


def test_a_fit_that_broke_off_goes_on_in_the_next(tmp_path: Path) -> None:
    stop, module = StopAt(20), StepwiseModule()
    trainer = trainer_for(tmp_path, PrivacyAudit(seed=1), stop, max_epochs=2)
    with pytest.raises(RuntimeError, match="power cut"):
        trainer.fit(module)
    stop.step = -1
    trainer.fit(module)
    report = report_in(tmp_path)
    assert report.complete
    assert report.steps == trainer.global_step
    assert steps_on_disk(tmp_path) == list(range(report.steps))
    assert report.verdict.outcome == "PASS"


# ------------------------------------------------------------------ nothing left


@pytest.mark.parametrize("kind", [None, HalfNoise])
def test_with_nothing_left_to_train_the_report_stays_what_it_was(tmp_path: Path, kind: Any) -> None:
    audit = PrivacyAudit(seed=1, on_violation="warn")
    module = StepwiseModule(optimizer_class=kind)
    trainer = trainer_for(tmp_path, audit, max_epochs=2)
    trainer.fit(module)
    before, report = report_file(tmp_path), audit.report
    for _ in range(2):
        trainer.fit(module)
        assert report_file(tmp_path) == before
        assert audit.report == report
    assert steps_on_disk(tmp_path) == list(range(report.steps))
    assert not (tmp_path / "audit" / "previous-1").exists()
    assert_no_hooks_left(module)


def test_a_violation_is_raised_again_where_nothing_is_left_to_train(tmp_path: Path) -> None:
    module = StepwiseModule(optimizer_class=HalfNoise)
    trainer = trainer_for(tmp_path, PrivacyAudit(seed=1), max_steps=1)
    for _ in range(2):
        with pytest.raises(PrivacyViolation):
            trainer.fit(module)
    assert report_in(tmp_path).steps == 1


def test_a_training_that_was_stopped_is_not_trained_on(tmp_path: Path) -> None:
    module = StepwiseModule(optimizer_class=HalfNoise)
    trainer = trainer_for(tmp_path, PrivacyAudit(seed=1), max_epochs=1)
    for _ in range(2):
        with pytest.raises(PrivacyViolation):
            trainer.fit(module)
    assert report_in(tmp_path).steps < 20


@pytest.mark.heavy
def test_a_finished_checkpoint_loaded_anew_has_the_report_that_it_had(tmp_path: Path) -> None:
    module = StepwiseModule()
    trainer = trainer_for(tmp_path, PrivacyAudit(seed=1), max_epochs=2)
    trainer.fit(module)
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    first = report_in(tmp_path)
    audit = PrivacyAudit(seed=1)
    trainer_for(tmp_path, audit, max_epochs=2).fit(
        StepwiseModule(), ckpt_path=tmp_path / "last.ckpt", weights_only=True
    )
    again = report_in(tmp_path)
    assert (again.steps, again.verdict) == (first.steps, first.verdict)
    assert again.epsilon_spent == first.epsilon_spent
    # Only a training that was resumed has a check of noise that starts again.
    assert {c.name: c.log_e_value for c in again.checks if c.name != "reuse.resume"} == {
        c.name: c.log_e_value for c in first.checks
    }
    assert steps_on_disk(tmp_path) == list(range(64))
    assert as_on_disk(audit.report) == again


# ------------------------------------------------------------------ checkpoints, in one process


@pytest.mark.heavy
def test_a_checkpoint_of_the_same_process_goes_on_from_where_it_was_saved(tmp_path: Path) -> None:
    saved, module = tmp_path / "saved", StepwiseModule()
    trainer = trainer_for(
        tmp_path,
        PrivacyAudit(seed=1),
        saver(saved, epoch_end=True),
        max_epochs=2,
        enable_checkpointing=True,
    )
    trainer.fit(module)
    trainer.fit_loop.max_epochs = 3
    torch.manual_seed(11)  # the module's own seed of step 63 would draw that step's batch twice
    trainer.fit(module, ckpt_path=checkpoint_at(saved, 32), weights_only=True)
    report = report_in(tmp_path)
    assert (report.steps, report.verdict.outcome) == (96, "PASS")
    assert steps_on_disk(tmp_path) == list(range(96))


def test_a_checkpoint_without_the_audit_is_not_gone_on_with_from_memory(tmp_path: Path) -> None:
    plain, module = trainer_for(tmp_path / "plain", max_epochs=2), StepwiseModule()
    plain.fit(module)
    plain.save_checkpoint(tmp_path / "plain.ckpt")
    module = StepwiseModule()
    trainer = trainer_for(tmp_path, PrivacyAudit(seed=1), max_epochs=2)
    trainer.fit(module)
    trainer.fit_loop.max_epochs = 3
    trainer.fit(module, ckpt_path=tmp_path / "plain.ckpt", weights_only=True)
    verdict = report_in(tmp_path).verdict
    assert verdict.outcome == "INCONCLUSIVE"
    assert "without this audit's state" in verdict.pass_blockers[0]


# ------------------------------------------------------------------ another training


def test_a_new_trainer_starts_anew(tmp_path: Path) -> None:
    audit = PrivacyAudit(seed=1)
    trainer_for(tmp_path, audit, max_epochs=1).fit(StepwiseModule())
    trainer_for(tmp_path, audit, max_steps=8).fit(StepwiseModule())
    assert report_in(tmp_path).steps == 8
    assert AuditReport.load(tmp_path / "audit" / "previous-1" / "report.json").steps == 32


def test_a_loop_that_starts_again_starts_the_audit_anew(tmp_path: Path) -> None:
    audit, module = PrivacyAudit(seed=1), StepwiseModule()
    trainer = trainer_for(tmp_path, audit, max_epochs=1)
    trainer.fit(module)
    trainer.fit_loop = type(trainer.fit_loop)(trainer, max_epochs=1)
    trainer.fit(module)
    assert report_in(tmp_path).steps == 32
    assert AuditReport.load(tmp_path / "audit" / "previous-1" / "report.json").steps == 32


def test_another_module_in_the_same_trainer_is_not_passed_by_the_first_ones_steps(
    tmp_path: Path,
) -> None:
    trainer = trainer_for(tmp_path, PrivacyAudit(seed=1), max_epochs=2)
    trainer.fit(StepwiseModule())
    trainer.fit_loop.max_epochs = 4
    trainer.fit(StepwiseModule())
    report = report_in(tmp_path)
    assert report.steps == 64
    assert report.verdict.outcome == "INCONCLUSIVE"


# ------------------------------------------------------------------ copies


def copies(audit: PrivacyAudit) -> list[PrivacyAudit]:
    return [copy.deepcopy(audit), pickle.loads(pickle.dumps(audit)), copy.copy(audit)]


@pytest.mark.heavy
def test_a_callback_that_has_fitted_can_be_copied_with_its_report(tmp_path: Path) -> None:
    audit = PrivacyAudit(seed=1)
    trainer_for(tmp_path, audit, max_epochs=2).fit(PrivateModule())
    for twin in copies(audit):
        assert twin.report == audit.report
        assert twin.report.steps == 64
        trainer_for(tmp_path / "twin", twin, max_steps=8).fit(PrivateModule())
        assert report_in(tmp_path / "twin").steps == 8
    assert audit.report.steps == 64


def test_a_callback_that_raised_or_failed_can_be_copied_with_its_report(tmp_path: Path) -> None:
    found = PrivacyAudit(seed=1)
    with pytest.raises(PrivacyViolation) as raised:
        trainer_for(tmp_path / "a", found, max_epochs=1).fit(
            PrivateModule(optimizer_class=HalfNoise)
        )
    broken = PrivacyAudit(seed=1)
    with pytest.raises(RuntimeError, match="power cut"):
        trainer_for(tmp_path / "b", broken, StopAt(5), max_epochs=1).fit(PrivateModule())
    refused = PrivacyAudit(canaries=[Dirac(tensor="nowhere")])
    with pytest.raises(ValueError, match="nowhere"):
        trainer_for(tmp_path / "c", refused, max_epochs=1).fit(PrivateModule())
    for audit in (found, broken, refused):
        assert {repr(twin.report) for twin in copies(audit)} == {repr(audit.report)}
    error = pickle.loads(pickle.dumps(raised.value))
    assert repr(error.report) == repr(found.report)


@pytest.mark.heavy
def test_a_callback_that_has_fitted_goes_into_a_spawned_process(tmp_path: Path) -> None:
    audit = PrivacyAudit(seed=1, claim=CLAIM)
    trainer_for(tmp_path, audit, max_steps=8).fit(HandWritten())
    spawn = {"strategy": "ddp_spawn", "use_distributed_sampler": False}
    trainer_for(tmp_path, audit, max_steps=12, **spawn).fit(HandWritten())
    assert report_in(tmp_path).steps == 12


def test_a_callback_can_be_copied_in_the_middle_of_its_training(tmp_path: Path) -> None:
    class Copies(pl.Callback):
        taken: list[PrivacyAudit]

        def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
            self.taken = copies(audit)

    audit, watcher = PrivacyAudit(seed=1), Copies()
    trainer_for(tmp_path, audit, watcher, max_epochs=3, limit_train_batches=32).fit(PrivateModule())
    assert [twin.report.steps for twin in watcher.taken] in ([96] * 3, [64] * 3)
    assert audit.report.verdict.outcome == "PASS"
    assert steps_on_disk(tmp_path) == list(range(96))
