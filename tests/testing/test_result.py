from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest
from made_report import made_report

from lightning_audit.results.audit_report import AuditReport, CheckResult, Verdict
from lightning_audit.testing.faults import FAULTS
from lightning_audit.testing.selftest import Row
from lightning_audit.testing.selftest_pool import FAILURES, Status, finding_of, status_of

SEEN = FAULTS["half_noise"]
WARNED = replace(SEEN, warn_only=True, sentence="se")
WARNED_OTHERWISE = replace(WARNED, sentence="sa")
SMALL = "noise scale too small: 0.5"


def report(outcome: Any = "PASS", fault: str = "", **statuses: str) -> AuditReport:
    checks = tuple(
        CheckResult(name.replace("_", "."), "mechanism", status, "seen")  # type: ignore[arg-type]
        for name, status in statuses.items()
    )
    first = next((check.name for check in checks if check.status == "violated"), "")
    verdict = Verdict(outcome, None, f"{first}: seen", fault=fault)
    return made_report(verdict=verdict, checks=checks)


VIOLATED = report("VIOLATION", SMALL, mu="violated", noise="violated")
OTHERWISE = report("VIOLATION", "no noise", noise="violated")
OTHER_FINDING = report("VIOLATION", SMALL, mu="violated", noise="ok")
NOTHING = report("PASS", noise="ok")
TOLD = report("PASS", mu="warned", noise="warned")


@pytest.mark.parametrize(
    ("fault", "seen", "status", "named"),
    [
        (SEEN, VIOLATED, "found", True),
        (SEEN, OTHERWISE, "named otherwise", False),
        (SEEN, OTHER_FINDING, "named otherwise", False),
        (SEEN, NOTHING, "not found", False),
        (SEEN, TOLD, "not found", False),
        (WARNED, TOLD, "warned", True),
        (WARNED_OTHERWISE, TOLD, "named otherwise", False),
        (WARNED, NOTHING, "not found", False),
        (WARNED, VIOLATED, "accused", None),
    ],
)
def test_the_answer_is_held_against_the_registry(
    fault: Any, seen: AuditReport, status: str, named: bool | None
) -> None:
    assert status_of(Row("fault", fault, "Opacus"), seen) == (status, named)


@pytest.mark.parametrize(("seen", "status"), [(NOTHING, "not accused"), (VIOLATED, "accused")])
def test_a_healthy_training_must_not_be_accused(seen: AuditReport, status: str) -> None:
    assert status_of(Row("healthy", SEEN, "Opacus"), seen) == (status, None)


def test_every_answer_but_the_wanted_ones_fails() -> None:
    assert {*get_args(Status)} - {*FAILURES} == {"found", "warned", "not accused"}


@pytest.mark.parametrize(
    ("seen", "name"),
    [(VIOLATED, "noise"), (OTHER_FINDING, "mu"), (TOLD, "noise"), (NOTHING, None)],
)
def test_the_finding_is_the_expected_one_or_that_of_the_verdict(
    seen: AuditReport, name: str | None
) -> None:
    found = finding_of(Row("fault", SEEN, "Opacus"), seen)
    assert (found.name if found else None) == name
