"""The gradient of one sample comes without a trace in the training."""

from __future__ import annotations

import random
import threading
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from opacus import GradSampleModule
from opacus.grad_sample import GradSampleHooks
from torch import nn
from torch.nn import functional

from lightning_audit.replay.clipping import own_direction, undisturbed

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook is firing")


class _Module(pl.LightningModule):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.logged: list[str] = []

    def log(self, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        self.logged.append(name)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs = self.net(x)
        self.log("mean", outputs.mean())
        random.random()
        np.random.rand()
        return outputs


def _net(**kwargs: Any) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 3))


def _data(n: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(n, 4, generator=generator), torch.arange(n) % 3


def _loss(module: nn.Module, rows: slice = slice(None)) -> torch.Tensor:
    x, y = _data()
    return functional.cross_entropy(module(x[rows]), y[rows])


def test_generators_logs_and_gradients_are_untouched() -> None:
    module = _Module(GradSampleModule(_net()))
    params = list(module.parameters())
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    with torch.no_grad(), undisturbed(module):
        own_direction(_loss(module), params)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert np.array_equal(np.random.get_state()[1], states[2])
    assert module.logged == []
    assert "log" not in vars(module)
    for p in params:
        assert p.grad is None
        assert p.grad_sample is None
        assert not p._forward_counter
    module(_data()[0])
    assert module.logged == ["mean"]


@pytest.mark.parametrize("wrapped", [True, False])
def test_opacus_hooks_are_off_inside_and_on_again_after(wrapped: bool) -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    hooked = GradSampleModule(net) if wrapped else net
    hooks = hooked if wrapped else GradSampleHooks(net)
    module = _Module(hooked)
    with pytest.raises(ZeroDivisionError), undisturbed(module):
        _ = 1 / 0
    assert hooks.hooks_enabled
    with undisturbed(module):
        assert not hooks.hooks_enabled
        direction = own_direction(_loss(module, slice(5, 6)), list(net.parameters()))
    _loss(module).backward()
    assert direction is not None
    for p, part in zip(net.parameters(), direction.parts, strict=True):
        assert torch.allclose(p.grad_sample[-1], direction.norm * part, atol=1e-6)


def test_another_thread_that_trains_draws_no_number_twice() -> None:
    module, ended = _Module(_net()), threading.Event()
    other = threading.Thread(target=lambda: ended.wait(), name="study")
    other.start()
    try:
        with undisturbed(module):
            theirs = torch.rand(1)  # as the other thread draws it meanwhile
        assert torch.rand(1) != theirs
    finally:
        ended.set()
        other.join()
    with undisturbed(module):
        own = torch.rand(1)
    assert torch.rand(1) == own


def test_running_statistics_are_put_back() -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    before = {name: buffer.clone() for name, buffer in net.named_buffers()}
    with undisturbed(net):
        _loss(net)
        assert int(net[1].num_batches_tracked) == 1
    assert all(torch.equal(b, before[name]) for name, b in net.named_buffers())


def test_product_and_removal_are_those_of_the_flattened_vectors() -> None:
    net = nn.Linear(4, 3)
    params = [*net.parameters(), nn.Parameter(torch.ones(2))]  # the last takes no part
    direction = own_direction(_loss(net), params)
    assert direction is not None
    unit = torch.cat([part.flatten() for part in direction.parts])
    assert float(unit.norm()) == pytest.approx(1.0)
    assert np.isnan(direction.product([p.grad for p in params]))
    for p in params:
        p.grad = torch.randn_like(p)
    flat = torch.cat([p.grad.flatten() for p in params])
    assert direction.product([p.grad for p in params]) == pytest.approx(
        float(unit @ flat), abs=1e-6
    )
    direction.take_out([p.grad for p in params], 0.25)
    left = torch.cat([p.grad.flatten() for p in params])
    assert torch.allclose(left, flat - 0.25 * unit)


@pytest.mark.parametrize("factor", [0.0, float("nan"), float("inf")])
def test_a_gradient_without_direction_gives_none(factor: float) -> None:
    net = nn.Linear(4, 3)
    assert own_direction(_loss(net) * factor, list(net.parameters())) is None
