"""Opacus' optimizer with faulty clipping, noise, draws or sums: one fault per class.

The classes are planted into an optimizer of `make_private`, see `lightning_audit.testing.faults`.
Those of the clipping replace an optimizer that clips per-sample gradients at one norm. Those of the
noise, in several processes and under per-layer or ghost clipping, change the noise of that
optimizer's own class.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from opacus.optimizers import DistributedDPOptimizer, DPOptimizer, DPOptimizerFastGradientClipping
from opacus.optimizers.optimizer import _mark_as_processed

from lightning_audit.accounting.claims import PrivacyClaim
from lightning_audit.checks.noise import (
    ADDED_IN_PARTS,
    DRAWN_ALIKE,
    MORE_NOISE,
    NOISE_EXCESS,
    NOISE_MEAN,
)
from lightning_audit.testing.fault import fault
from lightning_audit.testing.trainings import (
    EXAMINED,
    Distributed,
    GhostInParts,
    PhysicalBatches,
    SplitBatches,
)

# --- Faulty clipping.

#: `ClipsNotAlways` does not clip one batch in this number.
SPARED = 8
#: Number of steps before `ClippingEnds` stops clipping.
SOUND_BATCHES = 40

Rows = torch.Tensor


@contextmanager
def multiplied(owner: Any, setting: str, factor: float) -> Iterator[None]:
    """Multiply a setting of an optimizer, and restore the stated value."""
    stated = getattr(owner, setting)
    setattr(owner, setting, factor * stated)
    yield
    setattr(owner, setting, stated)


@fault("much hand-written DP-SGD; tensorflow/privacy #135, #81")
class ClipAfterAverage(DPOptimizer):
    """The batch's mean gradient is clipped instead of each sample's."""

    def clip_and_accumulate(self) -> None:
        """Clip the batch's mean; the noise is that for per-sample clipping."""
        means = [g.mean(0) if len(g) else g.sum(0) for g in self.grad_samples]
        norm = torch.stack([mean.norm() for mean in means]).norm()
        factor = (self.max_grad_norm / (norm + 1e-6)).clamp(max=1.0)
        for p, mean in zip(self.params, means, strict=True):
            p.summed_grad = mean * factor * self.expected_batch_size


@fault("opacus PR #664", steps=60, named="clipping_norm_too_large")
class ClipAtTwice(DPOptimizer):
    """Gradients are clipped at another norm than `max_grad_norm`."""

    def clip_and_accumulate(self) -> None:
        """Clip at twice the stated norm."""
        with multiplied(self, "max_grad_norm", 2):
            super().clip_and_accumulate()


@fault("opacus PR #664")
class NoClipping(DPOptimizer):
    """Gradients are not clipped."""

    def clip_and_accumulate(self) -> None:
        """Sum without clipping."""
        for p in self.params:
            p.summed_grad = self._get_flat_grad_sample(p).sum(0)


class ClipsAtTimes(NoClipping):
    """Does not clip the batches that `is_spared` chooses."""

    batches_taken = 0

    def is_spared(self) -> bool:
        """Return whether not to clip this batch."""
        return False

    def clip_and_accumulate(self) -> None:
        """Clip all batches but some."""
        self.batches_taken += 1
        if self.is_spared():
            super().clip_and_accumulate()
        else:
            DPOptimizer.clip_and_accumulate(self)


@fault(
    "special cases for the last batch of an epoch",
    wrong=f"the gradients of one batch in {SPARED} are not clipped",
    steps=60,
    reason="a single large reading may come from the data",
    named="clipping_missing_at_times",
)
class ClipsNotAlways(ClipsAtTimes):
    """Sums unclipped per-sample gradients at one step in eight."""

    def is_spared(self) -> bool:
        """Return whether not to clip this batch."""
        return self.batches_taken % SPARED == 0


@fault(
    "a flag that ends with the warm-up",
    wrong=f"gradients are not clipped from step {SOUND_BATCHES + 1} on",
    steps=60,
    named="clipping_missing_from_a_step_on",
)
class ClippingEnds(ClipsAtTimes):
    """Sums unclipped per-sample gradients from a step on."""

    def is_spared(self) -> bool:
        """Return whether not to clip this batch."""
        return self.batches_taken > SOUND_BATCHES


