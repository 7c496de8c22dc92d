"""The result of a training of the selftest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from lightning_audit.results.audit_report import AuditReport, CheckResult, Outcome

if TYPE_CHECKING:  # the rows load torch
    from lightning_audit.selftest.rows import Group, Row

Status = Literal[
    "found",  # and named as the registry says
    "warned",
    "not accused",
    "named otherwise",
    "not found",
    "accused",
    "crashed",
]
#: The statuses that fail the selftest.
FAILURES: tuple[Status, ...] = ("named otherwise", "not found", "accused", "crashed")


@dataclass(frozen=True)
class Result:
    """A row of the table.

    Args:
        group: why it was trained.
        fault: name of the fault; "healthy" for none.
        configuration: the way to train.
        status: the answer.
        steps: number of steps of the training.
        seconds: duration of the training.
        outcome: of the audit; None if there is no report.
        finding: the expected finding if it was found, else the one that the verdict names.
        named: whether the fault was named as the registry says; None if it states no name.
        sentence: the likely fault as text, or the warning.
        flagged_at: number of steps after which the finding was made; None if only at the end.
        error: why the training failed.
    """

    group: Group
    fault: str
    configuration: str
    status: Status
    steps: int
    seconds: float = 0.0
    outcome: Outcome | None = None
    finding: str = ""
    named: bool | None = None
    sentence: str = ""
    flagged_at: int | None = None
    error: str = ""

    @property
    def failed(self) -> bool:
        """Whether this result fails the selftest."""
        return self.status in FAILURES


def crashed(row: Row, error: str, seconds: float = 0.0) -> Result:
    """Return the result of a training without a report."""
    return Result(
        row.group,
        row.fault.name,
        row.configuration,
        "crashed",
        row.fault.steps,
        seconds,
        error=error,
    )


def finding_of(row: Row, report: AuditReport) -> CheckResult | None:
    """Return the check that found the fault: the expected one, else the one in the verdict."""
    for status in ("violated", "warned"):
        found = [check for check in report.checks if check.status == status]
        expected = [check for check in found if check.name == row.fault.check]
        first = [c for c in found if report.verdict.summary.startswith(f"{c.name}: ")]
        if found:
            return [*expected, *first, *found][0]
    return None


def status_of(row: Row, report: AuditReport) -> tuple[Status, bool | None]:
    """Return the status, and whether the fault was named as the registry says."""
    fault, accused = row.fault, report.verdict.outcome == "VIOLATION"
    if row.healthy or (fault.warn_only and accused):
        return ("accused" if accused else "not accused"), None
    if fault.remarked:
        said = (*report.notes, *(check.message for check in report.checks))
        named = any(sentence.startswith(fault.sentence) for sentence in said)
        return ("warned" if named else "not found"), named
    if fault.warn_only:
        warned = _says(report.checks, "warned", fault.check)
        named = warned is not None and warned.startswith(fault.sentence)
        if warned is None:
            return "not found", False
        return ("warned" if named else "named otherwise"), named
    if not accused:
        return "not found", False
    seen = _says(report.checks, "violated", fault.check) is not None
    named = seen and report.verdict.fault.startswith(fault.sentence)
    return ("found" if named else "named otherwise"), named


def _says(checks: Sequence[CheckResult], status: str, name: str) -> str | None:
    """Return a check's message if it has the status, else None."""
    found = (c.message for c in checks if c.status == status and c.name == name)
    return next(found, None)
