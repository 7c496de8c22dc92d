"""Steps are examined in time, every question is asked, and nothing is raised."""

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from plain_step import ANSWERED, OverTheBatch, PlainStep, examined
from torch import nn
from training_matrix import ROWS
from training_support import trainer_for

from lightning_audit import PrivacyAudit
from lightning_audit.replay import clipping, examiner, noise, records
from lightning_audit.replay.examiner import (
    FIRST_REPLAYS,
    LATER_SHARE,
    LATEST_SHARE,
    LEAST_RECORDS,
    NEVER,
    Examined,
    Schedule,
    examine_step,
)
from lightning_audit.run import examinations

# --- Steps are examined at once, then rarer, and no longer than the training can spare.

#: In replayed steps.
USUAL = {"a": 1.0, "b": 2.0, "c": 3.0}
NAMES = list(USUAL)


def steps_of(schedule: Schedule, last: int = 10_000) -> list[int]:
    """The steps of examinations that cost nothing."""
    found = []
    while (due := schedule.due) <= last:
        schedule.note(due, schedule.next_questions(float(due)), 0.0, float(due))
        found.append(due)
    return found


def examined_once(**told: Any) -> Schedule:
    schedule = Schedule("auto", 0, USUAL)
    schedule.note(1, NAMES, 3.0, 0.0, replayed=30, **told)
    return schedule


def test_none_are_made_where_none_are_wanted():
    assert Schedule(0, 1, USUAL).due == NEVER


@given(count=st.integers(1, 8), seed=st.integers(0, 1000))
def test_as_many_as_are_wanted_the_first_at_once(count, seed):
    schedule = Schedule(count, seed, USUAL)
    assert schedule.budget(0.0) is None
    found = steps_of(schedule, NEVER - 1)
    assert len(found) == count
    assert (found[0], found) == (1, sorted(set(found)))
    assert found[2:] == [] or found[2] <= 9


@given(seed=st.integers(0, 1000))
def test_later_ones_are_rarer(seed):
    found = steps_of(Schedule("auto", seed, USUAL), 100_000)
    assert found[0] == 1
    assert sum(step <= 1000 for step in found) > sum(step > 99_000 for step in found)


def test_the_first_asks_everything_and_later_ones_replay_as_much_for_each_question():
    schedule = Schedule("auto", 0, USUAL)
    assert schedule.budget(0.0) == FIRST_REPLAYS
    replayed = Counter[str]()
    for step in range(60):
        names = schedule.next_questions(float(step))
        assert names == NAMES if step == 0 else len(names) == 1
        replayed.update({name: int(USUAL[name]) for name in names})
        schedule.note(step + 1, names, 0.0, float(step))
    assert max(replayed.values()) - min(replayed.values()) <= max(USUAL.values())


def test_later_ones_take_no_more_than_their_share_of_the_time():
    schedule, now, spent = Schedule("auto", 0, USUAL), 0.0, 0.0
    schedule.note(1, NAMES, 3.0, now, replayed=3)
    for step in range(2, 5000):
        now += 1.0
        if step < schedule.due:
            continue
        names = schedule.next_questions(now)
        if names:
            spent += USUAL[names[0]]
            assert schedule.budget(now) >= USUAL[names[0]]
            schedule.note(step, names, USUAL[names[0]], now)
        else:
            schedule.postpone(step)
        assert spent <= LATER_SHARE * now + 1e-9
    # Once each was tested twice, they take less.
    assert 10.0 < spent <= LATEST_SHARE * now


def test_what_had_no_replays_left_is_asked_soon_whatever_the_time():
    schedule = examined_once(late=["c"])
    assert 1 < schedule.due <= 11
    assert schedule.next_questions(0.0) == ["c"]
    assert schedule.budget(0.0) == FIRST_REPLAYS
    schedule.note(schedule.due, ["c"], 3.0, 0.0)
    assert schedule.next_questions(0.05 / LATER_SHARE) == []
    assert schedule.next_questions(0.11 / LATER_SHARE) == ["a"]


def test_what_a_step_cannot_answer_is_asked_of_two_more_and_then_as_time_allows():
    schedule, asked = Schedule("auto", 0, USUAL), []
    for _ in range(3):
        asked.append(schedule.next_questions(0.0))
        schedule.note(schedule.due, asked[-1], 0.3, 0.0, replayed=3, unanswered=["b", "c"])
    assert asked == [NAMES, ["b", "c"], ["b", "c"]]
    assert schedule.next_questions(0.0) == []


