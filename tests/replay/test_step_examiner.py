"""Nothing that goes wrong in an examination is raised, and the user's own code is named."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from plain_step import PlainStep, examined

from lightning_audit.replay.examiner import LEAST_RECORDS, QUESTIONS


def test_a_loop_without_lightning_is_examined_and_left_as_it_was() -> None:
    user, other = PlainStep(), PlainStep()
    found = examined(user)
    torch.manual_seed(5)
    other.take([tuple(part[:8] for part in other.data)])
    for mine, its in zip(user.module.parameters(), other.module.parameters(), strict=True):
        assert torch.equal(mine, its)
    assert {name for name, answer in found.answers.items() if answer.asked} == set(QUESTIONS)
    assert not any(answer.findings for answer in found.answers.values())
    assert found.seconds > 0.0
    assert found.step_times > 1.0


def test_some_questions_may_be_asked_alone() -> None:
    assert set(examined(PlainStep(), names=["replay.release"]).answers) == {"replay.release"}


def test_what_has_no_replays_asks_nothing_and_says_so() -> None:
    found = examined(PlainStep(), budget=0)
    assert "no replays were left" in found.answers["replay.clipping"].reason


def test_a_batch_that_is_too_small_is_not_asked() -> None:
    answers = examined(PlainStep(), records=LEAST_RECORDS - 1).answers
    assert {answer.reason for answer in answers.values()} == {"the batch is too small"}


def test_what_cannot_be_kept_is_a_reason_and_the_step_is_not_replayed() -> None:
    user = PlainStep()
    user.held = [SimpleNamespace(stream=iter([1]))]
    before = [p.detach().clone() for p in user.module.parameters()]
    answers = examined(user).answers
    assert all("holds an iterator" in answer.reason for answer in answers.values())
    assert not all(map(torch.equal, before, user.module.parameters()))  # its own step alone


@pytest.mark.parametrize("when", ["a replay", "the state"])
def test_exceptions_are_recorded(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
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
