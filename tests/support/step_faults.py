"""Trainings whose step is no step of DP-SGD: what an examination by replay is to find."""

from __future__ import annotations

from typing import Any

import torch
from hand_written_support import HandWritten
from opacus.optimizers import DPOptimizer
from torch import nn
from training_support import PrivateModule

Norms = torch.Tensor


class OwnFactors(DPOptimizer):
    """Clips by factors of its own, correctly."""

    def factors(self, rows: torch.Tensor) -> torch.Tensor:
        """Factor of each per-sample gradient, ``[n, d]`` to ``[n]``."""
        return (self.max_grad_norm / (rows.norm(dim=1) + 1e-6)).clamp(max=1.0)

    def clip_and_accumulate(self) -> None:
        if self.params[0].grad_sample.numel() == 0:
            return super().clip_and_accumulate()
        rows = torch.cat([p.grad_sample.flatten(1) for p in self.params], 1)
        factors = self.factors(rows)
        for p in self.params:
            total = torch.einsum("i,i...", factors.to(p.grad_sample), p.grad_sample)
            p.summed_grad = total if p.summed_grad is None else p.summed_grad + total
            p.grad_sample._processed = True
        return None


class ByTheMedianNorm(OwnFactors):
    def factors(self, rows: torch.Tensor) -> torch.Tensor:
        norms = rows.norm(dim=1)
        return (norms.median() / (norms + 1e-6)).clamp(max=1.0)


class FirstRowNotClipped(OwnFactors):
    def factors(self, rows: torch.Tensor) -> torch.Tensor:
        factors = super().factors(rows).clone()
        factors[:1] = 1.0
        return factors


class ByTheThreeNorm(OwnFactors):
    def factors(self, rows: torch.Tensor) -> torch.Tensor:
        return (self.max_grad_norm / (rows.norm(p=3, dim=1) + 1e-6)).clamp(max=1.0)


class OnlyOutliersClipped(OwnFactors):
    def factors(self, rows: torch.Tensor) -> torch.Tensor:
        norms = rows.norm(dim=1)
        clipped = super().factors(rows)
        return torch.where(norms > 10 * self.max_grad_norm, clipped, torch.ones_like(norms))


class TwoClippedTogether(OwnFactors):
    def factors(self, rows: torch.Tensor) -> torch.Tensor:
        factors = super().factors(rows).clone()
        factors[:2] = (self.max_grad_norm / (rows[:2].sum(0).norm() + 1e-6)).clamp(max=1.0)
        return factors


class RawMomentum(DPOptimizer):
    """Moves the weights by an average of raw gradients beside the private ones."""

    _raw: list[torch.Tensor] | None = None

    def pre_step(self, closure: Any = None) -> bool | None:
        raw = [p.grad_sample.sum(0) for p in self.params]
        steps = super().pre_step(closure)
        if steps:
            held = self._raw or [torch.zeros_like(r) for r in raw]
            self._raw = [0.9 * h + r for h, r in zip(held, raw, strict=True)]
            for p, own in zip(self.params, self._raw, strict=True):
                p.data.add_(own, alpha=-1e-4)
        return steps


class RateByTheRawNorm(DPOptimizer):
    def pre_step(self, closure: Any = None) -> bool | None:
        norm = sum(float(p.grad_sample.sum(0).norm()) for p in self.params)
        for group in self.original_optimizer.param_groups:
            group["lr"] = 0.05 / (1.0 + norm)
        return super().pre_step(closure)


class ChangedAfterTheStep(PrivateModule):
    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        x, _ = batch
        if len(x):
            with torch.no_grad():
                next(self.net.parameters()).add_(x.mean(), alpha=1e-3)


class OneViewARow(PrivateModule):
    """Two views of a record, each clipped on its own."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        return super().training_step((torch.cat([x, 0.9 * x]), torch.cat([y, y])), batch_idx)


class KeepsStatistics(HandWritten):
    """A running mean of the inputs that goes into checkpoints, as batch normalisation's."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.statistics = nn.BatchNorm1d(8, affine=False)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, _ = batch
        if len(x) > 1:
            self.statistics(x)
        return super().training_step(batch, batch_idx)


BY_OPTIMIZER = {
    ByTheMedianNorm: "replay.sensitivity",
    FirstRowNotClipped: "replay.sensitivity",
    ByTheThreeNorm: "replay.sensitivity",
    OnlyOutliersClipped: "replay.sensitivity",
    TwoClippedTogether: "replay.clipping",
    RawMomentum: "replay.release",
    RateByTheRawNorm: "replay.release",
}
BY_MODULE = {ChangedAfterTheStep: "replay.release", OneViewARow: "replay.sensitivity"}
