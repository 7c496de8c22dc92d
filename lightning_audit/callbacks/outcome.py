"""What becomes of an audit's report when its training has ended: shown, logged, raised."""

from __future__ import annotations

import logging
from typing import Any

from lightning_audit.record.report_directory import REPORT_NAME
from lightning_audit.report.console import print_report
from lightning_audit.results.audit_report import (
    AuditReport,
    InconclusiveAudit,
    PrivacyViolation,
    describe,
)
from lightning_audit.run.audit_run import AuditRun

_log = logging.getLogger(__name__)


def is_trial(trainer: Any) -> bool:
    """Whether this is a fast_dev_run: everything is run, nothing written, nothing failed."""
    return bool(trainer.fast_dev_run)


def show(run: AuditRun) -> None:
    """Print the report of a training, and where it is."""
    assert run.report is not None
    try:
        print_report(run.report, run.files.shown(REPORT_NAME) if run.files else None)
        if run.files is None:
            print("Report: none is written in a fast_dev_run")
    except (OSError, ValueError) as error:  # of a full disk, or a stream that is closed
        _log.warning("the audit's report could not be printed (%s)", error)


def warn_of_break_off(run: AuditRun) -> None:
    """Log the verdict on a training that broke off, and where its report is."""
    if run.report is not None and run.files is not None:
        verdict, path = describe(run.report.verdict), run.files.shown(REPORT_NAME)
        _log.warning("privacy audit: %s\nReport: %s", verdict, path or "not written")


def raise_for(report: AuditReport, on_violation: str, on_inconclusive: str) -> None:
    """Raise where the verdict asks for it.

    Raises:
        PrivacyViolation: the claim is false, and ``on_violation`` is "raise".
        InconclusiveAudit: nothing could be concluded, and ``on_inconclusive`` is "raise".
    """
    if report.verdict.outcome == "VIOLATION" and on_violation == "raise":
        raise PrivacyViolation(report)
    if report.verdict.outcome == "INCONCLUSIVE" and on_inconclusive == "raise":
        raise InconclusiveAudit(report)
