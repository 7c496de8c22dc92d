from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
from training_support import (
    PrivateModule,
    fit,
    trainer_for,
)

from lightning_audit import AuditReport, PrivacyAudit, PrivacyViolation
from lightning_audit.testing.faulty import HalfNoise


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


@pytest.mark.parametrize("copy", [copy.deepcopy, lambda audit: pickle.loads(pickle.dumps(audit))])
def test_copy_of_the_callback_audits_as_the_callback_does(tmp_path: Path, copy: Any) -> None:
    audit = copy(PrivacyAudit(seed=1, allow=["noise.mean"]))
    report = fit(tmp_path, PrivateModule(), audit, max_steps=32)
    assert report.verdict.outcome == "PASS"
    assert report.settings["seed"] == 1
    assert copy(audit.report) == audit.report
