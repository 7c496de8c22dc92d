"""What an optimizer adds to sums of zeros."""

from __future__ import annotations

import torch
from planted import private


def added(kind: type, *, steps: int = 1, **settings: float) -> list[list[torch.Tensor]]:
    """What each step adds to a sum of zeros, tensor by tensor."""
    torch.manual_seed(0)
    optimizer = private(**settings)
    optimizer.__class__ = kind
    drawn = []
    for _ in range(steps):
        for p in optimizer.params:
            p.summed_grad = torch.zeros_like(p)
        optimizer.add_noise()
        drawn.append([p.grad.detach().clone() for p in optimizer.params])
    return drawn


def flat(tensors: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([t.flatten() for t in tensors])
