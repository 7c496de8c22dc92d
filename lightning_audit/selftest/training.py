"""Run one training of the selftest under audit, in the calling process."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import torch

from lightning_audit.checks.monitor import replay
from lightning_audit.record.report_directory import RECORD_NAME
from lightning_audit.record.store import read_observations
from lightning_audit.results.audit_report import AuditReport, CheckResult
from lightning_audit.selftest.result import Result, finding_of, status_of
from lightning_audit.selftest.rows import Row
from lightning_audit.testing.runs import train


def run_row(row: Row) -> Result:
    """Train a row under audit, and return the result."""
    with tempfile.TemporaryDirectory(prefix="row-") as name:
        return train_row(row, Path(name))


def train_row(row: Row, directory: Path) -> Result:
    """Train a row in one thread, and keep the audit's files in a directory."""
    torch.set_num_threads(1)
    started = time.perf_counter()
    report = train(row.fault, directory, row.seed)
    if report is None or report.record is None:
        raise RuntimeError("the audit made no report, or no record")
    finding = finding_of(row, report)
    status, named = status_of(row, report)
    return Result(
        row.group,
        row.fault.name,
        row.configuration,
        status,
        report.steps,
        time.perf_counter() - started,
        outcome=report.verdict.outcome,
        finding=finding.name if finding else "",
        named=named,
        sentence=_sentence(report, finding),
        flagged_at=_flagged_at(finding, directory / RECORD_NAME, report) if finding else None,
    )


def _flagged_at(finding: CheckResult, record: Path, report: AuditReport) -> int | None:
    """Return the number of steps until the finding, from its evidence or from the record."""
    at = finding.evidence.get("violated_at_step")
    if at is not None:
        return int(at) + 1
    significance = float(report.settings["significance"])
    header, entries = read_observations(record)

    def flagged(steps: int) -> bool:
        checks = replay(header, entries[:steps], significance).results()
        return any(c.name == finding.name and c.status == finding.status for c in checks)

    low, high = 0, len(entries)
    if not high or not flagged(high):
        return None
    while high - low > 1:  # a flagged check remains flagged
        middle = (low + high) // 2
        low, high = (low, middle) if flagged(middle) else (middle, high)
    return high


def _sentence(report: AuditReport, finding: CheckResult | None) -> str:
    if report.verdict.fault or finding is None:
        return report.verdict.fault
    return finding.message