class OwnFactors(DPOptimizer):
    """Clips by the factors of `factors`; this base class is correct."""

    def factors(self, rows: Rows) -> torch.Tensor:
        """Return the factor of each per-sample gradient, ``[n, d]`` to ``[n]``."""
        return (self.max_grad_norm / (rows.norm(dim=1) + 1e-6)).clamp(max=1.0)

    def counted(self, p: torch.Tensor) -> bool:
        """Return whether the factors depend on a parameter's gradients."""
        return True

    def clip_and_accumulate(self) -> None:
        """Sum the clipped per-sample gradients."""
        samples = self.grad_samples
        if samples[0].numel() == 0:
            super().clip_and_accumulate()
            return
        pairs = list(zip(self.params, samples, strict=True))
        factors = self.factors(torch.cat([g.flatten(1) for p, g in pairs if self.counted(p)], 1))
        for p, sample in pairs:
            total = torch.einsum("i,i...", factors.to(sample), sample)
            p.summed_grad = total if p.summed_grad is None else p.summed_grad + total
            _mark_as_processed(p.grad_sample)


@fault("jax_privacy #385", steps=100)
class ClipPerTensor(OwnFactors):
    """Each tensor is clipped to the norm of the whole gradient."""

    def clip_and_accumulate(self) -> None:
        """Clip tensor by tensor."""
        for p, sample in zip(self.params, self.grad_samples, strict=True):
            p.summed_grad = torch.einsum("i,i...", self.factors(sample.flatten(1)), sample)


@fault("opacus #751", steps=60, named="clipping_misses_tensors")
class NormMissesBiases(OwnFactors):
    """The norm by which gradients are clipped misses the biases."""

    def counted(self, p: torch.Tensor) -> bool:
        """Return whether it is a weight."""
        return p.ndim > 1


@fault(
    "adaptive clipping without private counts", audit=EXAMINED, named="clipping_norm_of_the_batch"
)
class ClipByMedianNorm(OwnFactors):
    """Gradients are clipped at the median norm of their batch."""

    def factors(self, rows: Rows) -> torch.Tensor:
        """Factor of each per-sample gradient."""
        norms = rows.norm(dim=1)
        return (norms.median() / (norms + 1e-6)).clamp(max=1.0)


@fault("loops that start at the second row", audit=EXAMINED, named="one_record_moves_too_much")
class FirstRowNotClipped(OwnFactors):
    """The first record of each batch is not clipped."""

    def factors(self, rows: Rows) -> torch.Tensor:
        """Factor of each per-sample gradient."""
        factors = super().factors(rows).clone()
        factors[:1] = 1.0
        return factors


@fault("`norm(p=...)` with another order", audit=EXAMINED, named="one_record_moves_too_much")
class ClipByThreeNorm(OwnFactors):
    """Gradients are clipped by their 3-norm.

    It is smaller than the 2-norm, to which the noise is calibrated.
    """

    def factors(self, rows: Rows) -> torch.Tensor:
        """Factor of each per-sample gradient."""
        return (self.max_grad_norm / (rows.norm(p=3, dim=1) + 1e-6)).clamp(max=1.0)


@fault(
    "clipping as used against exploding gradients",
    audit=EXAMINED,
    named="one_record_moves_too_much",
)
class OnlyOutliersClipped(OwnFactors):
    """Only gradients above ten times the clipping norm are clipped."""

    def factors(self, rows: Rows) -> torch.Tensor:
        """Factor of each per-sample gradient."""
        norms = rows.norm(dim=1)
        kept = torch.ones_like(norms)
        return torch.where(norms > 10 * self.max_grad_norm, super().factors(rows), kept)


@fault("micro-batches of two", audit=EXAMINED, named="some_gradients_not_clipped")
class TwoClippedTogether(OwnFactors):
    """Two records are clipped by the norm of their sum."""

    def factors(self, rows: Rows) -> torch.Tensor:
        """Factor of each per-sample gradient."""
        factors = super().factors(rows).clone()
        together = self.max_grad_norm / (rows[:2].sum(0).norm() + 1e-6)
        factors[:2] = together.clamp(max=1.0)
        return factors


