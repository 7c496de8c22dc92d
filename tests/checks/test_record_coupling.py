"""A record's gradient that changes beside others is a violation, and what is right is not told."""

from __future__ import annotations

import pytest

from lightning_audit.checks.replay import Answer, Coupling, tolerance_of
from lightning_audit.checks.replay_findings import Finding


def changed(size: float) -> Answer:
    return Answer(1, (Finding("a record among others", size, 0.01),))


def test_a_change_is_a_violation_at_the_step_where_it_was_first_seen() -> None:
    seen = Coupling()
    for step, answer in ((0, Answer(1)), (8, changed(0.3)), (16, changed(0.5))):
        seen.take(step, answer)
    result = seen.result()
    assert (result.status, seen.step, seen.replays) == ("violated", 8, 3)
    assert result.evidence["change"] == 0.3
    assert "in step 9 a record's gradient changed by 0.3 of its norm" in result.message


def test_where_nothing_changed_nothing_measured_is_told() -> None:
    seen = Coupling()
    seen.take(0, Answer(1))
    assert seen.result().status == "ok"
    assert seen.result().evidence == {"replays": 1, "change": None, "step": None}


def test_low_precision_rounds_more() -> None:
    assert tolerance_of(low_precision=True) > tolerance_of(low_precision=False)


@pytest.mark.parametrize(
    ("reason", "off", "message"),
    [
        ("", "", "not asked: no step was examined"),
        ("", "examinations=0", "not asked: examinations=0"),
        ("the batch cannot be copied", "", "not asked: the batch cannot be copied"),
    ],
)
def test_nothing_compared_is_not_run_and_says_why(reason: str, off: str, message: str) -> None:
    result = Coupling(reason=reason).result(off)
    assert result.status == "not_run"
    assert result.message == message
