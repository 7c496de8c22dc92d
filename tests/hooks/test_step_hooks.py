"""Whoever installs hooks is told where a step is, and of nothing once they are off."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from lightning_audit.hooks.step_hooks import ClosureHooks, StepHooks, is_torchs, steps_of


class Own(torch.optim.SGD):
    """Runs its closure, then its parent's step."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        if closure is not None:
            closure()
        return super().step()


def told_of(
    kind: type[StepHooks], optimizer_class: type[torch.optim.Optimizer], *, closure: bool
) -> list[str]:
    """What is told of two steps, the second without hooks, and when a closure runs."""
    param = nn.Parameter(torch.zeros(2))
    param.grad = torch.ones(2)
    optimizer, told, depth = optimizer_class([param], lr=0.1), [], [0]

    def enters() -> int:
        depth[0] += 1
        return depth[0]

    def leaves() -> None:
        told.append(f"leaves {depth[0]}")
        depth[0] -= 1

    hooks = kind(optimizer, enters, lambda level: told.append(f"arrives {level}"), leaves)

    def run() -> float:
        told.append("closure")
        return 0.0

    given = (run,) if closure else ()
    optimizer.step(*given)
    hooks.remove()
    told.append("off")
    optimizer.step(*given)
    return told


@pytest.mark.parametrize("kind", [StepHooks, ClosureHooks])
def test_a_step_and_its_parents_step_are_told_by_their_depth(kind: type[StepHooks]) -> None:
    assert told_of(kind, torch.optim.SGD, closure=False) == ["arrives 1", "leaves 1", "off"]
    nested = ["arrives 1", "arrives 2", "leaves 2", "leaves 1", "off"]
    assert told_of(kind, Own, closure=False) == nested


def test_gradients_arrive_when_the_closure_that_makes_them_is_done() -> None:
    told = told_of(ClosureHooks, torch.optim.SGD, closure=True)
    assert told == ["closure", "arrives 1", "leaves 1", "off", "closure"]
    told = told_of(StepHooks, torch.optim.SGD, closure=True)
    assert told == ["arrives 1", "closure", "leaves 1", "off", "closure"]


def test_steps_are_those_of_a_class_and_its_parents() -> None:
    own, parents, *_ = steps_of(Own)
    assert (own, is_torchs(own)) == (vars(Own)["step"], False)
    assert is_torchs(parents)
