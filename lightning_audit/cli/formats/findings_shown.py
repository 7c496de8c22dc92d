"""Findings of a report for people and machines: title, severity, places in the code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from lightning_audit.checks.base.check import Check
from lightning_audit.report.guessed_coins import DECLARED
from lightning_audit.report.in_words import headline_of
from lightning_audit.results.audit_report import AuditReport, CheckResult, LikelyFault
from lightning_audit.results.report_details import CodePlace, places_in

Severity = Literal["critical", "theoretical", "negligible"]
#: What the severities mean.
SEVERITIES: Mapping[Severity, str] = {
    "critical": "the guarantee is void",
    "theoretical": "an assumption of the guarantee fails; no attack is known",
    "negligible": "no privacy is lost",
}


@dataclass(frozen=True)
class Finding:
    """A check that failed, and is explained by no other one.

    Args:
        check: name of the check.
        title: what is wrong, in a few words.
        severity: see `SEVERITIES`.
        result: the check's result.
        look_at: where to look in the code.
        places: places in the user's code.
        explains: names of the failed checks that it explains.
    """

    check: str
    title: str
    severity: Severity
    result: CheckResult
    look_at: str
    places: tuple[CodePlace, ...] = ()
    explains: tuple[str, ...] = ()

    @property
    def fails(self) -> bool:
        """Whether the report cannot pass with it."""
        return self.result.status in ("violated", "undecided")


def findings_of(report: AuditReport) -> list[Finding]:
    """Return what a report found, in its order; also what is allowed or only a warning."""
    shown = ("violated", "undecided", "allowed", "warned")
    return [
        _finding(report, check)
        for check in report.checks
        if check.status in shown and not check.follows_from
    ]


def severity_of(check: Check, status: str = "violated") -> Severity:
    """Return the severity of a failure of a check.

    Args:
        check: its declaration.
        status: of the result. An undecided finding is not known to be a fault.
    """
    if check.warns or status == "warned":
        return "negligible"
    return "theoretical" if check.kind == "accounting" or status == "undecided" else "critical"


def _finding(report: AuditReport, result: CheckResult) -> Finding:
    check, fault = DECLARED[result.name], _fault(report, result)
    where = result.evidence.get("where")
    code = fault.place.code if fault else ()
    code = code or places_in(where if isinstance(where, str) else "")
    return Finding(
        check=result.name,
        title=headline_of(fault) if fault else check.heading(failed=True),
        severity=severity_of(check, result.status),
        result=result,
        look_at=(fault.look_at if fault else "") or result.advice or check.look_at,
        places=tuple(place for place in code if place.is_relative),
        explains=fault.consequences if fault else (),
    )


def _fault(report: AuditReport, result: CheckResult) -> LikelyFault | None:
    """Return the likeliest fault that a check shows."""
    whose = ("", result.optimizer)
    faults = (f for f in report.verdict.faults if f.finding == result.name)
    return next((f for f in faults if not result.optimizer or f.place.optimizer in whose), None)
