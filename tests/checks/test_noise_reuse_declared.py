from __future__ import annotations

from typing import Any

import pytest
from declared import fault_of

from lightning_audit.checks.check import Check, entailed, group
from lightning_audit.checks.randomness import (
    NOISE_RESTARTED,
    NOISE_SHARED,
    RECURRENCE,
    REUSE_BROADCAST,
    REUSE_ENTRIES,
    REUSE_FORECAST,
    REUSE_LAG,
    REUSE_PAIR,
)

BY_E_VALUE = (REUSE_LAG, REUSE_BROADCAST, REUSE_PAIR, RECURRENCE, REUSE_FORECAST, REUSE_ENTRIES)


@pytest.mark.parametrize(
    ("check", "evidence", "fault"),
    [
        (NOISE_SHARED, {"shared": False}, None),
        (NOISE_SHARED, {"shared": True}, "noise_shared_by_optimizers"),
    ],
)
def test_a_generator_that_is_seen_again_is_a_fault_for_certain(
    check: Check, evidence: dict[str, Any], fault: str | None
) -> None:
    assert fault_of(check, evidence) == fault
    assert check.share == 0
    assert all(rule.rank < 0 for rule in check.faults)


def test_those_of_the_readings_are_one_group_and_say_by_what_they_were_not_tested() -> None:
    assert set(group("reuse")) == {check.name for check in BY_E_VALUE}
    needs = {check.needs for check in BY_E_VALUE}
    assert len(needs) == len(BY_E_VALUE)
    for check in BY_E_VALUE:
        assert check.doubtful
        assert check.size_of is None
        silent = check.result(check.test(1e-3), "", "", "", {})
        assert silent.message == f"not tested: {check.needs}"


def test_a_restart_explains_noise_that_comes_back_and_not_that_of_one_step() -> None:
    (rule,) = NOISE_RESTARTED.faults
    assert rule.rank < 0
    assert set(entailed(rule)) == {REUSE_LAG.name, RECURRENCE.name}


@pytest.mark.parametrize("check", [REUSE_FORECAST, REUSE_ENTRIES])
def test_noise_that_others_tell_is_a_fault_and_explains_what_else_is_used_again(
    check: Check,
) -> None:
    (rule,) = check.faults
    assert rule.applies({"left": 0.84})
    assert not rule.applies({"left": 0.99})  # the noise is small as a whole
    assert {*group("reuse"), *group("channel")} <= set(entailed(rule))
    assert rule.rank > 0  # what is told by several checks comes first
