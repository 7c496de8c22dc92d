"""`Crafted`: an input whose gradient is orthogonal to that of the data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lightning_audit.canaries.inputs import (
    Game,
    Loss,
    MovedInput,
    floating_input,
    loss_of,
    scaled,
    with_least_likely_label,
)
from lightning_audit.canaries.sample_batches import Sample, rows


@dataclass(frozen=True)
class Crafted(MovedInput):
    """A sample of the data, optimized so that its gradient is orthogonal to that of the batch.

    Adam on the input minimizes the squared cosine between both gradients. This reduces the
    contribution of the data to a reading. The label is the least likely one when the input is
    made, because a sample that the model has learned has too small a gradient. The other arguments
    are those of `InputCanary`.

    Args:
        steps: Number of optimization steps, >= 1. Each differentiates the canary's loss twice.
        step_size: Step size of Adam, > 0.
        remake_every_n_steps: Training steps after which the input is made again, >= 1.

    References:
        Nasr et al. 2023 (Tight Auditing of Differentially Private Machine Learning), Algorithm 3,
        arXiv:2302.07956.
    """

    steps: int = 50
    step_size: float = 0.1
    remake_every_n_steps: int = 50
    amplitude: float = 1.0
    sampling_rate: float = 0.5
    loss: Loss | None = None
    num_classes: int | None = None
    input: str | None = None
    label: str | None = None
    game: Game = "step"

    def made(
        self, module: Any, sample: Sample, batch: Any, params: Sequence[torch.Tensor]
    ) -> Sample:
        """Return the sample, moved until its gradient is orthogonal to that of the batch."""
        sample = with_least_likely_label(self, module, scaled(self, sample))
        free = floating_input(self, sample).detach().clone().requires_grad_()
        if not rows(batch):
            return sample
        data = _gradient(loss_of(self, module, batch, sample), params, graph=False)
        descent = torch.optim.Adam([free], lr=self.step_size)
        for _ in range(self.steps):
            own = _gradient(
                loss_of(self, module, sample.with_input(free).batch, sample), params, graph=True
            )
            (free.grad,) = torch.autograd.grad(cosine(own, data) ** 2, free)
            descent.step()
        return sample.with_input(free.detach())


def cosine(first: Sequence[torch.Tensor], second: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the cosine between two gradients over all tensors; 0 if one of them is zero."""
    product = torch.stack([(a * b).sum() for a, b in zip(first, second, strict=True)]).sum()
    squares = [torch.stack([(a * a).sum() for a in one]).sum() for one in (first, second)]
    # The derivative of the square root is infinite at zero.
    return product / (squares[0] * squares[1] + torch.finfo(product.dtype).tiny).sqrt()


def _gradient(
    loss: torch.Tensor, params: Sequence[torch.Tensor], *, graph: bool
) -> list[torch.Tensor]:
    found = torch.autograd.grad(loss, list(params), create_graph=graph, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for g, p in zip(found, params, strict=True)]
