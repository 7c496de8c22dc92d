"""What is printed of a report, as text."""

import contextlib
import io
from typing import Any

from lightning_audit.report.text import print_report
from lightning_audit.results.audit_report import AuditReport


def as_text(report: AuditReport, path: Any = None) -> str:
    """The whole report as it is printed without a terminal."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        print_report(report, path)
    return out.getvalue()
