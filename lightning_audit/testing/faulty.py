"""Opacus' optimizer with faulty clipping, noise, draws or sums: one fault per class.

**Opacus' optimizer with faulty clipping, or a faulty step around it, one fault per class.** The
classes clip per-sample gradients at one norm, so they replace an optimizer that does so.

**Opacus' optimizer with faulty noise, one fault per class.** The classes are planted into an
optimizer of `make_private`, see `lightning_audit.testing.faults`. In several processes, and under
per-layer or ghost clipping, they change the noise of that optimizer's own class.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from opacus.optimizers import DistributedDPOptimizer, DPOptimizer, DPOptimizerFastGradientClipping

# --- Opacus' optimizer with faulty clipping, or a faulty step around it, one fault per class.

#: `ClipsNotAlways` does not clip one batch in this number.
SPARED = 8
#: Number of steps before `ClippingEnds` stops clipping.
SOUND_BATCHES = 40


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
        if self.batches_taken <= SOUND_BATCHES:
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


# --- Opacus' optimizer with noise of the right size that is drawn wrongly, one fault per class.

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
        device = self.params[0].device
        chosen = int(torch.randint(POOL, (), device=device, generator=self.generator))
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
        total = sum(float(p.summed_grad.cpu().double().sum()) for p in self.params)
        device = self.params[0].device
        self.generator = torch.Generator(device).manual_seed(int(abs(total) * 1e6) % 2**31)
        return super().unit_noise()


# --- Opacus' optimizer with noise that is correlated over steps, one kind per class.

#: Weights of a step's draws, the current one first.
COEFFICIENTS = (1.0, -0.5, -0.25)


class AutoregressiveNoise(OwnNoise):
    """Noise of the right size that contains a part of the previous step's noise."""

    part: float = 0.4
    latest: Tensors | None = None

    def unit_noise(self) -> Tensors:
        """Mix new noise with that of the previous step."""
        drawn = super().unit_noise()
        if self.latest is not None:
            new = math.sqrt(1.0 - self.part**2)
            pairs = zip(self.latest, drawn, strict=True)
            drawn = [self.part * old + new * now for old, now in pairs]
        self.latest = drawn
        return drawn


class OppositeNoise(AutoregressiveNoise):
    """Noise of the right size that subtracts a part of the previous step's noise."""

    part = -0.6


class FlippedNoise(OwnNoise):
    """Every second step subtracts the noise of the previous step."""

    latest: Tensors | None = None

    def unit_noise(self) -> Tensors:
        """Return new noise, or the negative of the previous noise."""
        drawn = super().unit_noise() if self.latest is None else [-old for old in self.latest]
        self.latest = drawn if self.latest is None else None
        return drawn


class CancellingNoise(OwnNoise):
    """Noise of the right size whose sum over the steps stays small."""

    latest: Tensors | None = None

    def unit_noise(self) -> Tensors:
        """Subtract the previous draw from a new one."""
        drawn, latest = super().unit_noise(), self.latest
        self.latest = drawn
        if latest is None:
            return drawn
        return [math.sqrt(0.5) * (now - old) for now, old in zip(drawn, latest, strict=True)]


class BandedDraws:
    """Noise that is a weighted sum of a step's draw and those of the previous steps.

    Args:
        coefficients: weights of the draws, the current one first.
        factor: of the whole sum.
    """

    def __init__(self, coefficients: tuple[float, ...] = COEFFICIENTS, factor: float = 1.0) -> None:
        self.coefficients, self.factor = coefficients, factor
        self._past: dict[int, deque[torch.Tensor]] = {}

    def noise(
        self, place: int, like: torch.Tensor, generator: torch.Generator | None = None
    ) -> torch.Tensor:
        """Return the noise of a step for a parameter; each draw has standard deviation 1.

        Args:
            place: number of the parameter.
            like: a tensor of its shape, dtype and device.
            generator: of the draw; None for torch's global one.
        """
        draw = torch.randn(like.shape, dtype=like.dtype, device=like.device, generator=generator)
        past = self._past.setdefault(place, deque(maxlen=len(self.coefficients) - 1))
        draws = (draw, *past)
        past.appendleft(draw)
        pairs = zip(self.coefficients, draws, strict=False)
        return self.factor * torch.stack([weight * one for weight, one in pairs]).sum(0)


class BandedNoise(OwnNoise):
    """Adds banded noise with `COEFFICIENTS`: correct if they are claimed."""

    coefficients: tuple[float, ...] = COEFFICIENTS
    factor: float = 1.0

    def unit_noise(self) -> Tensors:
        """Return the weighted sum of this step's draw and the previous ones."""
        draws: BandedDraws = self.__dict__.setdefault(
            "banded_draws", BandedDraws(self.coefficients, self.factor)
        )
        return [
            draws.noise(place, p.summed_grad, self.generator) for place, p in enumerate(self.params)
        ]


