"""A source that takes part in nothing: its session reads the witnesses alone, and asks no more."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from bare_session import BareSession
from numpy.typing import NDArray

from lightning_audit.layout import FloatArray
from lightning_audit.record.store import NOT_PLANNED
from lightning_audit.session.planner import StepPlanner
from lightning_audit.session.sources import CanarySource, Tensors
from lightning_audit.session.step import PlannedStep

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning")


class NoCanaries(CanarySource):
    """What every source must say, and nothing else."""

    def __init__(self, planner: StepPlanner) -> None:
        self._planner = planner

    @property
    def oversize(self) -> float:
        return 1.0

    def unplanned(self) -> PlannedStep:
        return self._planner.empty(NOT_PLANNED)

    def take_out(self, plan: PlannedStep, divisor: float, grads: Tensors) -> FloatArray | None:
        return None

    def end_step(
        self, plan: PlannedStep, values: FloatArray, dead: NDArray[np.bool_] | None
    ) -> FloatArray:
        return np.zeros(len(plan.coins))


@pytest.mark.parametrize("announced", [True, False])
def test_a_source_may_leave_every_other_part_of_a_step_alone(announced: bool) -> None:
    bare, untouched = BareSession(), BareSession()
    bare.session.source = NoCanaries(bare.session.planner)
    untouched.session.detach()
    for _ in range(3):
        for one in (bare, untouched):
            one.backward(announced=announced)
            assert {len(p.grad_sample) for p in one.net.parameters()} == {5}
        bare.session.inject()
        for one in (bare, untouched):
            one.optimizer.step()
            one.optimizer.zero_grad()
    assert bare.column("canaries").tolist() == [NOT_PLANNED] * 3
    assert bare.column("coins").sum() == 0
    assert bare.session.pass_blockers() == []
    for mine, theirs in zip(bare.net.parameters(), untouched.net.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_it_keeps_nothing_and_comes_back_from_nothing() -> None:
    source: Any = NoCanaries(BareSession().session.planner)
    state = source.state()
    source.load(state)
    assert state == {}
    rows = torch.tensor([True, False])
    assert source.rows_of_data(rows) is rows
    assert not source.is_late()


def test_what_a_source_must_say_has_no_answer_of_its_own() -> None:
    source, plan = CanarySource(), NoCanaries(BareSession().session.planner).unplanned()
    for ask in (
        source.unplanned,
        lambda: source.oversize,
        lambda: source.take_out(plan, 1.0, []),
        lambda: source.end_step(plan, np.zeros(1), None),
    ):
        with pytest.raises(NotImplementedError):
            ask()
