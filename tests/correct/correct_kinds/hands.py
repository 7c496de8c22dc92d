"""DP-SGD by hand: loops, chunks, views, secure noise, and work before and after the release."""

import dataclasses
import random
import secrets
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional

import lightning_audit
from correct_kinds.base import ByHand, Gradients, row_norms
from correct_kinds.data import diabetes, tumours


def norm_of(sample: Gradients) -> torch.Tensor:
    return torch.stack([g.norm() for g in sample.values()]).norm()


class SystemNoise(ByHand, kind="loop-system-noise"):
    """Correct: noise from the operating system's generator, on the clipped sum. Unusual: a loop
    over records in which random.Random of the module draws a shift, and slow secure noise."""

    def set_up(self) -> None:
        self.shifts, self.secure = random.Random(self.seed), random.SystemRandom()

    def noise(self, total: torch.Tensor) -> torch.Tensor:
        std = self.sigma * self.clip
        drawn = [self.secure.normalvariate(0.0, std) for _ in range(total.numel())]
        return torch.tensor(drawn).view_as(total)

    def training_step(self, batch: Any, batch_idx: int) -> None:
        params = dict(self.net.named_parameters())
        sums = {name: torch.zeros_like(p) for name, p in params.items()}
        for x, y in zip(*batch, strict=True):
            x = x.roll(self.shifts.choice((-1, 0, 1)))
            loss = functional.cross_entropy(self.net(x[None]), y[None])
            found = torch.autograd.grad(loss, list(params.values()))
            self.add(sums, dict(zip(params, found, strict=True)))
        for canary in lightning_audit.rows(module=self.net):
            self.add(sums, canary)
        self.write(sums)
        self.optimizers().step()

    def add(self, sums: Gradients, sample: Gradients) -> None:
        factor = (self.clip / (norm_of(sample) + 1e-9)).clamp(max=1.0)
        for name, g in sample.items():
            sums[name] += factor * g


class Chunks(ByHand, kind="chunks-unseeded"):
    """Correct: each record is clipped, sums of chunks are added, noise once. Unusual: an unseeded
    `default_rng()` for each chunk, whose noise is added to the inputs of its rows."""

    def training_step(self, batch: Any, batch_idx: int) -> None:
        sums = {name: torch.zeros_like(p) for name, p in self.params().items()}
        for x, y in zip(batch[0].split(10), batch[1].split(10), strict=True):
            jitter = np.random.default_rng().normal(0, 0.1, tuple(x.shape)).astype(np.float32)
            grads = self.sample_gradients(x + torch.from_numpy(jitter), y)
            for name, total in self.clipped_sums(grads).items():
                sums[name] += total
        for canary in lightning_audit.rows(module=self.net):
            single = {name: g[None] for name, g in canary.items()}
            for name, total in self.clipped_sums(single).items():
                sums[name] += total
        self.write(sums)
        self.optimizers().step()


class MaskedWeights(ByHand, kind="random-mask-before-clipping"):
    """Correct: a mask over weights that is drawn without a look at the records, before clipping.
    Unusual: draws between per-sample gradients and noise; only noise where the mask is zero."""

    def training_step(self, batch: Any, batch_idx: int) -> None:
        grads = self.sample_gradients(*batch)
        masks = {name: torch.rand(p.shape) < 0.7 for name, p in self.params().items()}
        grads = lightning_audit.per_sample(grads, module=self)
        self.write(self.clipped_sums({name: g * masks[name] for name, g in grads.items()}))
        self.optimizers().step()


class DropoutInVmap(ByHand, kind="dropout-in-vmap-released"):
    """Correct: every record has a dropout mask of its own. Unusual: dropout within vmap with
    randomness "different", then momentum and a rate that follows the released gradient."""

    randomness = "different"

    def make_net(self) -> nn.Module:
        return nn.Sequential(nn.Linear(64, 24), nn.ReLU(), nn.Dropout(0.3), nn.Linear(24, 10))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)

    def training_step(self, batch: Any, batch_idx: int) -> None:
        grads = self.rows_of(*batch)
        noisy = lightning_audit.released(self.noisy(self.clipped_sums(grads)), module=self)
        for name, p in self.net.named_parameters():
            p.grad = noisy[name].clone()
        optimizer = self.optimizers()
        for group in optimizer.param_groups:
            group["lr"] = float(0.05 / (1.0 + norm_of(noisy)))
        optimizer.step()


class AutomaticClipping(ByHand, kind="automatic-clipping"):
    """Correct: g / (|g| + 0.01) has a norm below one, which is the claimed clipping norm. Unusual:
    there is no threshold; a torch.Generator seeded by `secrets` draws noise in one draw."""

    def set_up(self) -> None:
        self.secure = torch.Generator().manual_seed(secrets.randbits(62))

    def factors(self, norms: torch.Tensor) -> torch.Tensor:
        return self.clip / (norms + 0.01)

    def write(self, sums: Gradients) -> None:
        sizes = [total.numel() for total in sums.values()]
        noise = self.sigma * self.clip * torch.randn(sum(sizes), generator=self.secure)
        parts = dict(zip(sums, noise.split(sizes), strict=True))
        for name, p in self.net.named_parameters():
            p.grad = (sums[name] + parts[name].view_as(p)) / self.batch_size


