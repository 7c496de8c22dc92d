"""When the audit attaches, writes, stops, raises and lets go."""

from __future__ import annotations

import copy
import pickle
import traceback
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from training_support import (
    PrivateModule,
    assert_no_hooks_left,
    fit,
    report_in,
    trainer_for,
)

from lightning_audit import AuditReport, PrivacyAudit, PrivacyViolation
from lightning_audit.checks.monitor import replay
from lightning_audit.checks.noise_channel import FROM_MEMORY
from lightning_audit.record.store import read_observations
from lightning_audit.testing.faulty_noise import HalfNoise


class _Hooks(pl.Callback):
    """The order of the last hooks."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.seen.append("epoch_end")

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.seen.append("train_end")

    def on_fit_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.seen.append("fit_end")


# ------------------------------------------------------------------ the verdict


def test_violation_stops_at_the_epochs_end_and_is_raised_in_on_fit_end(tmp_path: Path) -> None:
    hooks = _Hooks()
    trainer = trainer_for(tmp_path, hooks, PrivacyAudit(seed=1), max_epochs=5)
    module = PrivateModule(optimizer_class=HalfNoise)
    with pytest.raises(PrivacyViolation) as raised:
        trainer.fit(module)
    names = [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)]
    assert names[-2:] == ["on_fit_end", "raise_outcome"]
    assert hooks.seen == ["epoch_end", "train_end", "fit_end"]
    assert trainer.global_step == 32
    assert raised.value.report.complete
    assert_no_hooks_left(module)


def test_violation_in_the_middle_of_an_epoch_is_found_at_max_steps(tmp_path: Path) -> None:
    trainer = trainer_for(tmp_path, PrivacyAudit(seed=1), max_steps=20)
    with pytest.raises(PrivacyViolation):
        trainer.fit(PrivateModule(optimizer_class=HalfNoise))
    assert report_in(tmp_path).steps == 20


# ------------------------------------------------------------------ trainings that break off


class Failing(PrivateModule):
    """Fails at one step."""

    def __init__(self, step: int, error: BaseException) -> None:
        super().__init__()
        self.step, self.error = step, error

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        if self.trainer.global_step == self.step:
            raise self.error
        return super().training_step(batch, batch_idx)


@pytest.mark.parametrize(("step", "kind"), [(0, RuntimeError), (40, KeyboardInterrupt)])
def test_users_exception_comes_through_and_the_record_is_readable(
    tmp_path: Path, step: int, kind: type[BaseException]
) -> None:
    error = kind("the user's own")
    module, audit = Failing(step, error), PrivacyAudit(on_inconclusive="raise", seed=1)
    with pytest.raises((kind, SystemExit)) as raised:  # Lightning ends the process on Ctrl+C
        trainer_for(tmp_path, audit, max_steps=64).fit(module)
    assert error in (raised.value, raised.value.__context__)
    assert_no_hooks_left(module)
    report = report_in(tmp_path)
    assert report.verdict.outcome == "INCONCLUSIVE"
    assert not report.complete
    assert any(f"broke off with {kind.__name__}" in lack for lack in report.verdict.missing)
    assert report.steps == step
    _, entries = read_observations(tmp_path / "audit" / "observations.bin")
    assert len(entries) == step


def test_violation_seen_before_the_training_broke_off_is_reported(tmp_path: Path) -> None:
    class Faulty(Failing):
        def configure_optimizers(self) -> Any:
            self.optimizer_class = HalfNoise
            return super().configure_optimizers()

    error = RuntimeError("the user's own")
    with pytest.raises(RuntimeError) as raised:
        trainer_for(tmp_path, PrivacyAudit(seed=1), max_steps=64).fit(Faulty(20, error))
    assert raised.value is error
    report = report_in(tmp_path)
    assert report.verdict.outcome == "VIOLATION"
    assert not report.complete


def test_failure_in_the_optimizers_step_leaves_no_hook(tmp_path: Path) -> None:
    class Breaking(HalfNoise):
        def add_noise(self) -> None:
            raise RuntimeError("no noise today")

    module = PrivateModule(optimizer_class=Breaking)
    with pytest.raises(RuntimeError, match="no noise today"):
        trainer_for(tmp_path, PrivacyAudit(seed=1), max_steps=8).fit(module)
    assert_no_hooks_left(module)
    assert report_in(tmp_path).steps == 0


# ------------------------------------------------------------------ again and again


@pytest.mark.heavy
def test_second_fit_with_one_callback_starts_anew_and_keeps_the_first_report(
    tmp_path: Path,
) -> None:
    audit = PrivacyAudit(seed=1)
    first = fit(tmp_path, PrivateModule(), audit, max_steps=64)
    record = (tmp_path / "audit" / "observations.bin").read_bytes()
    second = fit(tmp_path, PrivateModule(), audit, max_steps=40)
    assert (first.steps, second.steps) == (64, 40)
    assert (first.verdict.outcome, second.verdict.outcome) == ("PASS", "PASS")
    assert len(second.epochs) == 2
    earlier = tmp_path / "audit" / "previous-1"
    assert AuditReport.load(earlier / "report.json") == first
    assert (earlier / "observations.bin").read_bytes() == record
    fit(tmp_path, PrivateModule(), audit, max_steps=4)
    assert AuditReport.load(tmp_path / "audit" / "previous-2" / "report.json") == second


def test_sound_fit_after_a_violated_one_passes(tmp_path: Path) -> None:
    audit = PrivacyAudit(seed=1)
    with pytest.raises(PrivacyViolation):
        trainer_for(tmp_path, audit, max_steps=32).fit(PrivateModule(optimizer_class=HalfNoise))
    assert fit(tmp_path, PrivateModule(), audit, max_steps=64).verdict.outcome == "PASS"


def test_refused_training_leaves_no_report_of_an_earlier_one(tmp_path: Path) -> None:
    fit(tmp_path, PrivateModule(), PrivacyAudit(seed=1), max_steps=8)
    error = ValueError("no optimizer today")

    class Broken(PrivateModule):
        def configure_optimizers(self) -> Any:
            raise error

    with pytest.raises(ValueError, match="no optimizer today"):
        trainer_for(tmp_path, PrivacyAudit(seed=1), max_steps=8).fit(Broken())
    assert not (tmp_path / "audit" / "report.json").exists()
    assert (tmp_path / "audit" / "previous-1" / "report.json").exists()


def test_report_goes_where_it_is_told(tmp_path: Path) -> None:
    audit = PrivacyAudit(report_dir=tmp_path / "elsewhere" / "deep", seed=1)
    trainer_for(tmp_path / "root", audit, max_steps=4).fit(PrivateModule())
    assert (tmp_path / "elsewhere" / "deep" / "report.json").exists()
    assert (tmp_path / "elsewhere" / "deep" / "observations.bin").exists()
    assert not (tmp_path / "root" / "audit").exists()


@pytest.mark.parametrize("copy", [copy.deepcopy, lambda audit: pickle.loads(pickle.dumps(audit))])
def test_copy_of_the_callback_audits_as_the_callback_does(tmp_path: Path, copy: Any) -> None:
    audit = copy(PrivacyAudit(seed=1, allow=["noise.mean"]))
    report = fit(tmp_path, PrivateModule(), audit, max_steps=32)
    assert report.verdict.outcome == "PASS"
    assert report.settings["seed"] == 1
    assert copy(audit.report) == audit.report


# ------------------------------------------------------------------ the record


@pytest.mark.parametrize("kind", [None, HalfNoise])
def test_replayed_record_gives_the_reports_e_values(tmp_path: Path, kind: Any) -> None:
    audit = PrivacyAudit(on_violation="warn", seed=1)
    report = fit(tmp_path, PrivateModule(optimizer_class=kind), audit, max_steps=64)
    header, entries = read_observations(tmp_path / "audit" / "observations.bin")
    monitor = replay(header, entries, report.settings["significance"])
    again = {check.name: check for check in monitor.results()}
    tests = [check for check in report.checks if check.log_e_value is not None]
    memory = {*FROM_MEMORY, "gradient_replaced"}
    of_record = [check for check in tests if check.name not in memory]
    assert len(of_record) >= 7
    assert len(tests) - len(of_record) == len(memory)
    for check in of_record:
        assert again[check.name].log_e_value == check.log_e_value
        assert again[check.name].status == check.status
    assert monitor.history == report.history
    assert monitor.steps == report.steps