# --- A faulty step around the clipping.


@fault("opacus #420, #571, #819")
class DividesByRealisedBatch(DPOptimizer):
    """The sum is divided by the actual number of records in a Poisson batch."""

    rows = 1

    def clip_and_accumulate(self) -> None:
        """Clip, and count the samples."""
        self.rows = max(1, len(self.grad_samples[0]))
        super().clip_and_accumulate()

    def scale_grad(self) -> None:
        """Divide by the count."""
        for p in self.params:
            p.grad /= self.rows


@fault("opacus #313, PR #330", named="gradient_replaced")
class ClosureRunsAgain(DPOptimizer):
    """The closure is passed to the inner optimizer: it computes the raw gradient again."""

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Clip and add noise, then lose both."""
        if closure is not None:
            with torch.enable_grad():
                closure()
        if self.pre_step():
            return self.original_optimizer.step(closure)
        return None


@fault("momentum computed before clipping", audit=EXAMINED, steps=8, named="more_than_the_release")
class MomentumOfRawGradients(DPOptimizer):
    """An average of raw gradients updates the weights in addition to the private ones."""

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


@fault("learning rates that adapt to the gradient", audit=EXAMINED, named="more_than_the_release")
class LearningRateByRawNorm(DPOptimizer):
    """The learning rate of a step is computed from the norm of its raw gradients."""

    def pre_step(self, closure: Any = None) -> bool | None:
        """Set the learning rate, clip and add noise."""
        norm = sum(float(p.grad_sample.sum(0).norm()) for p in self.params)
        for group in self.original_optimizer.param_groups:
            group["lr"] = 0.05 / (1.0 + norm)
        steps: bool | None = super().pre_step(closure)
        return steps


# --- Faulty sums over the parts of a split batch.


@fault("opacus PR #707", training=GhostInParts, steps=200, named="parts_count_differently")
class PartsShareMemory(DPOptimizerFastGradientClipping):
    """Ghost clipping: the sum over physical batches shares its memory with `p.grad`.

    Earlier ones are lost and the last one counts twice, as in Opacus before #707: each backward
    pass sets ``p.grad``, and thereby the sum, to zero. Then both hold the part's own gradient,
    which is added to itself.
    """

    def accumulate(self) -> None:
        """Add a part to the sum, and begin the sum with a part's own memory."""
        for p in self.params:
            if p.summed_grad is not None:
                p.summed_grad.add_(p.grad.data)
            else:
                p.summed_grad = p.grad.data


@fault(
    "a variant of opacus PR #707",
    training=PhysicalBatches,
    steps=100,
    named="parts_count_differently",
)
class PartsAreAddedAgain(DPOptimizer):
    """The sum over physical batches is added again after each, so that earlier ones count again."""

    def clip_and_accumulate(self) -> None:
        """Clip a part, and add the sum so far again."""
        before = [None if p.summed_grad is None else p.summed_grad.clone() for p in self.params]
        super().clip_and_accumulate()
        for p, earlier in zip(self.params, before, strict=True):
            if earlier is not None:
                p.summed_grad += earlier


# --- Noise of another size, in some tensors or all.

#: Number of steps before `NoiseEnds` stops adding noise.
SOUND_STEPS = 20


class ScaledNoise(DPOptimizer):
    """Adds ``factor`` times the noise that it states."""

    factor: float = 1.0

    def scale(self) -> float:
        """Return the factor of a step's noise."""
        return self.factor

    def add_noise(self) -> None:
        """Draw the noise at a scale other than the stated one."""
        with multiplied(self, "noise_multiplier", self.scale()):
            super().add_noise()


@fault("greenelab/SPRINT_gan #5", named="noise_too_small")
class HalfNoise(ScaledNoise):
    """Half the noise is added."""

    factor = 0.5


@fault(
    "a noise schedule that the claim does not state",
    wrong=f"no noise is added from step {SOUND_STEPS + 1} on",
    steps=30,
    named="noise_too_small_from_a_step_on",
)
class NoiseEnds(ScaledNoise):
    """Adds no noise from a step on."""

    steps_taken = 0

    def scale(self) -> float:
        """Return 1 in the first steps."""
        self.steps_taken += 1
        return float(self.steps_taken <= SOUND_STEPS)


