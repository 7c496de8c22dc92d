from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lightning_audit.results.audit_report import AuditReport
from lightning_audit.testing.faults import FAULTS
from lightning_audit.testing.selftest import Row, train_row
from lightning_audit.testing.selftest_pool import Result

# Opacus, Lightning and torch remark on loaders, hooks and secure mode in every training.
pytestmark = [
    pytest.mark.filterwarnings("default"),
    pytest.mark.usefixtures("short_report"),
]


def trained(directory: Path, name: str, **changes: int) -> Result:
    return train_row(Row("fault", replace(FAULTS[name], **changes), "Opacus"), directory / "audit")


def test_a_finding_of_the_record_is_placed_at_the_first_step_that_shows_it(tmp_path: Path) -> None:
    result = trained(tmp_path, "half_noise")
    assert (result.status, result.finding, result.named) == ("found", "noise", True)
    assert result.flagged_at is not None
    report = AuditReport.load(tmp_path / "audit" / "report.json")
    assert report.steps == result.steps == 20
    shorter = trained(tmp_path / "shorter", "half_noise", steps=result.flagged_at - 1)
    assert shorter.finding != "noise"
    assert trained(tmp_path / "as long", "half_noise", steps=result.flagged_at).finding == "noise"


def test_a_finding_with_a_step_in_its_evidence_is_placed_there(tmp_path: Path) -> None:
    result = trained(tmp_path, "closure_runs_again", steps=4)
    assert (result.status, result.flagged_at) == ("found", 1)
