"""Runs one training of the selftest under audit, in the process that calls."""

from __future__ import annotations

import dataclasses
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from lightning_audit.callbacks.privacy_audit import PrivacyAudit
from lightning_audit.checks.monitor import replay
from lightning_audit.record.report_directory import RECORD_NAME
from lightning_audit.record.store import ENTERED, RecordHeader, read_observations
from lightning_audit.results.audit_report import AuditReport, CheckResult
from lightning_audit.selftest.literature import steps_needed
from lightning_audit.selftest.result import Result, finding_of, status_of
from lightning_audit.selftest.rows import Row
from lightning_audit.testing.runs import train


class _Observer(PrivacyAudit):
    """Keeps the record alone, with canaries also where the clipping was found broken."""

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """Forget that the clipping is broken."""
        super().on_train_batch_start(trainer, pl_module, batch, batch_idx)
        for session in self._run.sessions if self._run else ():
            session.recorder.clipping_is_broken = False

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Compute no bounds."""

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Close the records."""
        self._ended = True
        for session in self._run.sessions if self._run else ():
            session.recorder.flush()
            if session.store is not None:
                session.store.close(archive=False)


def run_row(row: Row) -> Result:
    """Train, and see what the audit and the bounds of the literature say.

    Args:
        row: what to train.

    Returns:
        The result; it depends on nothing but the row.
    """
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="row-") as name:
        directory = Path(name)
        report = train(row.fault, directory / "audit", row.seed)
        if report is None or report.record is None:
            raise RuntimeError("the audit gave no report, or kept no record")
        header, entries = _record(directory / "audit")
        finding = finding_of(row, report)
        flagged_at = _flagged_at(finding, header, entries, report) if finding else None
        if len(entries) and (~np.isin(entries["canaries"], ENTERED)).any():
            # The audit was sure before the run was over; the methods of the literature get it all.
            train(row.fault, directory / "again", row.seed, _Observer)
            header, entries = _record(directory / "again")
        needed = steps_needed(header, entries, report.delta)
        counted = int(np.isin(entries["canaries"], ENTERED).sum()) * len(header.canaries)
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
        flagged_at=flagged_at,
        observations=counted,
        needed=needed,
    )


def _record(directory: Path) -> tuple[RecordHeader, Any]:
    header, entries = read_observations(directory / RECORD_NAME)
    return header, np.array(entries)  # the file goes away


def _flagged_at(
    finding: CheckResult, header: RecordHeader, entries: Any, report: AuditReport
) -> int | None:
    """Steps after which the finding was there, by its evidence or by the record."""
    at = finding.evidence.get("violated_at_step")
    if at is not None:
        return int(at) + 1
    significance = float(report.settings["significance"])

    def flagged(steps: int) -> bool:
        checks = replay(header, entries[:steps], significance).results()
        return any(c.name == finding.name and c.status == finding.status for c in checks)

    low, high = 0, len(entries)
    if not high or not flagged(high):
        return None
    while high - low > 1:  # a check that has flagged stays flagged
        middle = (low + high) // 2
        low, high = (low, middle) if flagged(middle) else (middle, high)
    return high


def _sentence(report: AuditReport, finding: CheckResult | None) -> str:
    if report.verdict.fault or finding is None:
        return report.verdict.fault
    return finding.message


def as_fields(result: Result) -> dict[str, Any]:
    """A result as plain values."""
    return dataclasses.asdict(result)
