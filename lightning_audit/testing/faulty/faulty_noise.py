"""Opacus' optimizer with faulty noise, one fault per class.

The classes are planted into an optimizer of `make_private`, see `lightning_audit.testing.faults`.
In several processes, and under per-layer or ghost clipping, they change the noise of that
optimizer's own class.
"""

from __future__ import annotations

import math

import torch
from opacus.optimizers import DistributedDPOptimizer, DPOptimizer

#: Number of seeds that `FewSeeds` draws from.
FEW = 100
#: Number of steps after which `CyclingNoise` repeats.
CYCLE = 8
#: Number of steps before `NoiseEnds` stops adding noise.
SOUND = 20


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
        if self.steps_taken > SOUND:
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
