"""A private optimizer over one parameter."""

from __future__ import annotations

import torch
from opacus.optimizers import DPOptimizer


def plain() -> torch.optim.SGD:
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], 0.1)


def private(reduction: str = "mean") -> DPOptimizer:
    return DPOptimizer(
        plain(),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        expected_batch_size=8,
        loss_reduction=reduction,
    )
