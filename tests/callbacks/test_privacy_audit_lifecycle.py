"""When the audit attaches, writes, stops, raises and lets go."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from places import SUPPORT
from training_support import (
    PrivateModule,
    assert_no_hooks_left,
    fit,
    report_in,
    trainer_for,
)

from lightning_audit import AuditReport, PrivacyAudit
from lightning_audit.checks.monitor import replay
from lightning_audit.checks.noise_channel import FROM_MEMORY
from lightning_audit.record.store import read_observations
from lightning_audit.testing.faulty_clipping import ClosureRunsAgain
from lightning_audit.testing.faulty_noise import HalfNoise, NoNoise

# ------------------------------------------------------------------ the verdict


# ------------------------------------------------------------------ trials and sanity checks


@pytest.mark.parametrize("kind", [None, ClosureRunsAgain, NoNoise])
@pytest.mark.parametrize("trial", [True, 20])
def test_fast_dev_run_writes_nothing_and_never_fails(
    tmp_path: Path, kind: Any, trial: bool | int
) -> None:
    audit = PrivacyAudit(on_inconclusive="raise", seed=1)
    module = PrivateModule(optimizer_class=kind)
    trainer_for(tmp_path, audit, fast_dev_run=trial, max_steps=-1).fit(module)
    assert list(tmp_path.iterdir()) == []
    assert audit.report.steps == int(trial)
    assert_no_hooks_left(module)


def test_fast_dev_run_leaves_an_earlier_report_where_it_is(tmp_path: Path) -> None:
    fit(tmp_path, PrivateModule(), PrivacyAudit(seed=1), max_steps=8)
    before = (tmp_path / "audit" / "report.json").read_bytes()
    trainer = trainer_for(tmp_path, PrivacyAudit(seed=2), fast_dev_run=True, max_steps=-1)
    trainer.fit(PrivateModule())
    assert (tmp_path / "audit" / "report.json").read_bytes() == before
    assert not (tmp_path / "audit" / "previous-1").exists()


def test_sanity_checking_and_validation_are_no_steps(tmp_path: Path) -> None:
    class Validated(PrivateModule):
        validated = 0

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.validated += 1
            self.log("val_loss", PrivateModule.training_step(self, batch, batch_idx))

        def val_dataloader(self) -> Any:
            return self.plain_loader()

    module = Validated()
    report = fit(
        tmp_path,
        module,
        PrivacyAudit(seed=1),
        max_epochs=2,
        num_sanity_val_steps=2,
        limit_val_batches=3,
    )
    assert module.validated == 2 + 3 + 3
    assert report.steps == 64
    assert len(report.epochs) == 2


def test_validate_and_test_are_not_audited(tmp_path: Path) -> None:
    class Tested(PrivateModule):
        def test_step(self, batch: Any, batch_idx: int) -> None:
            self.log("loss", PrivateModule.training_step(self, batch, batch_idx))

        def test_dataloader(self) -> Any:
            return self.plain_loader()

    audit = PrivacyAudit()
    trainer_for(tmp_path, audit, max_steps=1).test(Tested(), verbose=False)
    assert audit.report is None
    assert not (tmp_path / "audit").exists()


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


@pytest.mark.parametrize("step", [0, 10, 40])
def test_users_exception_comes_through_and_the_record_is_readable(
    tmp_path: Path, step: int
) -> None:
    error = RuntimeError("the user's own")
    module, audit = Failing(step, error), PrivacyAudit(on_inconclusive="raise", seed=1)
    with pytest.raises(RuntimeError) as raised:
        trainer_for(tmp_path, audit, max_steps=64).fit(module)
    assert raised.value is error
    assert_no_hooks_left(module)
    report = report_in(tmp_path)
    assert report.verdict.outcome == "INCONCLUSIVE"
    assert not report.complete
    assert any("broke off with RuntimeError" in lack for lack in report.verdict.missing)
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


def test_interrupted_training_is_inconclusive(tmp_path: Path) -> None:
    module = Failing(40, KeyboardInterrupt())
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        trainer_for(tmp_path, PrivacyAudit(seed=1), max_steps=64).fit(module)
    report = report_in(tmp_path)
    assert report.verdict.outcome == "INCONCLUSIVE"
    assert not report.complete
    assert report.steps == 40
    assert_no_hooks_left(module)


def test_failure_in_the_optimizers_step_leaves_no_hook(tmp_path: Path) -> None:
    class Breaking(HalfNoise):
        def add_noise(self) -> None:
            raise RuntimeError("no noise today")

    module = PrivateModule(optimizer_class=Breaking)
    with pytest.raises(RuntimeError, match="no noise today"):
        trainer_for(tmp_path, PrivacyAudit(seed=1), max_steps=8).fit(module)
    assert_no_hooks_left(module)
    assert report_in(tmp_path).steps == 0


_KILLED = """
import sys
import warnings
warnings.simplefilter("ignore")
sys.path.insert(0, {support!r})
import torch
from pathlib import Path
from training_support import PrivateModule, trainer_for
from lightning_audit import PrivacyAudit
torch.set_num_threads(1)
trainer_for(Path({directory!r}), PrivacyAudit(seed=1), max_steps=100_000).fit(PrivateModule())
"""


@pytest.mark.heavy
def test_killed_training_leaves_a_readable_record_and_no_pass(tmp_path: Path) -> None:
    script = _KILLED.format(support=str(SUPPORT), directory=str(tmp_path))
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    report = tmp_path / "audit" / "report.json"
    try:
        deadline = time.monotonic() + 120
        while not report.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.3)
        assert process.poll() is None
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    header, entries = read_observations(tmp_path / "audit" / "observations.bin")
    assert len(header.canaries) == 8
    assert len(entries) >= 32
    assert np.array_equal(entries["step"], np.arange(len(entries)))
    found = AuditReport.load(report)
    assert found.verdict.outcome != "PASS"
    assert not found.complete
    assert found.steps <= len(entries)


# ------------------------------------------------------------------ again and again


def test_report_goes_where_it_is_told(tmp_path: Path) -> None:
    audit = PrivacyAudit(report_dir=tmp_path / "elsewhere" / "deep", seed=1)
    trainer_for(tmp_path / "root", audit, max_steps=4).fit(PrivateModule())
    assert (tmp_path / "elsewhere" / "deep" / "report.json").exists()
    assert (tmp_path / "elsewhere" / "deep" / "observations.bin").exists()
    assert not (tmp_path / "root" / "audit").exists()


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
