"""The audit's own time: what hooks take, and nothing of what the training takes."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch
from training_support import PrivateModule, trainer_for

from lightning_audit import PrivacyAudit
from lightning_audit.hooks.boundary import OWN_TIME, RunTime
from lightning_audit.hooks.step_hooks import ClosureHooks, MethodHook, StepHooks

PAUSE = 0.02


def _pause(*_: object) -> None:
    time.sleep(PAUSE)


def _enters() -> int:
    return 1


class _Slow:
    def step(self) -> str:
        time.sleep(4 * PAUSE)
        return "done"


def test_a_hook_on_a_method_counts_itself_and_not_the_method() -> None:
    slow, run = _Slow(), RunTime()
    MethodHook(slow, "step", _pause, _pause)
    assert slow.step() == "done"
    cost = run.cost()
    assert 2 * PAUSE <= cost["seconds"] < 4 * PAUSE
    assert cost["share"] == pytest.approx(0.5, abs=0.2)


@pytest.mark.parametrize("kind", [StepHooks, ClosureHooks])
@pytest.mark.parametrize("closure", [False, True])
def test_hooks_on_a_step_count_themselves_and_not_the_closure(
    kind: type[StepHooks], closure: bool
) -> None:
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    hooks = kind(optimizer, _enters, _pause, _pause)
    run = RunTime()
    optimizer.step(lambda: time.sleep(4 * PAUSE) or 0.0) if closure else optimizer.step()
    assert 2 * PAUSE <= run.cost()["seconds"] < 4 * PAUSE
    hooks.remove()


def test_a_hook_that_runs_counts_up_to_now() -> None:
    run = RunTime()
    OWN_TIME.since = time.perf_counter() - 5.0
    assert run.cost()["seconds"] >= 5.0
    OWN_TIME.since = None
    assert run.cost() == {"seconds": 0.0, "share": 0.0}


@pytest.mark.training
def test_a_report_says_what_the_audit_took_of_its_training(tmp_path: Path) -> None:
    audit = PrivacyAudit(report_dir=tmp_path, seed=0, on_violation="warn")
    began = time.perf_counter()
    trainer_for(tmp_path, audit, max_epochs=1).fit(PrivateModule())
    whole = time.perf_counter() - began
    assert audit.report is not None
    cost = audit.report.audit_cost
    assert 0.0 < cost["seconds"] < whole
    # Before and behind the audit's hooks other time goes by.
    assert cost["share"] >= cost["seconds"] / (whole - cost["seconds"])
    assert OWN_TIME.since is None
