"""The audit's own exceptions stay on its side of the boundary; all others pass."""

import logging
import time
from unittest.mock import Mock

import pytest
import torch
from training_support import PrivateModule, trainer_for

from lightning_audit import PrivacyAudit
from lightning_audit._validate import BadArgument
from lightning_audit.hooks.boundary import (
    OWN_TIME,
    Boundary,
    RunTime,
    around,
    attempt,
    current,
    entry,
    raised_in_audit,
    undoing,
    where,
)
from lightning_audit.hooks.step_hooks import ClosureHooks, MethodHook, StepHooks
from lightning_audit.record.store import OTHERS


class Refusal(Exception):
    pass


def fails(*_: object) -> None:
    raise MemoryError("private numbers: 0.123")


def inside(boundary: Boundary, make: object, *args: object, **kwargs: object) -> object:
    return boundary.run(make, args, kwargs)


def test_an_entry_that_fails_does_as_without_an_audit(caplog):
    boundary = Boundary(Refusal)
    called = inside(boundary, entry, fails, lambda given: given)
    with caplog.at_level(logging.INFO):
        assert called(3) == 3
    assert boundary.failure == "MemoryError in hooks.boundary.timed"
    assert "0.123" not in caplog.text
    assert current() is None


def test_an_entry_that_begins_a_training_runs_after_the_failure_of_an_earlier_one():
    boundary = Boundary()

    def setup(owner: Boundary) -> str:
        owner.begin()
        return "ran"

    begins = entry(setup, of=lambda owner: owner, begins=True)
    assert entry(fails, of=lambda owner: owner)(boundary) is None
    assert boundary.failure
    assert begins(boundary) == "ran"
    assert not boundary.failure
    assert entry(fails, lambda _: "left", lambda owner: owner, begins=True)(boundary) == "left"


@pytest.mark.parametrize("kind", [BadArgument, Refusal, KeyboardInterrupt, SystemExit])
def test_deliberate_exceptions_and_interrupts_pass(kind):
    def ours() -> None:
        raise kind("on purpose")

    boundary, undone = Boundary(Refusal), []
    boundary.on_leave(lambda: undone.append(1))
    with pytest.raises(kind, match="on purpose"):
        inside(boundary, entry, ours)()
    assert not boundary.failure
    assert bool(undone) == (kind in (KeyboardInterrupt, SystemExit))


def test_the_users_exception_passes_as_the_same_object():
    error = ValueError("theirs")

    def own() -> None:
        raise error

    boundary, seen = Boundary(), []
    called = inside(boundary, around, own, lambda: seen.append("before"), fails)
    with pytest.raises(ValueError, match="theirs") as raised:
        called()
    assert raised.value is error
    assert seen == ["before"]
    assert not boundary.failure


def test_a_call_of_the_users_runs_once_whatever_fails_around_it():
    for before, after in ((fails, fails), (lambda *_: None, fails), (fails, lambda *_: None)):
        boundary, rescued = Boundary(), Mock()
        assert inside(boundary, around, lambda x: x + 1, before, after, rescued)(1) == 2
        assert boundary.failure
        rescued.assert_called_once_with(2, 1)


@pytest.mark.parametrize("make", [entry, lambda ours: around(lambda: None, ours)])
def test_a_pass_of_the_audits_own_ends_where_a_hook_in_it_fails(make):
    boundary, went_on = Boundary(), []

    def own_pass() -> None:
        hook()
        went_on.append(1)

    hook = inside(boundary, make, fails)
    outer = inside(boundary, entry, own_pass, lambda: "as without an audit")
    assert outer() == "as without an audit"
    assert boundary.failure == "MemoryError in hooks.boundary.timed"
    assert not went_on


def test_what_is_under_way_is_undone_latest_first_and_raises_nothing(caplog):
    boundary, undone = Boundary(), []

    def ours() -> None:
        with undoing(lambda: undone.append("first")), undoing(lambda: undone.append("second")):
            raise RuntimeError

    inside(boundary, entry, ours)()
    assert undone[:2] == ["second", "first"]
    once = Mock(side_effect=[RuntimeError, None])  # cleaning up is tried twice
    assert attempt(once)
    assert not attempt(fails)
    assert "cleaning up failed" in caplog.text


def test_an_exception_is_told_by_its_type_and_the_innermost_function():
    with pytest.raises(MemoryError):
        entry(fails)()  # it is made outside of a training, and lets all pass
    with pytest.raises(TypeError) as raised:
        Boundary().run(None, (), {})  # type: ignore[arg-type]
    assert where(raised.value)[0] == "TypeError in hooks.boundary.timed"
    assert raised_in_audit(raised.value)


def test_a_failure_in_a_check_of_another_package_names_check_and_file(monkeypatch):
    monkeypatch.setitem(OTHERS, __name__, ["noise.median"])
    with pytest.raises(MemoryError) as raised:
        inside(Boundary(), fails)
    place = "the check noise.median, fails of test_boundary.py"
    assert where(raised.value)[0] == f"MemoryError in {place}"


# --- The audit's own time: what hooks take, and nothing of what the training takes.

PAUSE = 0.02


def _pause(*_: object) -> None:
    time.sleep(PAUSE)


def _enters() -> int:
    return 1


class _Slow:
    def step(self) -> str:
        time.sleep(4 * PAUSE)
        return "done"


def test_a_hook_on_a_method_counts_itself_and_not_the_method():
    slow, run = _Slow(), RunTime()
    MethodHook(slow, "step", _pause, _pause)
    assert slow.step() == "done"
    cost = run.cost()
    assert 2 * PAUSE <= cost["seconds"] < 4 * PAUSE
    assert cost["share"] == pytest.approx(0.5, abs=0.2)


@pytest.mark.parametrize("kind", [StepHooks, ClosureHooks])
@pytest.mark.parametrize("closure", [False, True])
def test_hooks_count_themselves_and_no_closure(kind, closure):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    hooks, run = kind(optimizer, _enters, _pause, _pause), RunTime()
    optimizer.step(lambda: time.sleep(4 * PAUSE) or 0.0) if closure else optimizer.step()
    assert 2 * PAUSE <= run.cost()["seconds"] < 4 * PAUSE
    hooks.remove()


def test_a_hook_that_runs_counts_up_to_now():
    run = RunTime()
    OWN_TIME.since = time.perf_counter() - 5.0
    assert run.cost()["seconds"] >= 5.0
    OWN_TIME.since = None
    assert run.cost() == {"seconds": 0.0, "share": 0.0}


@pytest.mark.training
def test_a_report_says_what_the_audit_took_of_its_training(tmp_path):
    audit = PrivacyAudit(report_dir=tmp_path, seed=0, on_violation="warn")
    began = time.perf_counter()
    trainer_for(tmp_path, audit, max_epochs=1).fit(PrivateModule())
    whole, cost = time.perf_counter() - began, audit.report.audit_cost
    assert 0.0 < cost["seconds"] < whole
    # Before and behind the audit's hooks other time goes by.
    assert cost["share"] >= cost["seconds"] / (whole - cost["seconds"])
    assert OWN_TIME.since is None
