"""Trainings by somebody who had not read the examinations: 12 faulty, 10 correct and odd."""

from __future__ import annotations

import torch
from correct_steps import Trains, mlp
from opacus.optimizers import DPOptimizer
from torch.nn import functional
from torch.utils.data import DataLoader


class Factored(DPOptimizer):
    """A factor for each record, of the per-sample gradients."""

    def factors(self, rows: list[torch.Tensor]) -> torch.Tensor:
        norms = torch.cat([g.flatten(1) for g in rows], dim=1).norm(dim=1)
        return (self.max_grad_norm / (norms + 1e-6)).clamp(max=1.0)

    def before(self, rows: list[torch.Tensor]) -> list[torch.Tensor]:
        return rows

    def clip_and_accumulate(self) -> None:
        rows = self.before(
            [g.to(p.dtype) for g, p in zip(self.grad_samples, self.params, strict=True)]
        )
        factors = self.factors(rows) if len(rows[0]) else torch.zeros(0)
        for p, g in zip(self.params, rows, strict=True):
            total = torch.einsum("i,i...", factors.to(g.dtype), g)
            p.summed_grad = total if p.summed_grad is None else p.summed_grad + total
            p.grad_sample._processed = True


# ------------------------------------------------------------------ faulty


class LargestLayer(Factored):
    """Norm of the largest layer for the whole norm: 4 tensors of norm C each move it by 2C."""

    def factors(self, rows):
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in rows]).amax(0)
        return (self.max_grad_norm / (norms + 1e-6)).clamp(max=1.0)


class Centred(Factored):
    """Less the batch's mean before clipping: one huge record turns every other row to -C of
    its direction, so the sum moves by up to about (n - 1)C."""

    def before(self, rows):
        return [g - g.mean(0, keepdim=True) if len(g) else g for g in rows]


class ActualSize(DPOptimizer):
    """The sum is brought to the expected size by the actual size, ahead of the noise: n - 1 rows
    of C and one of -C move it by about 2C; with n below the expected, one row moves it by >C."""

    def clip_and_accumulate(self) -> None:
        super().clip_and_accumulate()
        n = max(1, len(self.grad_samples[0]))
        for p in self.params:
            p.summed_grad *= self.expected_batch_size / n


class HardHalf(Trains):
    """Only the half of highest loss is learnt from: a record that enters puts another out, 2C."""

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = functional.cross_entropy(self.net(x), y, reduction="none")
        least = loss.detach().median() if len(loss) else 0.0
        return (loss * (loss.detach() >= least)).mean()


class HalfNorms(Factored):
    """Norms in half precision; such as are not finite are 'not to be clipped': a row of
    norm 1e5 passes whole, 1e5 C."""

    def factors(self, rows):
        norms = torch.cat([g.flatten(1) for g in rows], dim=1).norm(dim=1).half().float()
        factors = (self.max_grad_norm / (norms + 1e-6)).clamp(max=1.0)
        return torch.where(torch.isfinite(norms), factors, torch.ones_like(factors))


class SampledNorm(Factored):
    """Norm estimated of every second coordinate: what lies in the others is never clipped."""

    def factors(self, rows):
        flat = torch.cat([g.flatten(1) for g in rows], dim=1)
        norms = 2**0.5 * flat[:, ::2].norm(dim=1)
        return (self.max_grad_norm / (norms + 1e-6)).clamp(max=1.0)


class SoftRoot(Factored):
    """'Soft' clipping by 1/sqrt(1 + |g|/C): |g| = 100C gives almost 10C; no bound at all."""

    def factors(self, rows):
        norms = torch.cat([g.flatten(1) for g in rows], dim=1).norm(dim=1)
        return (1 + norms / self.max_grad_norm).rsqrt()


class ErrorFeedback(Factored):
    """What clipping cut off is carried into the next sum: no bound on a record's part in it."""

    _rest: list[torch.Tensor] | None = None

    def clip_and_accumulate(self) -> None:
        raw = [g.sum(0) for g in self.grad_samples]
        super().clip_and_accumulate()
        rest = [0.5 * (r - p.summed_grad) for r, p in zip(raw, self.params, strict=True)]
        if self._rest is not None:
            for p, r in zip(self.params, self._rest, strict=True):
                p.summed_grad = p.summed_grad + r
        self._rest = rest


class RawPreconditioner(DPOptimizer):
    """Second moments of the sum without noise divide the released gradient, now and later:
    they are read off the weights, and no noise is in them."""

    _second: list[torch.Tensor] | None = None

    def add_noise(self) -> None:
        squares = [(p.summed_grad / self.expected_batch_size) ** 2 for p in self.params]
        if self._second is None:
            self._second = [torch.full_like(s, 0.01) for s in squares]
        super().add_noise()
        for p, v, s in zip(self.params, self._second, squares, strict=True):
            p.grad = p.grad / (v.sqrt() + 0.01)
            v.lerp_(s.view_as(v), 0.1)


class SmoothingByAccuracy(Trains):
    """Label smoothing of the next step by the accuracy in this batch, which no noise is in:
    the next sum moves by up to 2C for each of its n rows."""

    smoothing = 0.0

    def training_step(self, batch, batch_idx):
        x, y = batch
        scores = self.net(x)
        loss = functional.cross_entropy(scores, y, label_smoothing=self.smoothing)
        if len(y):
            self.smoothing = 0.3 * (scores.argmax(1) == y).float().mean().item()
        return loss


