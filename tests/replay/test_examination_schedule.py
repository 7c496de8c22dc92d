"""Steps are examined at once, then rarer, and no longer than the training can spare."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_audit.replay.examiner import FIRST_REPLAYS, LATER_SHARE, NEVER, Schedule

#: In replayed steps.
USUAL = {"a": 1.0, "b": 2.0, "c": 3.0}
QUESTIONS = list(USUAL)


def steps_of(schedule: Schedule, last: int = 10_000) -> list[int]:
    """The steps of examinations that cost nothing."""
    found = []
    while (due := schedule.due) <= last:
        names = schedule.next_questions(float(due))
        schedule.note(due, names, 0.0, float(due))
        found.append(due)
    return found


def test_none_are_made_where_none_are_wanted() -> None:
    assert Schedule(0, 1, USUAL).due == NEVER


@given(count=st.integers(1, 8), seed=st.integers(0, 1000))
def test_as_many_as_are_wanted_the_first_at_once(count: int, seed: int) -> None:
    schedule = Schedule(count, seed, USUAL)
    assert schedule.budget(0.0) is None
    found = steps_of(schedule, NEVER - 1)
    assert len(found) == count
    assert found[0] == 1
    assert found == sorted(set(found))
    assert found[2:] == [] or found[2] <= 9


@given(seed=st.integers(0, 1000))
def test_later_ones_are_rarer(seed: int) -> None:
    found = steps_of(Schedule("auto", seed, USUAL), 100_000)
    assert found[0] == 1
    assert sum(step <= 1000 for step in found) > sum(step > 99_000 for step in found)


def test_the_first_asks_everything_and_later_ones_one_question_in_turns() -> None:
    schedule = Schedule("auto", 0, USUAL)
    assert schedule.budget(0.0) == FIRST_REPLAYS
    asked = []
    for step in range(4):
        names = schedule.next_questions(float(step))
        asked.append(names)
        schedule.note(step + 1, names, 0.0, float(step))
    assert asked == [QUESTIONS, ["a"], ["b"], ["c"]]


def test_later_ones_take_no_more_than_their_share_of_the_time() -> None:
    schedule, now, spent = Schedule("auto", 0, USUAL), 0.0, 0.0
    schedule.note(1, QUESTIONS, 3.0, now, replayed=3)
    for step in range(2, 5000):
        now += 1.0
        if step < schedule.due:
            continue
        names = schedule.next_questions(now)
        if names:
            spent += USUAL[names[0]]
            left = schedule.budget(now)
            assert left is not None
            assert left >= USUAL[names[0]]
            schedule.note(step, names, USUAL[names[0]], now)
        else:
            schedule.postpone(step)
        assert spent <= LATER_SHARE * now + 1e-9
    assert spent > 10.0


def test_what_had_no_replays_left_is_asked_soon_whatever_the_time() -> None:
    schedule = Schedule("auto", 0, USUAL)
    schedule.note(1, QUESTIONS, 3.0, 0.0, replayed=30, late=["c"])
    assert 1 < schedule.due <= 11
    assert schedule.next_questions(0.0) == ["c"]
    assert schedule.budget(0.0) == FIRST_REPLAYS
    schedule.note(schedule.due, ["c"], 3.0, 0.0)
    assert schedule.next_questions(0.05 / LATER_SHARE) == []
    assert schedule.next_questions(0.11 / LATER_SHARE) == ["a"]


def test_what_a_step_cannot_answer_is_asked_of_two_more_and_then_as_time_allows() -> None:
    schedule = Schedule("auto", 0, USUAL)
    asked = []
    for _ in range(3):
        asked.append(schedule.next_questions(0.0))
        schedule.note(schedule.due, asked[-1], 0.3, 0.0, replayed=3, unanswered=["b", "c"])
    assert asked == [QUESTIONS, ["b", "c"], ["b", "c"]]
    assert schedule.next_questions(0.0) == []


@given(seed=st.integers(0, 1000), clock=st.floats(1e-3, 1e3))
def test_questions_with_no_answer_are_asked_at_the_same_steps_on_every_machine(
    seed: int, clock: float
) -> None:
    def steps(factor: float) -> list[tuple[int, list[str]]]:
        schedule, found = Schedule("auto", seed, USUAL), []
        for late in (["b", "c"], ["c"], []):
            due, names = schedule.due, schedule.next_questions(factor * schedule.due)
            schedule.note(due, names, factor, factor * due, replayed=80, late=late)
            found.append((due, names))
        return found

    assert steps(clock) == steps(1.0)


def test_a_question_for_which_replays_always_run_out_waits_for_time_in_the_end() -> None:
    schedule = Schedule("auto", 0, USUAL)
    asked = []
    while names := schedule.next_questions(0.0):
        asked.append(names)
        schedule.note(schedule.due, names, 0.3, 0.0, replayed=3, late=["c"])
    assert asked == [QUESTIONS, *4 * [["c"]]]


def test_a_question_that_broke_off_for_want_of_time_waits_for_twice_as_much() -> None:
    schedule = Schedule("auto", 0, USUAL)
    schedule.note(1, QUESTIONS, 3.0, 0.0, replayed=30)
    schedule.note(2, ["a"], 0.5, 1.0, late=["a"])
    # Half a second was spent, and twice as much is needed.
    assert schedule.next_questions(1.49 / LATER_SHARE) == []
    assert schedule.next_questions(1.51 / LATER_SHARE) == ["a"]


@pytest.mark.parametrize("wanted", ["auto", 3])
def test_a_question_that_is_pressing_is_asked_of_the_next_step(wanted: int | str) -> None:
    schedule = Schedule(wanted, 0, USUAL)
    schedule.note(1, QUESTIONS, 0.3, 0.0, replayed=3)
    schedule.due = 500
    schedule.hasten("b")
    assert schedule.due == 1
    assert schedule.next_questions(0.0) == (["b"] if wanted == "auto" else QUESTIONS)
