"""Processes that die, hang or outlive nobody."""

import os
import pickle
from dataclasses import replace
from typing import Any, get_args

import pytest
from made_report import made_report
from stub_trainings import row, train

from lightning_audit.results.audit_report import AuditReport, CheckResult, LikelyFault, Verdict
from lightning_audit.testing.faults import FAULTS
from lightning_audit.testing.selftest import Row
from lightning_audit.testing.selftest_pool import (
    FAILURES,
    Broken,
    Result,
    Status,
    _answer,
    finding_of,
    run_all,
    status_of,
)


def answers(*acts: str, jobs: int = 1, limit: float = 60.0) -> tuple[Result, ...]:
    return run_all([row(act) for act in acts], jobs, train, limit=limit)


def told(results: tuple[Result, ...]) -> list[str]:
    return [result.error or result.fault for result in results]


def test_results_come_in_the_order_of_the_rows_from_one_process_a_job():
    seen: list[Result] = []
    acts = ["first", "second", "third", "fourth"]
    results = run_all([row(act) for act in acts], 2, train, seen.append)
    assert told(results) == acts
    assert sorted(seen, key=lambda result: acts.index(result.fault)) == list(results)
    assert len({result.sentence for result in results}) <= 2


def test_a_process_that_dies_or_a_training_that_raises_is_a_row_and_the_others_go_on():
    died = "the process ended with exit code 3: out of memory"
    before, dead, after, raised, last = answers("first", "die", "second", "raise", "third")
    assert told((before, dead, after, last)) == ["first", died, "second", "third"]
    assert (raised.status, raised.error) == ("crashed", "RuntimeError: the loss is")
    assert after.sentence == last.sentence  # one process


def test_a_training_that_hangs_is_given_up_while_others_go_on():
    assert told(answers("hang", "first", jobs=2, limit=2.0)) == ["stopped after 2 s", "first"]


def test_an_interrupt_ends_every_process():
    seen: list[int] = []

    def interrupt(result: Result) -> None:
        seen.append(int(result.sentence))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_all([row("first"), row("hang")], 2, train, interrupt)
    (process,) = seen
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


def test_processes_leave_the_environment_as_it_was(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    before = dict(os.environ)
    answers("first")
    assert dict(os.environ) == before


SEEN = FAULTS["half_noise"]
OR_NONE = replace(SEEN, otherwise="no_noise")
#: Of a check that warns, by its whole message; of one that does not, by its evidence; of a note.
WARNED = replace(SEEN, ends="INCONCLUSIVE", check="noise.excess", sentence="seen")
SHOWN = replace(SEEN, ends="INCONCLUSIVE", check="noise", shows="size")
NOTED = replace(SEEN, ends="INCONCLUSIVE", sentence="a note")


def report(outcome: Any = "PASS", name: str = "", size: int = 0, **statuses: str) -> AuditReport:
    checks = tuple(
        CheckResult(name.replace("_", "."), "mechanism", status, "seen", evidence={"size": size})  # type: ignore[arg-type]
        for name, status in statuses.items()
    )
    faults = (LikelyFault(name, "it is small", "noise"),) if name else ()
    verdict = Verdict(outcome, None, "seen", faults=faults)
    return made_report(verdict=verdict, checks=checks, notes=("a note of",) + ("a note",) * size)


VIOLATED = report("VIOLATION", "noise_too_small", mu="violated", noise="violated")
OTHERWISE = report("VIOLATION", "no_noise", mu="violated", noise="violated")
ALLOWED = report("PASS", "noise_too_small", noise="violated")
NOTHING = report("PASS", noise="ok")
TOLD = report("PASS", size=1, mu="warned", noise="ok", noise_excess="warned")


@pytest.mark.parametrize(
    ("fault", "seen", "status", "named"),
    [
        (SEEN, VIOLATED, "found", True),
        (SEEN, OTHERWISE, "named otherwise", False),
        (OR_NONE, VIOLATED, "found", True),
        (OR_NONE, OTHERWISE, "found", True),
        (SEEN, ALLOWED, "not found", False),
        (SEEN, NOTHING, "not found", False),
        (SEEN, TOLD, "not found", False),
        (WARNED, TOLD, "warned", True),
        (replace(WARNED, sentence=""), TOLD, "warned", True),
        (replace(WARNED, sentence="see"), TOLD, "named otherwise", False),
        (WARNED, NOTHING, "not found", False),
        (SHOWN, TOLD, "warned", True),
        (SHOWN, NOTHING, "not found", False),
        (NOTED, TOLD, "warned", True),
        (NOTED, NOTHING, "not found", False),
        (WARNED, VIOLATED, "accused", None),
        (None, NOTHING, "not accused", None),  # of a healthy training
        (None, VIOLATED, "accused", None),
    ],
)
def test_answers_are_the_faults(fault, seen, status, named):
    row = Row("fault" if fault else "healthy", fault or SEEN, "Opacus")
    assert status_of(row, seen) == (status, named)


def test_every_answer_but_the_wanted_ones_fails():
    assert {*get_args(Status)} - {*FAILURES} == {"found", "warned", "not accused"}


@pytest.mark.parametrize(
    ("fault", "seen", "name"),
    [
        (SEEN, VIOLATED, "noise"),
        (SEEN, TOLD, "mu"),
        (WARNED, TOLD, "noise.excess"),
        (SEEN, NOTHING, None),
    ],
)
def test_the_finding_is_the_verdicts_or_one_that_warns(fault, seen, name):
    found = finding_of(Row("fault", fault, "Opacus"), seen)
    assert (found.name if found else None) == name


def test_an_error_is_an_answer_of_one_line(capsys):
    answer = _answer(pickle.dumps((train, row("raise"))))
    assert isinstance(answer, Broken)
    assert answer.error == "RuntimeError: the loss is"
    assert answer.seconds >= 0
    assert "selftest: RuntimeError: the loss is\nno number" in capsys.readouterr().err


def test_a_task_that_cannot_be_read_is_an_answer_too():
    assert "UnpicklingError" in _answer(b"garbled").error
