"""Opacus' optimizer with faulty clipping, or a faulty step around it, one fault per class.

The classes clip per-sample gradients at one norm, so they replace an optimizer that does so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from opacus.optimizers import DPOptimizer

#: `ClipsNotAlways` does not clip one batch in this number.
SPARED = 8
#: Number of steps before `ClippingEnds` stops clipping.
SOUND = 40


class ClipAfterAverage(DPOptimizer):
    """Clips the mean gradient, with the noise for per-sample clipping."""

    def clip_and_accumulate(self) -> None:
        """Clip the batch's mean."""
        means = [g.mean(0) if len(g) else g.sum(0) for g in self.grad_samples]
        norm = torch.stack([mean.norm() for mean in means]).norm()
        factor = (self.max_grad_norm / (norm + 1e-6)).clamp(max=1.0)
        for p, mean in zip(self.params, means, strict=True):
            p.summed_grad = mean * factor * self.expected_batch_size


class ClipAtTwice(DPOptimizer):
    """Clips at twice the norm that it states."""

    max_grad_norm: float

    def clip_and_accumulate(self) -> None:
        """Clip at another norm than the stated one."""
        stated = self.max_grad_norm
        self.max_grad_norm = 2 * stated
        super().clip_and_accumulate()
        self.max_grad_norm = stated


class NoClipping(DPOptimizer):
    """Sums unclipped per-sample gradients."""

    def clip_and_accumulate(self) -> None:
        """Sum without clipping."""
        for p in self.params:
            p.summed_grad = self._get_flat_grad_sample(p).sum(0)


class ClipsNotAlways(NoClipping):
    """Sums unclipped per-sample gradients at one step in eight."""

    batches_taken = 0

    def clip_and_accumulate(self) -> None:
        """Clip all batches but some."""
        self.batches_taken += 1
        if self.batches_taken % SPARED:
            DPOptimizer.clip_and_accumulate(self)
        else:
            super().clip_and_accumulate()


class ClippingEnds(NoClipping):
    """Sums unclipped per-sample gradients from a step on."""

    batches_taken = 0

    def clip_and_accumulate(self) -> None:
        """Clip only the first batches."""
        self.batches_taken += 1
        if self.batches_taken <= SOUND:
            DPOptimizer.clip_and_accumulate(self)
        else:
            super().clip_and_accumulate()


class ClipPerTensor(DPOptimizer):
    """Clips each tensor to the norm of the whole gradient."""

    def clip_and_accumulate(self) -> None:
        """Clip tensor by tensor."""
        for p in self.params:
            samples = self._get_flat_grad_sample(p)
            p.summed_grad = _weighted(_factors([samples], self.max_grad_norm), samples)


class NormMissesBiases(DPOptimizer):
    """Leaves one-dimensional tensors out of the norm by which samples are clipped."""

    def clip_and_accumulate(self) -> None:
        """Clip by the norm of the weights."""
        counted = [p for p in self.params if p.ndim > 1]
        samples = [self._get_flat_grad_sample(p) for p in counted]
        factors = _factors(samples, self.max_grad_norm)
        for p in self.params:
            p.summed_grad = _weighted(factors, self._get_flat_grad_sample(p))


class DividesByRealisedBatch(DPOptimizer):
    """Divides by the actual number of samples in a Poisson batch."""

    rows = 1

    def clip_and_accumulate(self) -> None:
        """Clip, and count the samples."""
        self.rows = max(1, len(self.grad_samples[0]))
        super().clip_and_accumulate()

    def scale_grad(self) -> None:
        """Divide by the count."""
        for p in self.params:
            p.grad /= self.rows


class ClosureRunsAgain(DPOptimizer):
    """Passes the closure on to the inner optimizer, which computes the gradient again."""

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Clip and add noise, then lose both."""
        if closure is not None:
            with torch.enable_grad():
                closure()
        if self.pre_step():
            return self.original_optimizer.step(closure)
        return None


def _factors(tensors: list[torch.Tensor], norm: float) -> torch.Tensor:
    norms = torch.stack([g.reshape(len(g), -1).norm(dim=1) for g in tensors]).norm(dim=0)
    return (norm / (norms + 1e-6)).clamp(max=1.0)


def _weighted(factors: torch.Tensor, samples: torch.Tensor) -> torch.Tensor:
    return torch.einsum("i,i...", factors, samples)
