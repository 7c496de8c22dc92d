"""Weights that change behind an update's end are seen, whichever way they are changed."""

from __future__ import annotations

import pytest
import torch

from lightning_audit.hooks.gradient_tap import WeightFingerprint


def made(dtype: torch.dtype = torch.float32) -> tuple[torch.nn.Linear, WeightFingerprint]:
    net = torch.nn.Linear(40, 30).to(dtype)
    return net, WeightFingerprint(list(net.parameters()))


def step(net: torch.nn.Linear, mark: WeightFingerprint) -> None:
    mark.start()
    with torch.no_grad():
        net.weight.add_(0.1)
    mark.end()


def test_updates_are_no_changes() -> None:
    net, mark = made()
    for _ in range(5):
        step(net, mark)
    assert (mark.within, mark.between) == (0, 0)


@pytest.mark.parametrize("change", ["data", "in place", "another tensor"])
def test_a_change_is_seen_within_an_epoch_and_between_two(change: str) -> None:
    net, mark = made()
    step(net, mark)
    for epoch in (False, True):
        if epoch:
            mark.start_epoch()
        with torch.no_grad():
            match change:
                case "data":
                    net.weight.data.mul_(0.5)
                case "in place":
                    net.weight.mul_(0.5)
                case _:
                    net.weight.data = net.weight.data * 0.5
        step(net, mark)
    assert (mark.within, mark.between) == (1, 1)


def test_weights_that_are_put_back_have_not_changed() -> None:
    net, mark = made()
    step(net, mark)
    kept = net.weight.detach().clone()
    net.weight.data.zero_()
    net.weight.data.copy_(kept)
    step(net, mark)
    assert mark.within == 0


def test_what_numpy_cannot_see_is_seen_by_the_number_of_changes() -> None:
    net, mark = made(torch.bfloat16)
    step(net, mark)
    step(net, mark)
    assert mark.within == 0
    with torch.no_grad():
        net.weight.add_(0.25)
    step(net, mark)
    assert mark.within == 1
