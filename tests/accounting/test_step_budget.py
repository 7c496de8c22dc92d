"""The number of steps that keep to a claim: by counting one at a time, and its laws."""

from __future__ import annotations

import pytest

from lightning_audit.accounting.composition import epsilon_of_history
from lightning_audit.accounting.margin import exceeds
from lightning_audit.accounting.phases import Phase
from lightning_audit.accounting.step_budget import steps_within

DELTA = 1e-5
STEP = Phase(1.0, 0.05, 1)


def one_at_a_time(claimed_epsilon: float, history: list[Phase]) -> int:
    """The same by taking a step after another."""
    taken = 0
    while True:
        steps = [*history, Phase(STEP.noise_multiplier, STEP.sample_rate, taken + 1)]
        if exceeds(epsilon_of_history(steps, DELTA), claimed_epsilon):
            return taken
        taken += 1


@pytest.mark.parametrize("claimed_epsilon", [0.5, 1.5, 2.0])
@pytest.mark.parametrize("history", [[], [Phase(2.0, 0.05, 40)]])
def test_it_is_the_number_that_counting_gives(claimed_epsilon: float, history: list[Phase]) -> None:
    expected = one_at_a_time(claimed_epsilon, history)
    for planned in (None, 10_000, expected + 1):
        assert steps_within(claimed_epsilon, DELTA, history, [STEP], planned=planned) == expected


def test_no_more_than_planned_are_looked_for() -> None:
    assert steps_within(8.0, DELTA, (), [STEP], planned=7) == 7
    assert steps_within(1e-3, DELTA, (), [STEP], planned=7) == 0


def test_steps_of_two_optimizers_count_together() -> None:
    one = steps_within(2.0, DELTA, (), [STEP])
    assert one is not None
    both = steps_within(2.0, DELTA, (), [STEP, STEP])
    assert both == one // 2


def test_replaced_records_leave_fewer_steps() -> None:
    removed = steps_within(2.0, DELTA, (), [STEP])
    replaced = steps_within(2.0, DELTA, (), [STEP], adjacency="replace_one")
    assert removed is not None
    assert replaced is not None
    assert replaced < removed


def test_without_noise_there_is_none_and_without_a_rate_no_answer() -> None:
    assert steps_within(8.0, DELTA, (), [Phase(0.0, 0.1, 1)], planned=5) == 0
    assert steps_within(8.0, DELTA, (), [Phase(1.0, None, 1)], planned=5) is None


def test_a_number_of_planned_steps_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="planned=0"):
        steps_within(1.0, DELTA, (), [STEP], planned=0)
