"""Processes that die, hang or outlive nobody."""

from __future__ import annotations

import threading

import pytest
from faulty_trainings import HALF_NOISE, Dies, Raises, row
from places import SUPPORT

from lightning_audit.selftest import pool
from lightning_audit.selftest.pool import run_all
from lightning_audit.selftest.result import Result

HERE = str(SUPPORT)


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(pool, "_MODULE", "stub_worker")
    monkeypatch.setenv("PYTHONPATH", HERE)
    return monkeypatch


def errors(results: tuple[Result, ...]) -> list[str]:
    assert {result.status for result in results} == {"crashed"}
    return [result.error for result in results]


def test_results_come_in_the_order_of_the_rows(stub: pytest.MonkeyPatch) -> None:
    stub.setenv("STUB_ACTS", "first,second,third")
    told: list[Result] = []
    results = run_all([HALF_NOISE] * 3, 1, told.append)
    assert errors(results) == ["first", "second", "third"]
    assert tuple(told) == results
    assert results[0].seconds == 0.5


def test_a_process_that_dies_is_a_row_and_another_one_goes_on(stub: pytest.MonkeyPatch) -> None:
    stub.setenv("STUB_ACTS", "first,die")
    results = run_all([HALF_NOISE] * 3, 1)
    died = "the process ended with exit code 3: out of memory"
    assert errors(results) == ["first", died, "first"]


def test_a_training_that_hangs_is_given_up(stub: pytest.MonkeyPatch) -> None:
    stub.setenv("STUB_ACTS", "hang")
    assert errors(run_all([HALF_NOISE], 1, limit=0.5)) == ["given up after 0.5 s"]


def test_an_interrupt_ends_every_process(stub: pytest.MonkeyPatch) -> None:
    stub.setenv("STUB_ACTS", "first,hang")
    started: list[pool._Worker] = []
    kind = pool._Worker

    def kept(scratch: str) -> pool._Worker:
        started.append(kind(scratch))
        return started[-1]

    stub.setattr(pool, "_Worker", kept)
    # The first answer arrives in a thread of the pool; the error reaches the caller.
    seen = threading.Event()

    def interrupt(result: Result) -> None:
        seen.set()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_all([HALF_NOISE] * 2, 1, interrupt)
    assert seen.is_set()
    assert [worker.alive for worker in started] == [False]


@pytest.mark.heavy
def test_trainings_that_break_off_are_rows_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONPATH", HERE, prepend=":")
    raised, died, found = run_all([row(Raises), row(Dies), HALF_NOISE], 1)
    assert (raised.status, raised.error) == ("crashed", "RuntimeError: the loss is")
    assert died.status == "crashed"
    assert died.error.startswith("the process ended with exit code 11")
    assert (found.status, found.named, found.finding) == ("found", True, "noise")
    assert found.flagged_at is not None
    assert found.flagged_at <= found.steps == 20