@given(seed=st.integers(0, 1000), clock=st.floats(1e-3, 1e3))
def test_unanswered_questions_come_at_the_same_steps_anywhere(seed, clock):
    def steps(factor: float) -> list[tuple[int, list[str]]]:
        schedule, found = Schedule("auto", seed, USUAL), []
        for late in (["b", "c"], ["c"], []):
            due, names = schedule.due, schedule.next_questions(factor * schedule.due)
            schedule.note(due, names, factor, factor * due, replayed=80, late=late)
            found.append((due, names))
        return found

    assert steps(clock) == steps(1.0)


def test_a_question_for_which_replays_always_run_out_waits_for_time_in_the_end():
    schedule, asked = Schedule("auto", 0, USUAL), []
    while names := schedule.next_questions(0.0):
        asked.append(names)
        schedule.note(schedule.due, names, 0.3, 0.0, replayed=3, late=["c"])
    assert asked == [NAMES, *4 * [["c"]]]


def test_a_question_that_broke_off_for_want_of_time_waits_for_twice_as_much():
    schedule = examined_once()
    schedule.note(2, ["a"], 0.5, 1.0, late=["a"])
    # Half a second was spent, and twice as much is needed.
    assert schedule.next_questions(1.49 / LATER_SHARE) == []
    assert schedule.next_questions(1.51 / LATER_SHARE) == ["a"]


def test_a_later_examination_waits_for_the_time_that_its_question_took():
    schedule = examined_once(costs=dict.fromkeys(NAMES, 0.5))
    rest = 3.0 - 0.5 * len(NAMES)  # of the first examination's 3 s
    enough = (rest + 0.5) / LATER_SHARE
    assert schedule.next_questions(0.99 * enough) == []
    assert len(schedule.next_questions(1.01 * enough)) == 1


@pytest.mark.parametrize("wanted", ["auto", 3])
def test_a_question_that_is_pressing_is_asked_of_the_next_step(wanted):
    schedule = Schedule(wanted, 0, USUAL)
    schedule.note(1, NAMES, 0.3, 0.0, replayed=3)
    schedule.due = 500
    schedule.hasten("b")
    assert schedule.due == 1
    assert schedule.next_questions(0.0) == (["b"] if wanted == "auto" else NAMES)


# --- Every question is asked of a net of any size, within the replays of a first examination.


class Busy(PlainStep):
    """A step that takes its time on a whole batch, and none on a few records."""

    def take(self, batches: Sequence[Any]) -> None:
        end = time.thread_time() + 0.02 * any(len(x) > 6 for x, _ in batches)
        while time.thread_time() < end:
            """Compute."""
        super().take(batches)


def net(*more: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 40), *more, nn.ReLU(), nn.Linear(40, 3))


@pytest.fixture
def _large(monkeypatch):
    """The net of 403 weights is larger than what is kept of any net."""
    monkeypatch.setattr(clipping, "_ENTRIES", 400)
    monkeypatch.setattr(noise, "_ENTRIES", 400)
    monkeypatch.setattr(noise, "_LOOKED_AT_SOON", 100)
    monkeypatch.setattr(records, "_ENTRIES", 800)
    monkeypatch.setattr(records, "_LEAST_ENTRIES", 50)


@pytest.mark.usefixtures("_large")
def test_no_question_is_refused_for_the_size_of_a_net():
    found = examined(PlainStep(net=net()), budget=FIRST_REPLAYS, trials=8)
    assert {name: answer.reason for name, answer in found.answers.items()} == dict.fromkeys(
        ANSWERED, ""
    )
    assert not any(answer.findings for answer in found.answers.values())


@pytest.mark.usefixtures("_large")
def test_of_a_large_net_too_records_that_depend_on_each_other_are_found():
    user = PlainStep(net=net(OverTheBatch()))
    (finding,) = examined(user, names=["coupling"]).answers["coupling"].findings
    assert finding.size > 0.1


def test_an_examination_is_stated_in_times_of_the_step_on_the_users_own_batch():
    found = examined(Busy(), budget=FIRST_REPLAYS, trials=8)
    assert 10 < found.step_times < found.steps