class LayerNorms(ByHand, kind="layer-clipping-by-hand"):
    """Correct: each tensor is clipped to C / sqrt(4), so that a record adds at most C. Unusual:
    clipped by layer by hand; noise on targets drawn in the loss, the same for each record."""

    randomness = "same"
    batch_size, widths, source = 22, (10, 32, 1), staticmethod(diabetes)

    def loss(self, params: Gradients, *record: torch.Tensor) -> torch.Tensor:
        x, y = record
        return functional.huber_loss(self.call(params, x)[0], y + 0.1 * torch.randn(()))

    def clipped_sums(self, grads: Gradients) -> Gradients:
        sums = {}
        for name, g in grads.items():
            factors = (self.clip / len(grads) ** 0.5 / (row_norms([g]) + 1e-9)).clamp(max=1.0)
            sums[name] = torch.einsum("i,i...", factors, g)
        return sums


class SelfDistilled(ByHand, kind="self-distilled-by-hand"):
    """Correct: the teacher is an average of released weights, which is post-processing. Unusual:
    functional_call of the averaged weights within the loss; secrets chooses when it is used."""

    widths, source = (30, 24, 2), staticmethod(tumours)

    def set_up(self) -> None:
        self.average = {name: p.clone() for name, p in self.params().items()}

    def loss(self, params: Gradients, *record: torch.Tensor) -> torch.Tensor:
        x, y = record
        scores = self.call(params, x)
        told = functional_call(self.net, self.average, (x[None],))[0].softmax(0)
        loss = functional.cross_entropy(scores, y)
        return loss - self.used * (told * scores.log_softmax(0)).sum()

    def training_step(self, batch: Any, batch_idx: int) -> None:
        self.used = float(secrets.randbelow(2))
        super().training_step(batch, batch_idx)
        for name, p in self.params().items():
            self.average[name].lerp_(p, 0.1)


class ZerothOrder(ByHand):
    def numbers(self, batch: Any, along: Gradients, shift: float) -> torch.Tensor:
        """Each record's difference of losses along a direction, by length."""
        losses = []
        for by in (shift, -shift):
            moved = {n: p + by * along[n] / norm_of(along) for n, p in self.params().items()}
            outputs = functional_call(self.net, moved, (batch[0],))
            losses.append(functional.cross_entropy(outputs, batch[1], reduction="none").detach())
        return (losses[0] - losses[1]) / (2 * shift)


class OneNoisyNumber(ZerothOrder, kind="zeroth-order-one-number"):
    """Correct: each record's difference of losses along a public direction is clipped, and the sum
    has noise. Unusual: one noisy number a step (DPZero), so that no entry has noise of its own."""

    def training_step(self, batch: Any, batch_idx: int) -> None:
        public = torch.Generator().manual_seed(1000 + batch_idx)
        along = {n: torch.randn(p.shape, generator=public) for n, p in self.params().items()}
        length, numbers = norm_of(along), self.numbers(batch, along, 1e-3)
        numbers = numbers.clamp(-self.clip, self.clip)
        noisy = (numbers.sum() + self.noise(numbers.sum())) / self.batch_size
        for name, p in self.net.named_parameters():
            p.grad = noisy * along[name] / length
        self.optimizers().step()


class HandedNumbers(ZerothOrder, kind="zeroth-order-rows-handed-over"):
    """Correct: a record's row is its difference of losses times a public direction, clipped to C;
    the noise is one number times this direction. Unusual: rows go through `per_sample`, and crafted
    rows in their place have other directions than the noise (DPZero, DP-ZO)."""

    def training_step(self, batch: Any, batch_idx: int) -> None:
        along = {n: torch.randn_like(p) for n, p in self.params().items()}
        length, numbers = norm_of(along), self.numbers(batch, along, 1e-2)
        grads = {n: torch.einsum("i,...->i...", numbers, a / length) for n, a in along.items()}
        grads = lightning_audit.per_sample(grads, module=self)
        factors = self.factors(row_norms(grads.values()))
        drawn = self.noise(factors.sum())
        for name, p in self.net.named_parameters():
            total = torch.einsum("i,i...->...", factors, grads[name])
            p.grad = (total + drawn * along[name] / length) / self.batch_size
        self.optimizers().step()


class TreeNoise(ByHand, kind="tree-noise-of-prefix-sums"):
    """Correct: the noise of each prefix sum is that of the nodes of a binary tree (DP-FTRL).
    Unusual: the noise of a step is the difference of two prefixes, correlated with earlier steps;
    no epsilon is stated, since DP-SGD's accounting does not hold."""

    def set_up(self) -> None:
        self.taken, self.nodes, self.before = 0, {}, {}

    def audit_arguments(self) -> dict[str, Any]:
        claim = super().audit_arguments()["claim"]
        return {"claim": dataclasses.replace(claim, sample_rate=None)}

    def prefix(self, name: str, total: torch.Tensor) -> torch.Tensor:
        bits = [b for b in range(self.taken.bit_length()) if self.taken >> b & 1]
        drawn = [self.nodes.setdefault((name, b, self.taken >> b), self.noise(total)) for b in bits]
        return torch.stack(drawn).sum(0)

    def write(self, sums: Gradients) -> None:
        self.taken += 1
        now = {name: self.prefix(name, total) for name, total in sums.items()}
        for name, p in self.net.named_parameters():
            p.grad = (sums[name] + now[name] - self.before.get(name, 0.0)) / self.batch_size
        self.before = now
