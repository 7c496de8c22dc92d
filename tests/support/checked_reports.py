"""Reports as the gate found them, of every outcome, for the formats."""

import dataclasses
from typing import Any

from made_report import made_report

from lightning_audit.cli.formats import Checked, Remark
from lightning_audit.results.audit_report import AuditReport, LikelyFault, Outcome, Place
from lightning_audit.results.report_details import places_in

CODE = places_in("Half.add_noise at src/half.py:41, Lit.training_step at src/model.py:7")
#: What a file may hold, to pose as markup or as a command.
HOSTILE = (
    "]]><script>alert(1)</script>\n::error::forged\r\n| a | b |\n</details>"
    "# @everyone [x](http://x) `code` $x$ \x1b[2K\u202e\ud800 ##[error]forged"
)


def violated(**changes: Any) -> AuditReport:
    """A report of half the noise, with code, and another check that follows."""
    report = made_report("VIOLATION")
    fault = LikelyFault(
        *("noise_too_small", "half the noise", "noise", "compare the standard deviations"),
        place=Place(step=7, code=CODE),
        consequences=("noise.step",),
    )
    checks = tuple(
        dataclasses.replace(check, status="violated", follows_from="noise")
        if check.name == fault.consequences[0]
        else check
        for check in report.checks
    )
    verdict = dataclasses.replace(report.verdict, faults=(fault,), fault="")
    return dataclasses.replace(report, verdict=verdict, checks=checks, **changes)


def with_status(name: str, status: Any, **changes: Any) -> AuditReport:
    """A report that passes, but for the status of one check."""
    report = made_report()
    checks = tuple(
        dataclasses.replace(check, status=status, **changes) if check.name == name else check
        for check in report.checks
    )
    return dataclasses.replace(report, checks=checks)


def checked(report: AuditReport | None, name: str = "lit", *remarks: Remark) -> Checked:
    """A report as the gate found it."""
    return Checked(f"{name}/report.json", name, f"{name}/report.json", report, remarks)


def unreadable(name: str = "cut", text: str = "the report is not complete JSON") -> Checked:
    """A report that could not be read."""
    return checked(None, name, Remark("unreadable", "INCONCLUSIVE", text))


def of_every_outcome() -> list[Checked]:
    """A pass, a violation, an inconclusive report, and one that could not be read."""
    outcomes: dict[str, Outcome] = {"fine": "PASS", "short": "INCONCLUSIVE"}
    made = [checked(made_report(outcome), name) for name, outcome in outcomes.items()]
    return [made[0], checked(violated(), "half"), made[1], unreadable()]


def hostile() -> list[Checked]:
    """Reports in which all text is hostile."""
    report = violated()
    fault = dataclasses.replace(
        report.verdict.faults[0], name="unknown", sentence=HOSTILE, look_at=HOSTILE
    )
    checks = tuple(
        dataclasses.replace(check, message=HOSTILE, advice=HOSTILE, optimizer=HOSTILE)
        for check in report.checks
    )
    verdict = dataclasses.replace(
        report.verdict, summary=HOSTILE, faults=(fault,), fault="", pass_blockers=(HOSTILE,)
    )
    report = dataclasses.replace(
        report, verdict=verdict, checks=checks, created=HOSTILE, notes=(HOSTILE,)
    )
    return [checked(report, HOSTILE.replace("/", "")), unreadable(HOSTILE, HOSTILE)]
