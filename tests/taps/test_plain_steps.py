"""Steps without DP-SGD are counted, those of exempt optimizers apart."""

from __future__ import annotations

import torch

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


def test_a_checkpoint_holds_the_counts() -> None:
    counts, one = PlainSteps(), optimizer(torch.optim.SGD)
    counts.watch([one], [""])
    one.step()
    again = PlainSteps()
    again.load(counts.state())
    assert again.state() == {"count": 1, "kind": "SGD", "exempt": {}}
