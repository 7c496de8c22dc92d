"""The end of an audited training: prints the report, and raises the verdict's error."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from lightning_audit.callbacks.preview import preview_of
from lightning_audit.record.report_directory import REPORT_NAME
from lightning_audit.report.console import print_report
from lightning_audit.results.audit_report import (
    AuditReport,
    InconclusiveAudit,
    PrivacyViolation,
    describe,
)
from lightning_audit.run.report_files import ReportFiles
from lightning_audit.session.audit_session import AuditSession

_log = logging.getLogger(__name__)


def show(
    report: AuditReport, files: ReportFiles | None, sessions: Sequence[AuditSession] = ()
) -> None:
    """Print a report and its path; where printing fails, warn in the log.

    Args:
        report: of the training that has ended.
        files: of the training; None in a fast_dev_run, which writes none, and is told what the
            audit of a whole training would be.
        sessions: of the private optimizers.
    """
    try:
        print_report(report, files.shown(REPORT_NAME) if files else None)
        if files is None:
            print(preview_of(report, sessions, None))
            print("Report: not written, this is a fast_dev_run")
    except (OSError, ValueError) as error:  # of a full disk, or a stream that is closed
        _log.warning("the audit's report could not be printed (%s)", error)


def warn_of_end(report: AuditReport | None, files: ReportFiles | None) -> None:
    """Warn in the log of the verdict on a training that broke off, with the report's path."""
    if report is not None and files is not None:
        path = files.shown(REPORT_NAME) or "not written"
        _log.warning("privacy audit: %s\nReport: %s", describe(report.verdict), path)


def raise_for(report: AuditReport, on_violation: str, on_inconclusive: str) -> None:
    """Raise the error of a verdict where its setting is "raise".

    Raises:
        PrivacyViolation: the verdict is VIOLATION.
        InconclusiveAudit: the verdict is INCONCLUSIVE.
    """
    outcome = report.verdict.outcome
    if outcome == "VIOLATION" and on_violation == "raise":
        raise PrivacyViolation(report)
    if outcome == "INCONCLUSIVE" and on_inconclusive == "raise":
        raise InconclusiveAudit(report)
