"""Processes that die, hang or outlive nobody."""

from __future__ import annotations

import os

import pytest
from faulty_trainings import HALF_NOISE, Dies, Raises
from faulty_trainings import row as training_row
from stub_trainings import row, train

from lightning_audit.testing.selftest_pool import Result, run_all


def answers(*acts: str, jobs: int = 1, limit: float = 60.0) -> tuple[Result, ...]:
    return run_all([row(act) for act in acts], jobs, limit=limit, train=train)


def told(results: tuple[Result, ...]) -> list[str]:
    return [result.error or result.fault for result in results]


def test_results_come_in_the_order_of_the_rows_from_one_process_a_job() -> None:
    seen: list[Result] = []
    acts = ["first", "second", "third", "fourth"]
    results = run_all([row(act) for act in acts], 2, seen.append, train=train)
    assert told(results) == acts
    assert sorted(seen, key=acts_of(acts)) == list(results)
    assert len({result.sentence for result in results}) <= 2


def acts_of(acts: list[str]):
    return lambda result: acts.index(result.fault)


def test_a_process_that_dies_is_a_row_and_another_one_goes_on() -> None:
    died = "the process ended with exit code 3: out of memory"
    assert told(answers("first", "die", "second")) == ["first", died, "second"]


def test_a_training_that_raises_is_a_row_and_its_process_goes_on() -> None:
    before, raised, after = answers("first", "raise", "second")
    assert (raised.status, raised.error) == ("crashed", "RuntimeError: the loss is")
    assert before.sentence == after.sentence


def test_a_training_that_hangs_is_given_up_while_others_go_on() -> None:
    results = answers("hang", "first", jobs=2, limit=2.0)
    assert told(results) == ["stopped after 2 s", "first"]


def test_an_interrupt_ends_every_process() -> None:
    seen: list[int] = []

    def interrupt(result: Result) -> None:
        seen.append(int(result.sentence))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_all([row("first"), row("hang")], 2, interrupt, train=train)
    (process,) = seen
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


def test_the_environment_is_as_it_was_when_processes_have_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    before = dict(os.environ)
    answers("first")
    assert dict(os.environ) == before


@pytest.mark.heavy
def test_trainings_that_break_off_are_rows_and_the_others_go_on() -> None:
    raised, died, found = run_all([training_row(Raises), training_row(Dies), HALF_NOISE], 1)
    assert (raised.status, raised.error) == ("crashed", "RuntimeError: the loss is")
    assert died.status == "crashed"
    assert died.error.startswith("the process ended with exit code 11")
    assert (found.status, found.named, found.finding) == ("found", True, "noise")
    assert found.flagged_at is not None
    assert found.flagged_at <= found.steps == 20
