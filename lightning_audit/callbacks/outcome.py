"""What the user is told when an audited training has ended: the report, and the verdict's error."""

from __future__ import annotations

import logging

from lightning_audit.record.report_directory import REPORT_NAME
from lightning_audit.report.console import print_report
from lightning_audit.results.audit_report import (
    AuditReport,
    InconclusiveAudit,
    PrivacyViolation,
    describe,
)
from lightning_audit.run.report_files import ReportFiles

_log = logging.getLogger(__name__)


def show(report: AuditReport, files: ReportFiles | None) -> None:
    """Print a report, and where it is; a stream that takes nothing costs a warning only.

    Args:
        report: of the training that has ended.
        files: of the training; None in a fast_dev_run, which writes none.
    """
    try:
        print_report(report, files.shown(REPORT_NAME) if files else None)
        if files is None:
            print("Report: none is written in a fast_dev_run")
    except (OSError, ValueError) as error:  # of a full disk, or a stream that is closed
        _log.warning("the audit's report could not be printed (%s)", error)


def warn_of_end(report: AuditReport | None, files: ReportFiles | None) -> None:
    """Say in the log what is known of a training that broke off, and where its report is."""
    if report is not None and files is not None:
        path = files.shown(REPORT_NAME) or "not written"
        _log.warning("privacy audit: %s\nReport: %s", describe(report.verdict), path)


def raise_for(report: AuditReport, on_violation: str, on_inconclusive: str) -> None:
    """Raise what the verdict asks for, where the user asks for it by "raise".

    Raises:
        PrivacyViolation: the claim is false.
        InconclusiveAudit: the audit cannot tell.
    """
    outcome = report.verdict.outcome
    if outcome == "VIOLATION" and on_violation == "raise":
        raise PrivacyViolation(report)
    if outcome == "INCONCLUSIVE" and on_inconclusive == "raise":
        raise InconclusiveAudit(report)
