from __future__ import annotations

import dataclasses
import json

from many_trainings import audited

from lightning_audit.results.audit_report import AuditReport


def test_counts_are_read_back_as_they_were_written() -> None:
    report = audited(n=50).to_report()
    seen = AuditReport.from_json(report.to_json()).trainings
    assert seen == report.trainings
    assert seen is not None
    assert json.loads(report.to_json())["trainings"] == dataclasses.asdict(seen)


def test_a_report_of_one_training_has_none() -> None:
    report = dataclasses.replace(audited(n=50).to_report(), trainings=None)
    assert AuditReport.from_json(report.to_json()).trainings is None