@fault("a variant of opacus #313")
class NoNoise(ScaledNoise):
    """No noise is added."""

    factor = 0.0


@fault("Tramer et al., arXiv 2202.12219; tensorflow/privacy #153", named="noise_divided_by_batch")
class NoiseOverBatch(ScaledNoise):
    """Noise of the mean's size is added to the sum."""

    def scale(self) -> float:
        """Return one over the expected batch size."""
        return 1.0 / self.expected_batch_size


@fault("tensorflow/privacy #153", ends="INCONCLUSIVE", check=NOISE_EXCESS.name, sentence=MORE_NOISE)
class NoiseTimesBatch(ScaledNoise):
    """Noise of the sum's size is added to the mean."""

    def scale(self) -> float:
        """Return the expected batch size."""
        return float(self.expected_batch_size)


@fault("greenelab/SPRINT_gan #5", settings={"max_grad_norm": 0.5})
class NoiseOfSquaredNorm(ScaledNoise):
    """The noise is sigma C^2, for a clipping norm C below 1."""

    def scale(self) -> float:
        """Return a second factor of the clipping norm."""
        return float(self.max_grad_norm)


@fault("greenelab/SPRINT_gan #5", settings={"noise_multiplier": 0.5})
class NoiseOfSquaredMultiplier(ScaledNoise):
    """The variance is used as the standard deviation, for a noise multiplier below 1."""

    def scale(self) -> float:
        """Return a second factor of the noise multiplier."""
        return float(self.noise_multiplier)


@fault("NVFlare #343", named="noise_missing_in_tensors")
class NoNoiseOnBiases(DPOptimizer):
    """Biases have no noise."""

    def add_noise(self) -> None:
        """Remove the noise of the biases."""
        super().add_noise()
        for p in self.params:
            if p.ndim == 1:
                p.grad = p.summed_grad.clone()


@fault("NVFlare #343", named="noise_missing_in_tensors")
class NoNoiseOnLastLayer(DPOptimizer):
    """The last layer has no noise."""

    def add_noise(self) -> None:
        """Remove the noise of the last weight matrix and of the tensors after it."""
        super().add_noise()
        last = max(i for i, p in enumerate(self.params) if p.ndim > 1)
        for p in self.params[last:]:
            p.grad = p.summed_grad.view_as(p).clone()


@fault(
    "a scale set per layer",
    named="noise_too_small_over_a_tensor",
    otherwise="noise_too_small_in_tensors",
)
class LessNoiseOnLargest(DPOptimizer):
    """The largest tensor has nine tenths of the noise."""

    def add_noise(self) -> None:
        """Remove a tenth of the largest tensor's noise."""
        super().add_noise()
        p = max(self.params, key=torch.nn.Parameter.numel)
        p.grad = 0.9 * p.grad + 0.1 * p.summed_grad.view_as(p)


@fault(
    "opacus #143",
    training=SplitBatches,
    ends="INCONCLUSIVE",
    check=NOISE_EXCESS.name,
    sentence=ADDED_IN_PARTS,
)
class NoisePerMicroBatch(DPOptimizer):
    """Each part of a split batch gets the noise of a step."""

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


@fault("optax #148", training=Distributed, processes=2)
class NoiseAveragedOverProcesses(DistributedDPOptimizer):
    """Each of W processes draws noise, and their mean is added, which has 1/W of the variance."""

    def part(self) -> float:
        """Return the part of the noise that this process adds."""
        return 1.0 / self.world_size

    def add_noise(self) -> None:
        """Add this process's part."""
        with multiplied(self, "noise_multiplier", self.part()):
            DPOptimizer.add_noise(self)


@fault(
    "a seed without the rank",
    training=Distributed,
    ends="INCONCLUSIVE",
    check=NOISE_EXCESS.name,
    sentence=DRAWN_ALIKE,
    processes=2,
)
class EqualNoiseInAllProcesses(NoiseAveragedOverProcesses):
    """Each process adds its share of the noise, drawn from the same seed in all of them."""

    generator: torch.Generator | None

    def part(self) -> float:
        """Return the share of independent draws, with which all add up to the noise."""
        return 1.0 / math.sqrt(self.world_size)

    def add_noise(self) -> None:
        """Add this process's share, which equals that of all others."""
        if self.generator is None:
            self.generator = _seeded(self, 7)
        super().add_noise()


