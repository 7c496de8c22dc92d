"""Faults as the diagnosis names them, of simulated records and of findings made by hand."""

from typing import Any

from simulated_record import OVERSIZE, monitor_of

from lightning_audit.checks.monitor import AuditMonitor
from lightning_audit.results.audit_report import CheckResult, LikelyFault
from lightning_audit.verdict.diagnosis import likely_faults


def check(name: str, **evidence: Any) -> CheckResult:
    return CheckResult(name, "mechanism", "violated", "", evidence=evidence)


def found_in(monitor: AuditMonitor, *others: CheckResult) -> list[CheckResult]:
    return [*(c for c in monitor.results() if c.status == "violated"), *others]


def faults_of(record: Any, *others: CheckResult, processes: int = 1) -> tuple[LikelyFault, ...]:
    monitor = monitor_of(record)
    return likely_faults(found_in(monitor, *others), monitor, OVERSIZE, processes)


def names(faults: tuple[LikelyFault, ...]) -> list[str]:
    return [fault.name for fault in faults]
