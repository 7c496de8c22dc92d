"""What came of a training of the selftest."""

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
#: What must not be.
FAILURES: tuple[Status, ...] = ("named otherwise", "not found", "accused", "crashed")


@dataclass(frozen=True)
class Result:
    """A row of the table.

    Args:
        group: why it was trained.
        fault: name of the fault; "healthy" for none.
        configuration: the way to train.
        status: the answer.
        steps: steps of the training.
        seconds: that it took.
        outcome: of the audit; None if there is no report.
        finding: the expected finding if it is there, else that which gave the fault its name.
        named: whether the fault was named as the registry says; None where it says nothing.
        sentence: the likely fault in words, or what was warned of.
        flagged_at: steps after which the finding was there; None where only its end tells.
        error: why it broke off.
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
        """Whether the selftest fails by it."""
        return self.status in FAILURES


def crashed(row: Row, error: str, seconds: float = 0.0) -> Result:
    """The result of a training that gave no report."""
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
    """The check that tells the fault: the expected one, else the one that the verdict names."""
    for status in ("violated", "warned"):
        found = [check for check in report.checks if check.status == status]
        expected = [check for check in found if check.name == row.fault.check]
        first = [c for c in found if report.verdict.summary.startswith(f"{c.name}: ")]
        if found:
            return [*expected, *first, *found][0]
    return None


def status_of(row: Row, report: AuditReport) -> tuple[Status, bool | None]:
    """The answer, and whether the fault has its name."""
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
    """What a check says if it has the status, else None."""
    found = (c.message for c in checks if c.status == status and c.name == name)
    return next(found, None)