# --- Noise that is drawn again.

#: Number of seeds that `FewSeeds` draws from.
FEW = 100
#: Number of steps after which `NoiseInACycle` repeats.
CYCLE = 8


@fault("Nasr et al. 2023, violation 2, at its extreme")
class SameNoiseAtEveryStep(DPOptimizer):
    """The generator is seeded again at every step."""

    def add_noise(self) -> None:
        """Draw the noise of the first step again."""
        self.generator = _seeded(self, 7)
        super().add_noise()


@fault("Nasr et al. 2023, violation 2, a variant", wrong=f"the noise repeats every {CYCLE} steps")
class NoiseInACycle(DPOptimizer):
    """Repeats the noise after some steps."""

    steps_taken = 0

    def add_noise(self) -> None:
        """Draw from the seed of the position in the cycle."""
        self.generator = _seeded(self, self.steps_taken % CYCLE)
        self.steps_taken += 1
        super().add_noise()


@fault(
    "Nasr et al. 2023, violation 2; jax PR #3646",
    wrong=f"the seed of a step's noise is one of {FEW}",
    steps=60,
    reason="found once two steps have drawn the same seed",
)
class FewSeeds(DPOptimizer):
    """Seeds a step's noise with one of a hundred seeds."""

    def add_noise(self) -> None:
        """Draw a seed, then the noise."""
        self.generator = _seeded(self, int(torch.randint(FEW, ())))
        super().add_noise()


def _seeded(optimizer: DPOptimizer, seed: int) -> torch.Generator:
    return torch.Generator(optimizer.params[0].device).manual_seed(seed)


# --- Noise of the right size that is drawn wrongly.

#: Numbers that `TiledNoise` draws for a tensor, and vectors that `NoiseOfAPool` chooses from.
TILE, POOL = 50, 50

Tensors = list[torch.Tensor]


class OwnNoise(DPOptimizer):
    """Adds the noise of `unit_noise`; this base class is correct."""

    #: For noise that depends on that of the previous step.
    latest: Tensors | None = None

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


@fault("hand-written samplers", ends="INCONCLUSIVE", check=NOISE_MEAN.name)
class NoiseWithAMean(DPOptimizer):
    """The mean of the noise is not zero."""

    def add_noise(self) -> None:
        """Add half the standard deviation to the noise."""
        super().add_noise()
        for p in self.params:
            p.grad += 0.5 * self.noise_multiplier * self.max_grad_norm


@fault("jax_privacy, sharp edges", named="noise_of_another_shape")
class UniformNoise(OwnNoise):
    """The noise is uniform, with the right standard deviation."""

    def unit_noise(self) -> Tensors:
        """Return uniform numbers."""
        return [math.sqrt(12.0) * (torch.rand_like(p) - 0.5) for p in self.params]


@fault("jax_privacy, sharp edges", named="noise_of_another_shape")
class LatticeNoise(OwnNoise):
    """The noise is rounded to integer multiples of its standard deviation."""

    def unit_noise(self) -> Tensors:
        """Round the noise, as a low-precision dtype does."""
        return [torch.randn_like(p).round() for p in self.params]


@fault("a forgotten shape argument")
class OneValueForAllCoordinates(OwnNoise):
    """One draw is added to all coordinates."""

    def unit_noise(self) -> Tensors:
        """Return one number for the whole gradient."""
        draw = float(torch.randn(()))
        return [torch.full_like(p, draw) for p in self.params]


@fault("jax PR #3646")
class OneKeyForAllTensors(OwnNoise):
    """All tensors of a step get the same noise."""

    def unit_noise(self) -> Tensors:
        """Draw every tensor's noise from the same seed, which is new at every step."""
        key = int(torch.randint(2**31, ()))
        return [
            torch.randn(p.shape, device=p.device, generator=_seeded(self, key)) for p in self.params
        ]


