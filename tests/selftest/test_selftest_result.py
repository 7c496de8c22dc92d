from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lightning_audit.results import AuditReport, CheckResult, Verdict
from lightning_audit.selftest.result import FAILURES, finding_of, status_of
from lightning_audit.selftest.rows import Row
from lightning_audit.testing.faults import FAULTS

SEEN = FAULTS["half_noise"]
UNSEEN = replace(SEEN, seen=False, sentence="", reason="not looked for")
WARNED = replace(SEEN, warn_only=True, sentence="se")
WARNED_OTHERWISE = replace(WARNED, sentence="sa")
UNWARNED = replace(UNSEEN, warn_only=True)
SMALL = "noise scale too small: 0.5"


def report(outcome: Any = "PASS", fault: str = "", **statuses: str) -> AuditReport:
    checks = tuple(
        CheckResult(name.replace("_", "."), "mechanism", status, "seen")  # type: ignore[arg-type]
        for name, status in statuses.items()
    )
    first = next((check.name for check in checks if check.status == "violated"), "")
    return AuditReport(
        verdict=Verdict(outcome, None, f"{first}: seen", fault=fault),
        checks=checks,
        bounds=(),
        epsilon_claimed=None,
        epsilon_spent=None,
        epsilon_not_excluded=None,
        delta=1e-5,
        steps=20,
        observations=160,
        history=(),
        power={},
        epochs=(),
        settings={},
        environment={},
    )


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
        (UNSEEN, NOTHING, "not found yet", None),
        (UNSEEN, VIOLATED, "unlike stated", None),
        (WARNED, TOLD, "warned", True),
        (WARNED_OTHERWISE, TOLD, "named otherwise", False),
        (WARNED, NOTHING, "not found", False),
        (WARNED, VIOLATED, "accused", None),
        (UNWARNED, NOTHING, "not found yet", None),
        (UNWARNED, TOLD, "unlike stated", None),
        (UNWARNED, VIOLATED, "accused", None),
    ],
)
def test_the_answer_is_held_against_the_registry(
    fault: Any, seen: AuditReport, status: str, named: bool | None
) -> None:
    assert status_of(Row("fault", fault, "Opacus"), seen) == (status, named)


@pytest.mark.parametrize(("seen", "status"), [(NOTHING, "not accused"), (VIOLATED, "accused")])
def test_a_healthy_training_must_not_be_accused(seen: AuditReport, status: str) -> None:
    assert status_of(Row("healthy", UNSEEN, "Opacus"), seen) == (status, None)


def test_what_the_registry_does_not_promise_fails_nothing() -> None:
    assert set(FAILURES) == {"named otherwise", "not found", "accused", "crashed"}


@pytest.mark.parametrize(
    ("seen", "name"),
    [(VIOLATED, "noise"), (OTHER_FINDING, "mu"), (TOLD, "noise"), (NOTHING, None)],
)
def test_the_finding_is_the_expected_one_or_that_of_the_verdict(
    seen: AuditReport, name: str | None
) -> None:
    found = finding_of(Row("fault", SEEN, "Opacus"), seen)
    assert (found.name if found else None) == name
