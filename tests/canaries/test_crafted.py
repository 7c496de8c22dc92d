"""`Crafted`: an input whose gradient is orthogonal to the data's."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lightning_audit.canaries import Crafted
from lightning_audit.canaries.inputs import Sample, cosine, loss_of, sample_of


def _batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(64, 8, generator=generator) + 0.5
    return x, torch.randint(0, 10, (64,), generator=generator)


def _net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 10))


def _cosine(canary: Crafted, net: nn.Module, sample: Sample) -> float:
    params = list(net.parameters())
    gradients = [
        torch.autograd.grad(loss_of(canary, net, batch, sample), params)
        for batch in (sample.batch, _batch())
    ]
    return abs(float(cosine(*gradients)))


@pytest.mark.parametrize("amplitude", [1.0, 10.0])
def test_its_gradient_is_nearly_orthogonal_to_the_batchs(amplitude: float) -> None:
    net, canary = _net(), Crafted(amplitude=amplitude)
    before, after = [], []
    for row in range(4):
        sample = sample_of(_batch(), row, None, None)
        made = canary.made(net, sample, _batch(), list(net.parameters()))
        assert made.label is not None
        scaled = sample.with_input(amplitude * sample.input).with_label(int(made.label))
        before.append(_cosine(canary, net, scaled))
        after.append(_cosine(canary, net, made))
    assert max(after) < 0.02
    assert max(after) < 0.3 * max(before)
    assert canary.at_step(net, made) is made


def test_crafting_leaves_module_and_batch_alone() -> None:
    net, batch = _net(), _batch()
    before = [p.detach().clone() for p in net.parameters()]
    sample = sample_of(batch, 0, None, None)
    Crafted(steps=3).made(net, sample, batch, list(net.parameters()))
    assert all(torch.equal(p, b) for p, b in zip(net.parameters(), before, strict=True))
    assert all(p.grad is None and p.requires_grad for p in net.parameters())
    assert torch.equal(batch[0], _batch()[0])
    assert torch.equal(sample.input, batch[0][:1])


def test_frozen_and_unused_parameters_do_not_count() -> None:
    net = _net()
    unused = nn.Parameter(torch.ones(3))
    made = Crafted(steps=2).made(
        net, sample_of(_batch(), 0, None, None), _batch(), [*net[2].parameters(), unused]
    )
    assert torch.isfinite(made.input).all()


def test_an_empty_batch_has_no_direction_to_avoid() -> None:
    net, sample = _net(), sample_of(_batch(), 0, None, None)
    empty = (_batch()[0][:0], _batch()[1][:0])
    made = Crafted().made(net, sample, empty, list(net.parameters()))
    assert torch.equal(made.input, sample.input)


def test_cosine_is_that_of_the_flattened_gradients_and_zero_for_none() -> None:
    first, second = (
        [torch.tensor([3.0, 0.0]), torch.tensor([[4.0]])],
        [torch.ones(2), torch.ones(1, 1)],
    )
    assert float(cosine(first, second)) == pytest.approx(7.0 / (5.0 * 3.0**0.5))
    assert float(cosine(first, [torch.zeros(2), torch.zeros(1, 1)])) == 0.0