class QuantileNorm(DPOptimizer):
    """The clipping norm of the next step follows the raw 0.7-quantile of this step's norms,
    with no noise on it."""

    def clip_and_accumulate(self) -> None:
        rows = self.grad_samples
        super().clip_and_accumulate()
        if len(rows[0]):
            norms = torch.cat([g.flatten(1) for g in rows], dim=1).norm(dim=1)
            self._next = min(1.0, 0.3 * norms.quantile(0.7).item())

    def scale_grad(self) -> None:
        super().scale_grad()
        self.max_grad_norm = getattr(self, "_next", self.max_grad_norm)


class Centroids(Trains):
    """A centre loss whose centres are running means of raw scores: they enter every row of the
    next steps, and no noise is in them."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.register_buffer("centres", torch.zeros(10, 10))

    def training_step(self, batch, batch_idx):
        x, y = batch
        scores = self.net(x)
        loss = functional.cross_entropy(scores, y)
        loss = loss + 0.1 * ((scores - self.centres[y].clone()) ** 2).sum(1).mean()
        with torch.no_grad():
            for label in y.unique():
                self.centres[label].lerp_(scores[y == label].mean(0), 0.5)
        return loss


# ------------------------------------------------------------------ correct


class LowerNorm(Factored):
    """A constant lower norm: moves by at most 0.5C, noise for C."""

    def factors(self, rows):
        norms = torch.cat([g.flatten(1) for g in rows], dim=1).norm(dim=1)
        return (0.5 * self.max_grad_norm / (norms + 1e-6)).clamp(max=1.0)


class ExactlyC(Factored):
    """Every row is brought to C, a row of zeros stays: moves by at most C."""

    def factors(self, rows):
        norms = torch.cat([g.flatten(1) for g in rows], dim=1).norm(dim=1)
        return self.max_grad_norm / (norms + 1e-6)


class ScaledBefore(Factored):
    """Public scales for the tensors ahead of the clipping: what is clipped is at most C."""

    def before(self, rows):
        return [g * (3.0 if g.dim() == 2 else 0.5) for g in rows]


class DividedInNoise(DPOptimizer):
    """Divides sum and noise alike by a public number, where the noise is added."""

    def add_noise(self) -> None:
        super().add_noise()
        for p in self.params:
            p.grad = p.grad / self.expected_batch_size

    def scale_grad(self) -> None:
        pass


class Masked(DPOptimizer):
    """A public mask on the clipped sum, full noise: a norm that only shrinks."""

    def clip_and_accumulate(self) -> None:
        super().clip_and_accumulate()
        for p in self.params:
            mask = torch.arange(p.numel()).view_as(p) % 3 != 0
            p.summed_grad *= mask


class ReleasedAverage(DPOptimizer):
    """Steps along an average of released gradients: post-processing."""

    _mean: list[torch.Tensor] | None = None

    def scale_grad(self) -> None:
        super().scale_grad()
        self._mean = self._mean or [torch.zeros_like(p) for p in self.params]
        for p, mean in zip(self.params, self._mean, strict=True):
            mean.lerp_(p.grad, 0.3)
            p.grad = mean.clone()


class ResetsState(DPOptimizer):
    """Adam whose moments are forgotten each fifth step, by a public count."""

    _count = 0

    def step(self, closure=None):
        out = super().step(closure)
        self._count += 1
        if self._count % 5 == 0:
            self.original_optimizer.state.clear()
        return out


class Sorted(Trains):
    """Shuffles, then sorts by label: the sum over rows does not know their order."""

    def training_step(self, batch, batch_idx):
        x, y = batch
        order = torch.randperm(len(y))
        order = order[y[order].argsort()]
        return super().training_step((x[order], y[order]), batch_idx)


class LabelNoise(Trains):
    """A tenth of labels drawn anew, each row by itself: each row is clipped still."""

    def training_step(self, batch, batch_idx):
        x, y = batch
        other = torch.randint(0, 10, y.shape)
        return super().training_step(
            (x, torch.where(torch.rand(len(y)) < 0.1, other, y)), batch_idx
        )


CALLS = {"n": 0}


class SwapsForValidation(Trains):
    """Validates with an average of released weights, puts the weights back, counts calls in the
    module: post-processing, and the weights are bit for bit what they were."""

    average: list[torch.Tensor] | None = None

    def training_step(self, batch, batch_idx):
        CALLS["n"] += 1
        return super().training_step(batch, batch_idx)

    def val_dataloader(self):
        return DataLoader(self.data(), batch_size=600)

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val", functional.cross_entropy(self.net(x), y))

    def on_train_batch_end(self, *_):
        now = [p.detach().clone() for p in self.parameters()]
        self.average = [a.lerp(p, 0.1) for a, p in zip(self.average or now, now, strict=True)]

    def _swap(self) -> None:
        if self.average is not None:
            for i, p in enumerate(self.parameters()):
                self.average[i], p.data = p.data, self.average[i]

    def on_validation_epoch_start(self):
        self._swap()

    def on_validation_epoch_end(self):
        self._swap()


def _private(kind):
    return lambda: Trains(mlp(), private=kind)


FAULTY = {
    k.__name__: _private(k) if issubclass(k, DPOptimizer) else (lambda k=k: k(mlp()))
    for k in (LargestLayer, Centred, ActualSize, HardHalf, HalfNorms, SampledNorm, SoftRoot,
              ErrorFeedback, RawPreconditioner, SmoothingByAccuracy, QuantileNorm, Centroids)
}  # fmt: skip
CORRECT = {
    k.__name__: _private(k) if issubclass(k, DPOptimizer) else (lambda k=k: k(mlp()))
    for k in (LowerNorm, ExactlyC, ScaledBefore, DividedInNoise, Masked, ReleasedAverage,
              Sorted, LabelNoise, SwapsForValidation)
}  # fmt: skip
CORRECT["ResetsState"] = lambda: Trains(
    mlp(), inner=lambda p: torch.optim.Adam(p, lr=1e-3), private=ResetsState
)
