from __future__ import annotations

import pytest
import torch
from opacus.grad_sample import GradSampleModule
from opacus.optimizers import AdaClipDPOptimizer, DPOptimizer

from lightning_audit.testing.selftest import AdaptiveClipping, Functorch, PerLayer
from lightning_audit.testing.trainings import random_data

# Opacus and torch remark on hooks and secure mode wherever an optimizer is made private.
pytestmark = pytest.mark.filterwarnings("default")


def stepped(module: Functorch) -> DPOptimizer:
    """The optimizer after the backward pass of eight records."""
    torch.manual_seed(0)
    optimizer = module.configure_optimizers()
    module.training_step(random_data(records=8).tensors, 0).backward()
    return optimizer


def test_per_sample_gradients_by_functorch_are_those_of_hooks() -> None:
    module = Functorch()
    optimizer = stepped(module)
    assert isinstance(module.net, GradSampleModule)
    assert module.net.force_functorch
    sums = [g.sum(0) for g in optimizer.grad_samples]
    optimizer.zero_grad()
    whole = torch.nn.functional.cross_entropy(
        module.net(random_data(records=8).tensors[0]),
        random_data(records=8).tensors[1],
        reduction="sum",
    )
    grads = torch.autograd.grad(whole, optimizer.params)
    assert all(torch.allclose(s, g, atol=1e-4) for s, g in zip(sums, grads, strict=True))


def test_the_norms_of_the_layers_have_the_norm_of_the_whole() -> None:
    optimizer = PerLayer(max_grad_norm=0.7).configure_optimizers()
    norms = torch.tensor(optimizer.max_grad_norms)
    assert len(norms) == len(optimizer.params)
    assert norms.norm().item() == pytest.approx(0.7)


def test_the_adaptive_norm_follows_the_gradients() -> None:
    optimizer = stepped(AdaptiveClipping(max_grad_norm=10.0))
    assert isinstance(optimizer, AdaClipDPOptimizer)
    before = optimizer.max_grad_norm
    optimizer.step()
    assert optimizer.max_grad_norm < before  # no gradient is as long
