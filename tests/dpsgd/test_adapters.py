from typing import Any

import pytest
import torch
from opacus import GradSampleModule
from opacus.optimizers import (
    AdaClipDPOptimizer,
    DPOptimizer,
    DPOptimizerFastGradientClipping,
    DPPerLayerOptimizer,
)
from torch import nn

from lightning_audit.dpsgd.adapters import divisor_at_cut, opacus_step, watch_cut
from lightning_audit.dpsgd.ghost import GhostStep
from lightning_audit.dpsgd.opacus import OpacusStep
from lightning_audit.dpsgd.protocol import StepClaim

ADAPTIVE = {
    "target_unclipped_quantile": 0.5,
    "clipbound_learning_rate": 0.2,
    "max_clipbound": 10.0,
    "min_clipbound": 0.1,
    "unclipped_num_std": 2.0,
}


@pytest.mark.parametrize(
    ("kind", "settings", "adapter"),
    [
        (DPOptimizer, {"max_grad_norm": 1.0}, OpacusStep),
        (DPPerLayerOptimizer, {"max_grad_norm": [1.0, 1.0]}, OpacusStep),
        (AdaClipDPOptimizer, {"max_grad_norm": 1.0, **ADAPTIVE}, OpacusStep),
        (DPOptimizerFastGradientClipping, {"max_grad_norm": 1.0}, GhostStep),
    ],
)
def test_only_what_forms_no_per_sample_gradients_is_audited_through_its_losses(
    kind, settings, adapter
):
    net = GradSampleModule(nn.Linear(2, 1))
    plain = torch.optim.SGD(net.parameters(), lr=0.1)
    optimizer = kind(plain, noise_multiplier=1.0, expected_batch_size=4, **settings)
    step = opacus_step(optimizer, {id(net._module.bias): "bias"}, net.modules())
    assert type(step) is adapter
    assert step.inner is plain
    assert [slot.name for slot in step.layout] == ["parameter_0", "bias"]


SIGMA, BATCH = 1.0, 64


def optimizer_of(kind: type[DPOptimizer]) -> DPOptimizer:
    """An optimizer that waits for its noise, with gradients of 64 samples in its sums."""
    torch.manual_seed(1)
    net = nn.Linear(30, 10)
    optimizer = kind(
        torch.optim.SGD(net.parameters(), lr=0.1),
        noise_multiplier=SIGMA,
        max_grad_norm=1.0,
        expected_batch_size=BATCH,
    )
    for p in optimizer.params:
        p.grad_sample = torch.randn(BATCH, *p.shape)
    return optimizer


class DividesWithItsNoise(DPOptimizer):
    def add_noise(self) -> None:
        super().add_noise()
        for p in self.params:
            p.grad /= BATCH

    def scale_grad(self) -> None:
        pass


class OwnBoth(DPOptimizer):
    def add_noise(self) -> None:
        super().add_noise()

    def scale_grad(self) -> None:
        super().scale_grad()


class OwnNoise(DPOptimizer):
    def add_noise(self) -> None:
        super().add_noise()
        for p in self.params:
            p.grad *= 0.01


class Reduces(DPOptimizer):
    def reduce_gradients(self) -> None:
        self.reduced = True


@pytest.mark.parametrize(
    ("kind", "expected"),
    [(DPOptimizer, 1.0), (OwnNoise, 1.0), (OwnBoth, 1.0), (DividesWithItsNoise, BATCH)],
)
def test_the_divisor_of_the_noisy_sum_is_told(kind, expected):
    optimizer = optimizer_of(kind)
    seen: list[float] = []

    def look() -> None:
        seen.append(divisor_at_cut(optimizer, optimizer.params, StepClaim(SIGMA, 1.0, BATCH)))

    hook = watch_cut(optimizer, look)
    optimizer.pre_step()
    hook.remove()
    assert seen == [expected]


def test_several_processes_release_what_they_have_added_up():
    optimizer: Any = optimizer_of(Reduces)
    seen: list[Any] = []
    hook = watch_cut(optimizer, lambda: seen.append(vars(optimizer).get("reduced")))
    optimizer.pre_step()
    assert not seen
    optimizer.reduce_gradients()
    hook.remove()
    assert seen == [True]
    assert divisor_at_cut(optimizer, optimizer.params, StepClaim(SIGMA, 1.0, BATCH)) == BATCH