def first_examination(folder: Path, row: Any) -> tuple[int, dict[str, str]]:
    """Replays of the first examination of a training of the matrix, and what was not asked."""
    counts: list[int] = []

    def counted(*given: Any, **named: Any) -> Examined:
        found = examine_step(*given, **named)
        counts.append(found.steps)
        return found

    torch.manual_seed(0)
    audit = PrivacyAudit(**{**row.audit, "seed": 1, "on_violation": "warn", "examinations": "auto"})
    arguments = {**row.trainer, "max_steps": 2}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(examinations, "examine_step", counted)
        trainer_for(folder, audit, **arguments).fit(row.module())
    assert audit.report is not None
    replayed = [
        c for c in audit.report.checks if c.name.startswith("replay") or c.name == "coupling"
    ]
    return counts[0], {check.name: check.message for check in replayed}


@pytest.mark.parametrize("row", ROWS[::6], ids=lambda row: row.name)
def test_a_first_examination_is_within_its_replays(tmp_path, row):
    assert 10 < first_examination(tmp_path, row)[0] <= FIRST_REPLAYS == 92


class Slow:
    """A clock of a machine that is busy with other programs: each look is a minute later."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        self.now += 60.0
        return self.now

    thread_time = perf_counter


def test_a_busy_machine_asks_as_quiet_ones(tmp_path, monkeypatch):
    quiet = first_examination(tmp_path / "quiet", ROWS[0])
    for module in (examinations, examiner):
        monkeypatch.setattr(module, "time", Slow())
    assert first_examination(tmp_path / "busy", ROWS[0]) == quiet
    assert quiet[0] > 40


# --- Nothing that goes wrong in an examination is raised, and the user's own code is named.


def test_a_loop_without_lightning_is_examined_and_left_as_it_was():
    user, other = PlainStep(), PlainStep()
    found = examined(user)
    torch.manual_seed(5)
    other.take([tuple(part[:8] for part in other.data)])
    for mine, its in zip(user.module.parameters(), other.module.parameters(), strict=True):
        assert torch.equal(mine, its)
    assert {name for name, answer in found.answers.items() if answer.asked} == ANSWERED
    assert not any(answer.findings for answer in found.answers.values())
    assert found.seconds > 0.0
    assert found.step_times > 1.0


def test_a_question_may_be_asked_alone_and_without_replays_says_so():
    (answer,) = examined(PlainStep(), names=["replay.clipping"], budget=0).answers.values()
    assert "no replays were left" in answer.reason


def test_a_batch_that_is_too_small_is_not_asked():
    answers = examined(PlainStep(), records=LEAST_RECORDS - 1).answers
    assert {answer.reason for answer in answers.values()} == {"the batch is too small"}


def test_what_cannot_be_kept_is_a_reason_and_the_step_is_not_replayed():
    user = PlainStep()
    user.held = [SimpleNamespace(stream=iter([1]))]
    before = [p.detach().clone() for p in user.module.parameters()]
    assert all("holds an iterator" in answer.reason for answer in examined(user).answers.values())
    assert not all(map(torch.equal, before, user.module.parameters()))  # its own step alone


@pytest.mark.parametrize("when", ["a replay", "the state"])
def test_exceptions_are_recorded(when, monkeypatch):
    user = PlainStep()

    def fail(*_: object) -> Any:
        raise RuntimeError("out of order")

    take, calls = user.take, iter([True])
    if when == "a replay":
        monkeypatch.setattr(user, "take", lambda b: take(b) if next(calls, False) else fail())
    else:
        monkeypatch.setattr(PlainStep, "roots", fail)
    answers = examined(user).answers
    assert all("RuntimeError" in answer.reason for answer in answers.values())
    assert not any("out of order" in answer.reason for answer in answers.values())
    assert {answer.repeated for answer in answers.values()} == {when != "a replay"}


@pytest.mark.parametrize(
    ("batch", "told"),
    [(None, "show your own by audit.batches"), ({"x": torch.ones(3), "y": object()}, "collate_fn")],
    ids=["unseen", "of unknown form"],
)
def test_a_batch_that_cannot_be_split_says_what_to_do(batch, told):
    assert told in examiner._unfit(SimpleNamespace(batches=[batch])).reason
