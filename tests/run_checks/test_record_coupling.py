from __future__ import annotations

import pytest

from lightning_audit.run_checks.record_coupling import Coupling, tolerance_of


def test_a_change_beyond_rounding_is_a_violation_at_the_step_where_it_was_first_seen() -> None:
    seen, tolerance = Coupling(), tolerance_of(low_precision=False)
    for change, step in ((0.5 * tolerance, 0), (20 * tolerance, 8), (30 * tolerance, 16)):
        seen.take(change, tolerance, step)
    result = seen.result()
    assert (result.status, seen.step, seen.replays) == ("violated", 8, 3)
    assert result.evidence["change"] == 30 * tolerance
    assert "at step 8 a record's gradient changed by 0.3 of its norm" in result.message


def test_what_rounding_does_is_no_coupling_and_low_precision_rounds_more() -> None:
    change = 2 * tolerance_of(low_precision=False)
    for low, status in ((False, "violated"), (True, "ok")):
        seen = Coupling()
        seen.take(change, tolerance_of(low_precision=low), 0)
        assert seen.result().status == status


@pytest.mark.parametrize("reason", ["", "the batch cannot be copied"])
def test_nothing_compared_is_not_run_and_says_why(reason: str) -> None:
    result = Coupling(reason=reason).result()
    assert result.status == "not_run"
    assert result.message == (reason or "no batch with two records or more was replayed")


def test_what_was_found_outlives_a_stop() -> None:
    seen, again = Coupling(), Coupling()
    seen.take(0.5, 0.01, 3)
    again.load(seen.state())
    again.take(0.0, 0.01, 9)
    assert (again.violated, again.step, again.replays) == (True, 3, 2)
