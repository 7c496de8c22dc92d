"""What a reading says of a step that was left alone, and of one that was not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tapped import Tapped
from torch import nn

from lightning_audit.hooks.gradient_tap import Reading

COORDINATES = {0: np.array([0, 2, 3])}


class Doubles(torch.optim.SGD):
    """Changes the gradient inside of its step, in place, behind where it was read."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for p in self.param_groups[0]["params"]:
            p.grad *= 2.0
        super().step()


def reading(
    kind: Callable[..., torch.optim.Optimizer] = torch.optim.SGD, zero: int | None = None
) -> Reading:
    """Of a step whose gradient is 1, 2, 3, 4 but for a zero."""
    param = nn.Parameter(torch.ones(4))
    optimizer = kind([param], lr=0.5)
    tapped = Tapped(optimizer, [param], COORDINATES)
    param.grad = torch.arange(1.0, 5.0)
    if zero is not None:
        param.grad[zero] = 0.0
    optimizer.step()
    (found,) = tapped.readings
    return found


def test_a_step_that_was_left_alone_is_its_values_its_moves_and_nothing_else() -> None:
    found = reading()
    assert found.values.tolist() == [1.0, 3.0, 4.0]
    assert found.moves is not None
    assert found.moves.start.tolist() == [1.0, 1.0, 1.0]
    assert found.moves.update.tolist() == [-0.5, -1.5, -2.0]
    assert found.moves.outside is None  # nothing was watched before
    said = (found.replaced, found.unclear, found.at_cut, found.raw)
    assert said == (False, False, False, False)
    assert (found.factor, found.used, found.dead) == (None, None, None)


def test_entries_that_were_zero_when_they_were_read_are_told() -> None:
    found = reading(zero=2)
    assert found.dead is not None
    assert found.dead.tolist() == [False, True, False]


def test_a_gradient_that_a_class_of_ones_own_changes_in_its_step_is_unclear() -> None:
    found = reading(Doubles)
    assert found.unclear
    assert found.used is not None
    assert found.used.tolist() == [2.0, 6.0, 8.0]
    assert found.values.tolist() == [1.0, 3.0, 4.0]


@pytest.mark.parametrize("name", ["values", "replaced"])
def test_a_reading_is_not_changed_once_it_is_made(name: str) -> None:
    with pytest.raises(AttributeError, match=name):
        setattr(reading(), name, None)
