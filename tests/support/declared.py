"""What a declaration says of a check's evidence: whether it is wrong, and which fault it is."""

from typing import Any

from lightning_audit.checks.check import REGISTRY, Check
from lightning_audit.results.audit_report import CheckResult
from lightning_audit.verdict.diagnosis import likely_faults


def fault_of(check: Check, evidence: dict[str, Any]) -> str | None:
    """Name of the likely fault by this check alone; None where nothing is wrong."""
    assert REGISTRY[check.name] is check
    found = CheckResult(check.name, check.kind, check.flag, "", evidence=evidence)
    if check.warns or not check.is_wrong(evidence):
        return None
    first, *_ = likely_faults([found], None, 1.0)
    assert first.finding == check.name
    return first.name
