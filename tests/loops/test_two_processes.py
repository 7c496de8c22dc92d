"""Two gloo processes that train together in a plain loop, started by hand."""

import json

import plain_process
import pytest
from both_processes import run_both

from lightning_audit import AuditReport


@pytest.mark.heavy
@pytest.mark.heavy_one_in(1)
@pytest.mark.parametrize(
    ("fault", "outcome"), [("none", "PASS"), ("half_noise", "VIOLATION")], ids=["sound", "half"]
)
def test_processes_are_audited_together(tmp_path, fault, outcome):
    codes, said = run_both(tmp_path, fault, script="plain_process.py")
    assert codes == [0, 0], said
    one, other = (json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(2))
    report = AuditReport.load(tmp_path / "audit" / "report.json")
    assert one == other
    assert one["report"] == json.loads(report.to_json())
    assert report.verdict.outcome == outcome
    assert one["raised"] == ("PrivacyViolation" if outcome != "PASS" else "")
    if outcome == "PASS":
        assert report.steps == plain_process.EPOCHS * 32
    else:
        assert report.verdict.fault.startswith("noise scale too small")
        assert report.steps < 10
