"""A report of a training whose audit failed never passes, and the gate reads it."""

from __future__ import annotations

import pytest
from made_report import made_report

from lightning_audit.results.audit_report import AuditReport
from lightning_audit.verdict.gate import contradictions
from lightning_audit.verdict.judge import OutcomeSettings, failed_report

WHY = "MemoryError in run.evaluation.build_report"


def failed(before: AuditReport | None) -> AuditReport:
    settings = AuditReport.from_json(made_report().to_json()).settings
    report = failed_report(before, OutcomeSettings.of(settings), settings, WHY)
    report = AuditReport.from_json(report.to_json())
    assert contradictions(report) == []
    return report


@pytest.mark.parametrize("outcome", ["PASS", "INCONCLUSIVE"])
def test_what_had_passed_or_not_is_inconclusive(outcome: str) -> None:
    report = failed(made_report(outcome))
    assert report.verdict.outcome == "INCONCLUSIVE"
    assert report.verdict.summary == f"the audit failed: {WHY}"
    assert report.verdict.pass_blockers[0] == report.verdict.summary
    assert failed(report) == report


def test_a_violation_that_was_found_before_stays() -> None:
    report = failed(made_report("VIOLATION"))
    assert report.verdict == made_report("VIOLATION").verdict
    assert f"the audit failed: {WHY}" in report.notes


def test_without_an_earlier_report_it_says_what_failed_and_no_more() -> None:
    report = failed(None)
    assert report.verdict.outcome == "INCONCLUSIVE"
    assert report.steps == 0
    assert not report.complete
