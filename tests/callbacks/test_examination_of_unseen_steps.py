"""Faults and odd trainings by somebody who had not read how they are looked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from stages import staged
from training_support import trainer_for
from unseen_steps import CORRECT, FAULTY

from lightning_audit import AuditReport, PrivacyAudit


def trained(folder: Path, make: Any, seed: int, examinations: int) -> tuple[AuditReport, Any]:
    pl.seed_everything(seed, verbose=False)
    module = make()
    audit = PrivacyAudit(examinations=examinations, on_violation="warn", seed=0)
    trainer_for(folder, audit, max_steps=20, val_check_interval=5).fit(module)
    assert audit.report is not None
    return audit.report, torch.cat([p.detach().flatten() for p in module.parameters()])


def violated(report: AuditReport) -> set[str]:
    return {check.name for check in report.checks if check.status == "violated"}


@pytest.mark.parametrize("seed", staged(heavy=[0], nightly=[1, 2]))
@pytest.mark.parametrize("name", FAULTY)
@pytest.mark.heavy_one_in(4)
def test_a_fault_is_found(tmp_path: Path, name: str, seed: int) -> None:
    report, _ = trained(tmp_path, FAULTY[name], seed, 3)
    found = {"replay.sensitivity", "replay.clipping", "replay.release", "coupling"}
    assert violated(report) & found


@pytest.mark.parametrize("seed", staged(heavy=[0], nightly=[1, 2]))
@pytest.mark.parametrize("name", CORRECT)
@pytest.mark.heavy_one_in(4)
def test_a_correct_training_is_not_accused_and_not_changed(
    tmp_path: Path, name: str, seed: int
) -> None:
    report, weights = trained(tmp_path / "examined", CORRECT[name], seed, 3)
    assert not violated(report)
    assert torch.equal(weights, trained(tmp_path / "plain", CORRECT[name], seed, 0)[1])
