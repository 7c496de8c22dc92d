from __future__ import annotations

import pytest
from declared import fault_of

from lightning_audit.checks.check import Check, entailed, group
from lightning_audit.checks.replay import (
    COUPLING,
    REPLAY_CLIPPING,
    REPLAY_RELEASE,
    REPLAY_SENSITIVITY,
)
from lightning_audit.checks.replay_findings import NONE_LEFT
from lightning_audit.checks.replayed_noise import REPLAY_NOISE

ALL = (REPLAY_SENSITIVITY, REPLAY_CLIPPING, REPLAY_RELEASE)


@pytest.mark.parametrize(
    ("check", "fault"),
    [
        (REPLAY_SENSITIVITY, "one_record_moves_too_much"),
        (REPLAY_CLIPPING, "some_gradients_not_clipped"),
        (REPLAY_RELEASE, "more_than_the_release"),
    ],
)
def test_one_finding_is_a_fault_and_none_however_often_asked_is_fine(
    check: Check, fault: str
) -> None:
    assert fault_of(check, {"findings": 1, "asked": 200}) == fault
    assert fault_of(check, {"findings": 0, "asked": 200}) is None


def test_they_are_a_group_of_certainties_that_cost_no_significance() -> None:
    assert set(group("replay")) == {check.name for check in ALL}
    assert all(check.always and not check.share and not check.doubtful for check in ALL)


def test_records_that_are_coupled_explain_what_their_replays_show() -> None:
    (rule,) = COUPLING.faults
    assert set(group("replay")) <= set(entailed(rule))


@pytest.mark.parametrize("check", [*ALL, REPLAY_NOISE, COUPLING], ids=lambda check: check.name)
def test_a_question_that_can_still_be_asked_stands_in_the_way_of_a_pass(check: Check) -> None:
    assert check.blocks is not None
    blocker = check.blocks(check.not_run(f"not asked: {NONE_LEFT}"))
    assert blocker.startswith(f"{check.name}: not examined yet")
    assert "10 more steps" in blocker
    assert not check.blocks(check.not_run("not asked: examinations=0"))
    assert not check.blocks(check.not_run("not asked: no per-sample gradients are formed"))
