"""Steps that are not DP-SGD, although most of them give the same result on the current batch."""

from __future__ import annotations

from typing import Any

import torch
from opacus.optimizers import DPOptimizer
from torch import nn

from lightning_audit.testing.trainings import HandWritten, Training

Rows = torch.Tensor


class OwnFactors(DPOptimizer):
    """Clips by the factors of `factors`; this base class is correct."""

    def factors(self, rows: Rows) -> torch.Tensor:
        """Return the factor of each per-sample gradient, ``[n, d]`` to ``[n]``."""
        return (self.max_grad_norm / (rows.norm(dim=1) + 1e-6)).clamp(max=1.0)

    def clip_and_accumulate(self) -> None:
        """Sum the clipped per-sample gradients."""
        if self.params[0].grad_sample.numel() == 0:
            super().clip_and_accumulate()
            return
        rows = torch.cat([p.grad_sample.flatten(1) for p in self.params], 1)
        factors = self.factors(rows)
        for p in self.params:
            total = torch.einsum("i,i...", factors.to(p.grad_sample), p.grad_sample)
            p.summed_grad = total if p.summed_grad is None else p.summed_grad + total
            p.grad_sample._processed = True


class ClipByMedianNorm(OwnFactors):
    """Clips at the median norm of the batch, which depends on its records."""

    def factors(self, rows: Rows) -> torch.Tensor:
        """Factor of each per-sample gradient."""
        norms = rows.norm(dim=1)
        return (norms.median() / (norms + 1e-6)).clamp(max=1.0)


class FirstRowNotClipped(OwnFactors):
    """Does not clip the first record of each batch."""

    def factors(self, rows: Rows) -> torch.Tensor:
        """Factor of each per-sample gradient."""
        factors = super().factors(rows).clone()
        factors[:1] = 1.0
        return factors


class ClipByThreeNorm(OwnFactors):
    """Clips by the 3-norm, which is smaller than the 2-norm that the noise is calibrated to."""

    def factors(self, rows: Rows) -> torch.Tensor:
        """Factor of each per-sample gradient."""
        return (self.max_grad_norm / (rows.norm(p=3, dim=1) + 1e-6)).clamp(max=1.0)


class OnlyOutliersClipped(OwnFactors):
    """Clips gradients above ten times the clipping norm, but not those between."""

    def factors(self, rows: Rows) -> torch.Tensor:
        """Factor of each per-sample gradient."""
        norms = rows.norm(dim=1)
        kept = torch.ones_like(norms)
        return torch.where(norms > 10 * self.max_grad_norm, super().factors(rows), kept)


class TwoClippedTogether(OwnFactors):
    """Clips the first two records of each batch by the norm of their sum."""

    def factors(self, rows: Rows) -> torch.Tensor:
        """Factor of each per-sample gradient."""
        factors = super().factors(rows).clone()
        together = self.max_grad_norm / (rows[:2].sum(0).norm() + 1e-6)
        factors[:2] = together.clamp(max=1.0)
        return factors


class MomentumOfRawGradients(DPOptimizer):
    """Updates the weights with an average of raw gradients in addition to the private ones."""

    _raw: list[torch.Tensor] | None = None

    def pre_step(self, closure: Any = None) -> bool | None:
        """Clip and add noise, and update with the raw gradients."""
        raw = [p.grad_sample.sum(0) for p in self.params]
        steps: bool | None = super().pre_step(closure)
        if steps:
            held = self._raw or [torch.zeros_like(r) for r in raw]
            self._raw = [0.9 * h + r for h, r in zip(held, raw, strict=True)]
            for p, own in zip(self.params, self._raw, strict=True):
                p.data.add_(own, alpha=-1e-4)
        return steps


class LearningRateByRawNorm(DPOptimizer):
    """Computes the learning rate of each step from the norm of its raw gradients."""

    def pre_step(self, closure: Any = None) -> bool | None:
        """Set the learning rate, clip and add noise."""
        norm = sum(float(p.grad_sample.sum(0).norm()) for p in self.params)
        for group in self.original_optimizer.param_groups:
            group["lr"] = 0.05 / (1.0 + norm)
        steps: bool | None = super().pre_step(closure)
        return steps


class ChangedAfterStep(Training):
    """The batch's inputs change weights after its step."""

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Change the weights."""
        x, _ = batch
        if len(x):
            with torch.no_grad():
                next(self.net.parameters()).add_(x.mean(), alpha=1e-3)


class ViewsClippedApart(Training):
    """Clips two views of each record as two records."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """Return the mean cross-entropy of both views."""
        x, y = batch
        return super().training_step((torch.cat([x, 0.9 * x]), torch.cat([y, y])), batch_idx)


class KeepsStatistics(HandWritten):
    """Batch normalization keeps statistics of the records, which are saved in checkpoints."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.statistics = nn.BatchNorm1d(self.data.tensors[0].shape[1], affine=False)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """Update the statistics with the batch, and train."""
        x, _ = batch
        if len(x) > 1:
            self.statistics(x)
        return super().training_step(batch, batch_idx)