class HalfBandedNoise(BandedNoise):
    """Adds half of the banded noise."""

    factor = 0.5


# --- Opacus' optimizer with faulty noise, one fault per class.

#: Number of seeds that `FewSeeds` draws from.
FEW = 100
#: Number of steps after which `CyclingNoise` repeats.
CYCLE = 8
#: Number of steps before `NoiseEnds` stops adding noise.
SOUND_STEPS = 20


class ScaledNoise(DPOptimizer):
    """Adds ``factor`` times the noise that it states."""

    factor: float = 1.0
    noise_multiplier: float

    def add_noise(self) -> None:
        """Draw the noise at a scale other than the stated one."""
        stated = self.noise_multiplier
        self.noise_multiplier = self.factor * stated
        super().add_noise()
        self.noise_multiplier = stated


class HalfNoise(ScaledNoise):
    """Adds half the noise that it states."""

    factor = 0.5


class NoiseEnds(DPOptimizer):
    """Adds no noise from a step on."""

    steps_taken = 0
    noise_multiplier: float

    def add_noise(self) -> None:
        """Add noise only in the first steps."""
        self.steps_taken += 1
        stated = self.noise_multiplier
        if self.steps_taken > SOUND_STEPS:
            self.noise_multiplier = 0.0
        super().add_noise()
        self.noise_multiplier = stated


class NoNoise(ScaledNoise):
    """Adds no noise."""

    factor = 0.0


class NoiseOverBatch(ScaledNoise):
    """Adds noise of the mean's size to the sum."""

    @property
    def factor(self) -> float:  # type: ignore[override]  # read only here
        """One over the expected batch size."""
        return 1.0 / self.expected_batch_size


class NoiseTimesBatch(ScaledNoise):
    """Adds noise of the sum's size to the mean."""

    @property
    def factor(self) -> float:  # type: ignore[override]  # read only here
        """The expected batch size."""
        return float(self.expected_batch_size)


class NoiseOfSquaredNorm(ScaledNoise):
    """Adds noise of standard deviation sigma C^2; too little if C < 1."""

    @property
    def factor(self) -> float:  # type: ignore[override]  # read only here
        """A second factor of the clipping norm."""
        return float(self.max_grad_norm)


class NoiseOfSquaredMultiplier(ScaledNoise):
    """Uses the variance as the standard deviation; too little noise if sigma < 1."""

    @property
    def factor(self) -> float:  # type: ignore[override]  # read only here
        """A second factor of the noise multiplier."""
        return float(self.noise_multiplier)


class NoNoiseOnBiases(DPOptimizer):
    """Adds no noise to one-dimensional tensors."""

    def add_noise(self) -> None:
        """Remove the noise of the biases."""
        super().add_noise()
        for p in self.params:
            if p.ndim == 1:
                p.grad = p.summed_grad.clone()


class NoNoiseOnLastLayer(DPOptimizer):
    """Adds no noise to the last weight matrix and the tensors after it."""

    def add_noise(self) -> None:
        """Remove the noise of the last layer."""
        super().add_noise()
        last = max(i for i, p in enumerate(self.params) if p.ndim > 1)
        for p in self.params[last:]:
            p.grad = p.summed_grad.view_as(p).clone()


class ReseededNoise(DPOptimizer):
    """Seeds the generator with the same seed at every step."""

    def add_noise(self) -> None:
        """Draw the noise of the first step again."""
        self.generator = _seeded(self, 7)
        super().add_noise()


class CyclingNoise(DPOptimizer):
    """Repeats the noise after some steps."""

    steps_taken = 0

    def add_noise(self) -> None:
        """Draw from the seed of the position in the cycle."""
        self.generator = _seeded(self, self.steps_taken % CYCLE)
        self.steps_taken += 1
        super().add_noise()


class FewSeeds(DPOptimizer):
    """Seeds a step's noise with one of a hundred seeds."""

    def add_noise(self) -> None:
        """Draw a seed, then the noise."""
        self.generator = _seeded(self, int(torch.randint(FEW, ())))
        super().add_noise()


class BroadcastNoise(DPOptimizer):
    """Adds one draw to all coordinates of a step."""

    def add_noise(self) -> None:
        """Add one number to the whole gradient."""
        draw = float(torch.randn(())) * self.noise_multiplier * self.max_grad_norm
        for p in self.params:
            p.grad = (p.summed_grad + draw).view_as(p)