class ChangedNoise(OwnNoise):
    """Adds the noise of `changed`; this base class is correct."""

    def changed(self, noise: torch.Tensor) -> torch.Tensor:
        """Return the noise to add for a tensor, by correct noise of it, ``[d]`` each."""
        return noise

    def unit_noise(self) -> Tensors:
        """Return changed noise."""
        return [self.changed(own.flatten()).view_as(own) for own in super().unit_noise()]


@fault(
    "reused noise buffers",
    wrong=f"{TILE} numbers are drawn for a tensor's noise, and repeated",
    audit=EXAMINED,
    named="noise_numbers_twice",
)
class TiledNoise(ChangedNoise):
    """Draws fifty numbers per tensor, and repeats them."""

    def changed(self, noise: torch.Tensor) -> torch.Tensor:
        """Return repeated numbers."""
        return noise[:TILE].repeat(math.ceil(len(noise) / TILE))[: len(noise)]


@fault("antithetic draws within a tensor", audit=EXAMINED, named="noise_numbers_twice")
class MirroredNoise(ChangedNoise):
    """Half of each tensor's noise is the other half negated, in reverse order."""

    def changed(self, noise: torch.Tensor) -> torch.Tensor:
        """Return half of the noise, and its negated mirror image."""
        half = len(noise) // 2
        noise[len(noise) - half :] = -noise[:half].flip(0)
        return noise


@fault("off-by-one slices and masks", audit=EXAMINED, named="noise_missing_at_entries")
class OneEntryInAHundredWithoutNoise(ChangedNoise):
    """One entry in a hundred has no noise."""

    def changed(self, noise: torch.Tensor) -> torch.Tensor:
        """Return noise with zeros."""
        noise[::100] = 0.0
        return noise


@fault(
    "noise drawn in the dtype of the activations", audit=EXAMINED, named="noise_of_another_shape"
)
class NoiseInHalfPrecision(ChangedNoise):
    """The noise is drawn in bfloat16, for sums in single precision."""

    def changed(self, noise: torch.Tensor) -> torch.Tensor:
        """Return noise rounded to bfloat16."""
        return noise.bfloat16().float()


@fault("smoothing filters on the noise", audit=EXAMINED, named="noise_alike_in_neighbours")
class SmoothedNoise(ChangedNoise):
    """Neighboring entries have correlated noise."""

    def changed(self, noise: torch.Tensor) -> torch.Tensor:
        """Add half of each number to its neighbor, and scale the noise to the stated size."""
        return (noise + 0.5 * noise.roll(1)) / math.sqrt(1.25)


@fault("noise scaled with the mean", audit=EXAMINED, named="noise_depends_on_records")
class NoiseByBatch(ChangedNoise):
    """The noise is proportional to the number of drawn records."""

    def changed(self, noise: torch.Tensor) -> torch.Tensor:
        """Return noise that has the right size on average."""
        return len(self.params[0].grad_sample) / self.expected_batch_size * noise


@fault(
    "noise drawn in advance to save time",
    wrong=f"a step's noise is one of {POOL} vectors",
    audit=EXAMINED,
    named="few_seeds",
)
class NoiseOfAPool(OwnNoise):
    """Takes the noise of a step from a pool of fifty."""

    def unit_noise(self) -> Tensors:
        """Return one vector of the pool."""
        device = self.params[0].device
        chosen = int(torch.randint(POOL, (), device=device, generator=self.generator))
        generator = torch.Generator().manual_seed(chosen)
        return [torch.randn(p.shape, generator=generator) for p in self.params]


@fault("noise in the space of an adapter", audit=EXAMINED)
class NoiseOfLowRank(OwnNoise):
    """A matrix's noise is the product of two thin matrices."""

    def unit_noise(self) -> Tensors:
        """Return products of two columns and two rows."""
        found = super().unit_noise()
        for place, noise in enumerate(found):
            if noise.ndim == 2 and min(noise.shape) > 2:
                thin, flat = torch.randn(len(noise), 2), torch.randn(2, noise.shape[1])
                found[place] = thin @ flat / math.sqrt(2.0)
        return found


