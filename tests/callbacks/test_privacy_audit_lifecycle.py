"""When the audit attaches, writes, stops, raises and lets go."""

from __future__ import annotations

from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest
import torch
from training_support import (
    PrivateModule,
    assert_no_hooks_left,
    fit,
    report_in,
    trainer_for,
)

from lightning_audit import PrivacyAudit
from lightning_audit.checks.check import REGISTRY
from lightning_audit.checks.monitor import NoiseChannelChecks, replay
from lightning_audit.record.store import read_observations
from lightning_audit.testing.faulty import HalfNoise

# ------------------------------------------------------------------ the verdict


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
    assert any(f"broke off with {kind.__name__}" in lack for lack in report.verdict.pass_blockers)
    assert report.steps == step
    _, entries = read_observations(tmp_path / "audit" / "observations.bin")
    assert len(entries) == step


def test_violation_seen_before_the_training_broke_off_is_reported(tmp_path: Path) -> None:
    class Faulty(Failing):
        def configure_optimizers(self) -> Any:
            self.optimizer_class = HalfNoise
            return super().configure_optimizers()

    error = RuntimeError("the user's own")
    audit = PrivacyAudit(seed=1, on_violation="warn")
    with pytest.raises(RuntimeError) as raised:
        trainer_for(tmp_path, audit, max_steps=64).fit(Faulty(20, error))
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


def test_report_goes_where_it_is_told(tmp_path: Path) -> None:
    audit = PrivacyAudit(report_dir=tmp_path / "elsewhere" / "deep", seed=1)
    trainer_for(tmp_path / "root", audit, max_steps=4).fit(PrivateModule())
    assert (tmp_path / "elsewhere" / "deep" / "report.json").exists()
    assert (tmp_path / "elsewhere" / "deep" / "observations.bin").exists()
    assert not (tmp_path / "root" / "audit").exists()


# ------------------------------------------------------------------ the record


def test_checks_stand_in_the_order_of_the_registry(tmp_path: Path) -> None:
    audit = PrivacyAudit(on_violation="warn", on_inconclusive="warn", seed=1)
    report = fit(tmp_path, PrivateModule(), audit, max_steps=10)
    for status in {check.status for check in report.checks}:
        names = [check.name for check in report.checks if check.status == status]
        assert names == [name for name in REGISTRY if name in names]


@pytest.mark.parametrize("kind", [None, HalfNoise])
def test_replayed_record_gives_the_reports_e_values(tmp_path: Path, kind: Any) -> None:
    audit = PrivacyAudit(on_violation="warn", seed=1)
    report = fit(tmp_path, PrivateModule(optimizer_class=kind), audit, max_steps=64)
    header, entries = read_observations(tmp_path / "audit" / "observations.bin")
    monitor = replay(header, entries, report.settings["significance"])
    again = {check.name: check for check in monitor.results()}
    tests = [check for check in report.checks if check.log_e_value is not None]
    of_noise = NoiseChannelChecks(header, 1e-3).results(clips=True)
    memory = {*(check.name for check in of_noise), "gradient_replaced", "ledger.draws"}
    of_record = [check for check in tests if check.name not in memory]
    assert len(of_record) >= 7
    assert len(tests) - len(of_record) == len(memory)
    for check in of_record:
        assert again[check.name].log_e_value == check.log_e_value
        assert again[check.name].status == check.status
    assert tuple(map(astuple, monitor.history)) == report.history
    assert monitor.steps == report.steps
