"""Reports as one JSON document."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from lightning_audit.cli.formats.checked import Checked, counts, exit_code, worst
from lightning_audit.cli.formats.findings_shown import Finding, findings_of
from lightning_audit.results.report_json import plain

#: Version of this layout; raised when a reader of the old one would misread the new one.
FORMAT_VERSION = 1


def as_json_summary(checked: Sequence[Checked]) -> str:
    """Return the outcome, and of each report its outcome, reasons, epsilons and findings."""
    return json.dumps(
        plain(
            {
                "format_version": FORMAT_VERSION,
                "outcome": worst(one.outcome for one in checked),
                "exit_code": exit_code(checked),
                "counts": counts(checked),
                "reports": [_of_one(one) for one in checked],
            }
        ),
        indent=2,
        allow_nan=False,
    )


def _of_one(one: Checked) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "training": one.training,
        "path": one.path,
        "outcome": one.outcome,
        "exit_code": exit_code([one]),
        "reasons": one.reasons,
        "gate": [{"rule": r.rule, "outcome": r.outcome, "message": r.text} for r in one.remarks],
    }
    if (report := one.report) is None:
        return fields
    return {
        **fields,
        "verdict": report.verdict.outcome,
        "epsilon_lower": report.epsilon_lower,
        "epsilon_spent": report.epsilon_spent,
        "claimed_epsilon": report.claimed_epsilon,
        "epsilon_not_excluded": report.epsilon_not_excluded,
        "delta": report.delta,
        "steps": report.steps,
        "created": report.created,
        "findings": [_of_finding(finding) for finding in findings_of(report)],
    }


def _of_finding(finding: Finding) -> dict[str, Any]:
    return {
        "check": finding.check,
        "status": finding.result.status,
        "severity": finding.severity,
        "title": finding.title,
        "message": finding.result.message,
        "look_at": finding.look_at,
        "optimizer": finding.result.optimizer,
        "code": [{"name": p.name, "file": p.file, "line": p.line} for p in finding.places],
        "explains": finding.explains,
    }