@fault("samplers of another mechanism", audit=EXAMINED, named="noise_of_another_shape")
class LaplaceNoise(OwnNoise):
    """The noise is Laplace noise of the right standard deviation."""

    def unit_noise(self) -> Tensors:
        """Return noise with heavier tails."""
        source = torch.distributions.Laplace(0.0, math.sqrt(0.5))
        return [source.sample(p.shape) for p in self.params]


@fault("noise gathered by an index", audit=EXAMINED, named="noise_alike_at_entries")
class NoiseOfScatteredPairs(OwnNoise):
    """Scattered pairs of entries, across tensors, share most of their noise."""

    def unit_noise(self) -> Tensors:
        """Return noise of the stated size in which pairs have a correlation of 0.8."""
        noise = torch.cat([own.flatten() for own in super().unit_noise()])
        order = torch.randperm(len(noise), generator=torch.Generator().manual_seed(0))
        one, other = order[: len(order) // 2], order[len(order) // 2 : len(order) // 2 * 2]
        noise[other] = 0.8 * noise[one] + 0.6 * noise[other]
        parts = torch.split(noise, [p.numel() for p in self.params])
        return [own.view_as(p) for own, p in zip(parts, self.params, strict=True)]


@fault("runs made reproducible on all machines", audit=EXAMINED, named="noise_depends_on_records")
class NoiseSeededByGradients(OwnNoise):
    """The noise is seeded by the batch's gradients."""

    def unit_noise(self) -> Tensors:
        """Return noise that depends on the records."""
        total = sum(float(p.summed_grad.cpu().double().sum()) for p in self.params)
        self.generator = _seeded(self, int(abs(total) * 1e6) % 2**31)
        return super().unit_noise()


# --- Noise that is correlated over steps.

#: Weights of a step's draws, the current one first.
COEFFICIENTS = (1.0, -0.5, -0.25)
_CORRELATED = "noise_correlated_over_steps"


@fault("smoothed noise, or an average of draws", named=_CORRELATED)
class NoiseFollowsNoise(OwnNoise):
    """The noise of a step contains two fifths of the previous step's, at the stated size."""

    part: float = 0.4

    def unit_noise(self) -> Tensors:
        """Mix new noise with that of the previous step."""
        drawn = super().unit_noise()
        if self.latest is not None:
            new = math.sqrt(1.0 - self.part**2)
            pairs = zip(self.latest, drawn, strict=True)
            drawn = [self.part * old + new * now for old, now in pairs]
        self.latest = drawn
        return drawn


@fault("correlated noise without the accounting that it needs", named=_CORRELATED)
class NoiseOpposesNoise(NoiseFollowsNoise):
    """The noise of a step subtracts three fifths of the previous step's."""

    part = -0.6


@fault("antithetic sampling of the noise", named=_CORRELATED)
class NoiseTakenBack(OwnNoise):
    """Every second step subtracts the noise of the previous step."""

    def unit_noise(self) -> Tensors:
        """Return new noise, or the negative of the previous noise."""
        drawn = super().unit_noise() if self.latest is None else [-old for old in self.latest]
        self.latest = drawn if self.latest is None else None
        return drawn


@fault("DP-FTRL's noise under DP-SGD's accounting", named=_CORRELATED)
class NoiseCancels(OwnNoise):
    """The sum of the noise over the steps remains small."""

    def unit_noise(self) -> Tensors:
        """Subtract the previous draw from a new one, at the stated size."""
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


@fault("matrix factorization with an accountant of DP-SGD", named=_CORRELATED)
class BandedNoiseUndeclared(BandedNoise):
    """Noise that subtracts parts of that of two earlier steps is accounted for as independent."""


@fault(
    "coefficients for another number of bands",
    audit={"claim": PrivacyClaim(noise_coefficients=(1.0, -0.5))},
    named=_CORRELATED,
)
class BandedNoiseOfOtherWeights(BandedNoise):
    """Banded noise is declared with other weights than those it is added with."""


@fault(
    "a noise multiplier computed for another sensitivity of the encoder",
    audit={"claim": PrivacyClaim(noise_coefficients=COEFFICIENTS)},
    named="noise_too_small",
)
class HalfBandedNoise(BandedNoise):
    """Banded noise is declared, and half of it is added."""

    factor = 0.5
