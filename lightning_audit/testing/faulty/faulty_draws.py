"""Opacus' optimizer with noise of the right size that is drawn wrongly, one fault per class."""

from __future__ import annotations

import math

import torch
from opacus.optimizers import DPOptimizer

#: Numbers that `TiledNoise` draws for a tensor, and vectors that `PooledNoise` chooses from.
TILE, POOL = 50, 50

Tensors = list[torch.Tensor]


class OwnNoise(DPOptimizer):
    """Adds the noise of `unit_noise`; this base class is correct."""

    def unit_noise(self) -> Tensors:
        """Return noise of standard deviation 1 for each parameter."""
        return [
            torch.randn(p.shape, device=p.device, generator=self.generator) for p in self.params
        ]

    def add_noise(self) -> None:
        """Add the noise to the sums."""
        # The first of several processes adds the noise of all.
        first = getattr(self, "rank", 0) == 0
        std = self.noise_multiplier * self.max_grad_norm if first else 0.0
        for p, noise in zip(self.params, self.unit_noise(), strict=True):
            p.grad = (p.summed_grad + std * noise.to(p.summed_grad)).view_as(p)


class TiledNoise(OwnNoise):
    """Draws fifty numbers per tensor, and repeats them."""

    def unit_noise(self) -> Tensors:
        """Return repeated numbers."""
        flat = [noise.flatten() for noise in super().unit_noise()]
        again = [noise[:TILE].repeat(math.ceil(len(noise) / TILE))[: len(noise)] for noise in flat]
        return [noise.view_as(p) for noise, p in zip(again, self.params, strict=True)]


class MirroredNoise(OwnNoise):
    """The second half of a tensor's noise is the first half negated, in reverse order."""

    def unit_noise(self) -> Tensors:
        """Return half of the noise, and its negated mirror image."""
        found = super().unit_noise()
        for noise in found:
            flat = noise.view(-1)
            half = len(flat) // 2
            flat[len(flat) - half :] = -flat[:half].flip(0)
        return found


class OneInAHundredWithout(OwnNoise):
    """Adds no noise to one entry in a hundred."""

    def unit_noise(self) -> Tensors:
        """Return noise with zeros."""
        found = super().unit_noise()
        for noise in found:
            noise.view(-1)[::100] = 0.0
        return found


class HalfPrecisionNoise(OwnNoise):
    """Draws the noise in bfloat16, for sums in single precision."""

    def unit_noise(self) -> Tensors:
        """Return noise rounded to bfloat16."""
        return [noise.bfloat16().float() for noise in super().unit_noise()]


class PooledNoise(OwnNoise):
    """Takes the noise of a step from a pool of fifty."""

    def unit_noise(self) -> Tensors:
        """Return one vector of the pool."""
        chosen = int(torch.randint(POOL, (), generator=self.generator))
        generator = torch.Generator().manual_seed(chosen)
        return [torch.randn(p.shape, generator=generator) for p in self.params]


class LowRankNoise(OwnNoise):
    """Makes a matrix's noise the product of two columns and two rows."""

    def unit_noise(self) -> Tensors:
        """Return products of thin matrices."""
        found = super().unit_noise()
        for place, noise in enumerate(found):
            if noise.ndim == 2 and min(noise.shape) > 2:
                thin, flat = torch.randn(len(noise), 2), torch.randn(2, noise.shape[1])
                found[place] = thin @ flat / math.sqrt(2.0)
        return found


class LaplaceNoise(OwnNoise):
    """Draws from a Laplace distribution with the stated standard deviation."""

    def unit_noise(self) -> Tensors:
        """Return noise with heavier tails."""
        source = torch.distributions.Laplace(0.0, math.sqrt(0.5))
        return [source.sample(p.shape) for p in self.params]


class SmoothedNoise(OwnNoise):
    """Adds half of each number to its neighbor, and scales the noise to the stated size."""

    def unit_noise(self) -> Tensors:
        """Return noise in which neighbors are correlated."""
        flat = [noise.flatten() for noise in super().unit_noise()]
        mixed = [(noise + 0.5 * noise.roll(1)) / math.sqrt(1.25) for noise in flat]
        return [noise.view_as(p) for noise, p in zip(mixed, self.params, strict=True)]


class PairedNoise(OwnNoise):
    """Gives each entry most of the noise of another entry, anywhere in the gradient."""

    def unit_noise(self) -> Tensors:
        """Return noise of the stated size in which pairs have a correlation of 0.8."""
        noise = torch.cat([own.flatten() for own in super().unit_noise()])
        order = torch.randperm(len(noise), generator=torch.Generator().manual_seed(0))
        one, other = order[: len(order) // 2], order[len(order) // 2 : len(order) // 2 * 2]
        noise[other] = 0.8 * noise[one] + 0.6 * noise[other]
        parts = torch.split(noise, [p.numel() for p in self.params])
        return [own.view_as(p) for own, p in zip(parts, self.params, strict=True)]


class NoiseByBatch(OwnNoise):
    """Scales the noise by the number of records; the size is right on average."""

    def unit_noise(self) -> Tensors:
        """Return noise proportional to the batch's size."""
        part = len(self.params[0].grad_sample) / self.expected_batch_size
        return [part * noise for noise in super().unit_noise()]


class SeededBySum(OwnNoise):
    """Seeds the noise by the gradients of the batch, to make runs reproducible."""

    def unit_noise(self) -> Tensors:
        """Return noise that depends on the records."""
        total = sum(float(p.summed_grad.double().sum()) for p in self.params)
        device = self.params[0].device
        self.generator = torch.Generator(device).manual_seed(int(abs(total) * 1e6) % 2**31)
        return super().unit_noise()
