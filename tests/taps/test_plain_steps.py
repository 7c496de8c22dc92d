"""Steps without DP-SGD are counted, those of exempt optimizers apart."""

from __future__ import annotations

import pytest
import torch

from lightning_audit.taps.boundary import StepRefused
from lightning_audit.taps.plain_steps import PlainSteps


def optimizer(kind: type[torch.optim.Optimizer]) -> torch.optim.Optimizer:
    param = torch.nn.Parameter(torch.zeros(2))
    param.grad = torch.ones(2)
    return kind([param], lr=0.1)


def test_steps_are_counted_until_others_are_watched() -> None:
    counts, one, other = PlainSteps(), optimizer(torch.optim.SGD), optimizer(torch.optim.Adam)
    counts.watch([one, other], ["", "Adam (why)"])
    for each in (one, other, other):
        each.step()
    assert (counts.count, counts.kind, counts.exempt) == (1, "SGD", {"Adam (why)": 2})
    counts.watch([other], [""])
    one.step()
    other.step()
    assert (counts.count, counts.kind) == (2, "Adam")
    counts.detach()
    other.step()
    assert counts.count == 2


def test_the_first_step_that_is_not_exempt_is_refused() -> None:
    counts, one, exempt = PlainSteps(), optimizer(torch.optim.SGD), optimizer(torch.optim.Adam)

    def refuse(kind: str) -> None:
        raise StepRefused(kind)

    counts.refuse = refuse
    counts.watch([one, exempt], ["", "Adam (why)"])
    exempt.step()
    (param,) = one.param_groups[0]["params"]
    before = param.detach().clone()
    with pytest.raises(StepRefused, match="SGD"):
        one.step()
    assert torch.equal(param, before)
    assert (counts.count, counts.exempt) == (0, {"Adam (why)": 1})


def test_a_checkpoint_holds_the_counts() -> None:
    counts, one = PlainSteps(), optimizer(torch.optim.SGD)
    counts.watch([one], [""])
    one.step()
    again = PlainSteps()
    again.load(counts.state())
    assert again.state() == {"count": 1, "kind": "SGD", "exempt": {}}
