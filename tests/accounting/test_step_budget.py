"""The number of steps that keep to a claim: by counting one at a time, and its laws."""

from __future__ import annotations

import pytest

from lightning_audit.accounting.composition import epsilon_of_history
from lightning_audit.accounting.history import Phase
from lightning_audit.accounting.spending import MOST_ASKED, steps_within

DELTA = 1e-5
STEP = Phase(1.0, 0.05, 1)


def one_at_a_time(claimed_epsilon: float, history: list[Phase]) -> int:
    """The same by taking a step after another."""
    taken = 0
    while True:
        steps = [*history, Phase(STEP.noise_multiplier, STEP.sample_rate, taken + 1)]
        if epsilon_of_history(steps, DELTA) > claimed_epsilon:
            return taken
        taken += 1


@pytest.mark.parametrize("claimed_epsilon", [0.5, 1.5, 2.0])
@pytest.mark.parametrize("history", [[], [Phase(2.0, 0.05, 40)]])
def test_it_is_the_number_that_counting_gives(claimed_epsilon: float, history: list[Phase]) -> None:
    expected = one_at_a_time(claimed_epsilon, history)
    for planned in (None, 4000, 2 * expected + 20):
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


def test_what_is_planned_may_exceed_the_claim_by_what_composition_is_inaccurate() -> None:
    fits = steps_within(2.0, DELTA, (), [STEP])
    assert fits is not None
    assert steps_within(2.0, DELTA, (), [STEP], planned=fits + 1) == fits + 1
    beyond = epsilon_of_history([Phase(1.0, 0.05, 2 * fits)], DELTA)
    assert beyond > 2.1
    assert steps_within(2.0, DELTA, (), [STEP], planned=2 * fits) == fits


def test_where_nobody_plans_no_more_are_looked_for_than_can_be_in_seconds() -> None:
    assert steps_within(8.0, DELTA, (), [Phase(20.0, 0.01, 1)]) == MOST_ASKED


def test_of_what_was_seen_and_what_was_told_the_dearer_counts() -> None:
    alone = steps_within(2.0, DELTA, (), [STEP])
    quieter = ([Phase(0.9, 0.05, 3)], [Phase(0.9, 0.05, 1)])
    told = steps_within(2.0, DELTA, [Phase(1.0, 0.05, 3)], [STEP], told=quieter)
    assert told == steps_within(2.0, DELTA, *quieter)
    assert told is not None
    assert alone is not None
    assert told < alone
    louder = ((), [Phase(2.0, 0.05, 1)])
    assert steps_within(2.0, DELTA, (), [STEP], told=louder) == alone