class OneKeyForAllTensors(DPOptimizer):
    """Uses a new key at every step, the same for every tensor."""

    def add_noise(self) -> None:
        """Draw every tensor's noise from the same seed."""
        key = int(torch.randint(2**31, ()))
        std = self.noise_multiplier * self.max_grad_norm
        for p in self.params:
            noise = torch.randn(p.shape, device=p.device, generator=_seeded(self, key))
            p.grad = (p.summed_grad + noise * std).view_as(p)


class LessNoiseOnLargest(DPOptimizer):
    """Adds nine tenths of the noise to the largest tensor."""

    def add_noise(self) -> None:
        """Remove a tenth of the largest tensor's noise."""
        super().add_noise()
        p = max(self.params, key=torch.nn.Parameter.numel)
        p.grad = 0.9 * p.grad + 0.1 * p.summed_grad.view_as(p)


class ShiftedNoise(DPOptimizer):
    """Noise whose mean is half its standard deviation."""

    def add_noise(self) -> None:
        """Add a constant to the noise."""
        super().add_noise()
        for p in self.params:
            p.grad += 0.5 * self.noise_multiplier * self.max_grad_norm


class UniformNoise(DPOptimizer):
    """Uniform noise of the stated standard deviation."""

    def add_noise(self) -> None:
        """Draw from a uniform instead of a normal distribution."""
        width = math.sqrt(12.0) * self.noise_multiplier * self.max_grad_norm
        for p in self.params:
            p.grad = (p.summed_grad + (torch.rand_like(p) - 0.5) * width).view_as(p)


class LatticeNoise(DPOptimizer):
    """Noise that is rounded to integer multiples of its standard deviation."""

    def add_noise(self) -> None:
        """Round the noise, as a low-precision dtype does."""
        std = self.noise_multiplier * self.max_grad_norm
        for p in self.params:
            p.grad = (p.summed_grad + torch.randn_like(p).round() * std).view_as(p)


class NoisePerMicroBatch(DPOptimizer):
    """Adds the noise of a step to each part of a split batch."""

    def clip_and_accumulate(self) -> None:
        """Clip a part, and add noise to it."""
        super().clip_and_accumulate()
        std = self.noise_multiplier * self.max_grad_norm
        for p in self.params:
            p.summed_grad = p.summed_grad + std * torch.randn_like(p.summed_grad)

    def add_noise(self) -> None:
        """Add nothing: the sum has its noise already."""
        for p in self.params:
            p.grad = p.summed_grad.view_as(p).clone()


class AveragedNoise(DistributedDPOptimizer):
    """Each of W processes adds 1/W of the noise, whose sum is too small by a factor of sqrt(W)."""

    noise_multiplier: float

    def add_noise(self) -> None:
        """Add this process's part."""
        stated = self.noise_multiplier
        self.noise_multiplier = stated / self.world_size
        DPOptimizer.add_noise(self)
        self.noise_multiplier = stated


class EqualNoise(DistributedDPOptimizer):
    """Each of W processes adds its share, 1/sqrt(W) of the noise, from the same seed."""

    noise_multiplier: float
    generator: torch.Generator | None

    def add_noise(self) -> None:
        """Add this process's share, which equals that of all others."""
        stated = self.noise_multiplier
        if self.generator is None:
            self.generator = _seeded(self, 7)
        self.noise_multiplier = stated / math.sqrt(self.world_size)
        DPOptimizer.add_noise(self)
        self.noise_multiplier = stated


def _seeded(optimizer: DPOptimizer, seed: int) -> torch.Generator:
    return torch.Generator(optimizer.params[0].device).manual_seed(seed)


# --- Opacus' optimizers with faulty sums over the parts of a split batch, one fault per class.


class AliasedSum(DPOptimizerFastGradientClipping):
    """The sum of the parts shares its memory with ``p.grad``, as it did in Opacus before #707.

    Each backward pass sets ``p.grad``, and thereby the sum, to zero. Then both hold the part's own
    gradient, which is added to itself.
    """

    def accumulate(self) -> None:
        """Add a part to the sum, and begin the sum with a part's own memory."""
        for p in self.params:
            if p.summed_grad is not None:
                p.summed_grad.add_(p.grad.data)
            else:
                p.summed_grad = p.grad.data


class SumOfSums(DPOptimizer):
    """Adds up ``summed_grad`` after each part, although it is already the sum of all parts."""

    def clip_and_accumulate(self) -> None:
        """Clip a part, and add the sum so far again."""
        before = [None if p.summed_grad is None else p.summed_grad.clone() for p in self.params]
        super().clip_and_accumulate()
        for p, earlier in zip(self.params, before, strict=True):
            if earlier is not None:
                p.summed_grad += earlier
