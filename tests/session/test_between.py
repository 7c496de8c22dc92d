"""Between examinations every step is held against its rows, its noise and its seed."""

import os
from typing import Any

import numpy as np
import pytest
import torch
from counted_steps import Counted, report_of, told
from opacus.optimizers import DPOptimizer
from torch import nn

from lightning_audit.session.between import noise_by_row
from lightning_audit.testing.selftest import PerLayer
from lightning_audit.testing.trainings import Training

pytestmark = pytest.mark.training

# --- Faults that a replay does not repeat: they come at some steps, or between steps.


class SumKept(Counted):
    """The sum is not cleared after every tenth step."""

    def zero_grad(self, set_to_none: bool = False) -> None:
        kept = [p.summed_grad for p in self.params]
        super().zero_grad(set_to_none)
        if self.number and self.number % 10 == 0:
            for p, s in zip(self.params, kept, strict=True):
                p.summed_grad = None if s is None else s.clone()


class SparedAtTimes(Counted):
    """At every seventh step the first row is not clipped."""

    def factors(self, norms: torch.Tensor) -> torch.Tensor:
        factors = super().factors(norms)
        if self.number % 7 == 6 and len(factors):
            factors[0] = 5.0 * self.max_grad_norm / norms[0]
        return factors


class LessForNoise(Counted):
    """From the eighth step on the norm is smaller for the noise than for the clipping."""

    def clip_and_accumulate(self) -> None:
        if self.number > 6:
            self.max_grad_norm = 1.5
        super().clip_and_accumulate()
        self.max_grad_norm = 1.0


class GrowingNorm(Counted):
    """The clipping norm grows by a tenth a step, and the noise does not."""

    def factors(self, norms: torch.Tensor) -> torch.Tensor:
        return (1.1**self.number / (norms + 1e-6)).clamp(max=1.0)


WIDE = 300


class Wide(Training):
    """A net with a matrix of many rows."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        layers = nn.Linear(16, WIDE), nn.ReLU(), nn.Linear(WIDE, WIDE), nn.Linear(WIDE, 10)
        self.net = nn.Sequential(*layers)


class RowAtHalf(Counted):
    """One row of one matrix has half of the noise."""

    def draw(self, p: torch.Tensor) -> torch.Tensor:
        noise = super().draw(p)
        if p.shape == (WIDE, WIDE):
            noise[WIDE // 2] *= 0.5
        return noise


class FewWithout(Counted):
    """At every fourth step one entry in three hundred has no noise."""

    def draw(self, p: torch.Tensor) -> torch.Tensor:
        noise = super().draw(p)
        if self.number % 4 == 0:
            noise.view(-1)[7::300] = 0.0
        return noise


class BackWithOtherSign(Counted):
    """The noise of a step comes back eleven steps later, with the other sign."""

    def add_noise(self) -> None:
        kept = self.__dict__.setdefault("kept", [])
        kept.append([self.draw(p) for p in self.params])
        self.number += 1
        draws = [-d for d in kept[-12]] if len(kept) % 12 == 0 else kept[-1]
        for p, d in zip(self.params, draws, strict=True):
            p.grad = p.summed_grad + d


class SeededByStep(Training):
    """The step seeds the generator by its number."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        torch.manual_seed(1000 + batch_idx)
        return super().training_step(batch, batch_idx)


class SeededBefore(Training):
    """A hook before the step seeds the generator with three bytes, which do not come twice."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        torch.manual_seed(int.from_bytes(os.urandom(3), "big"))


class OwnKey(Counted):
    """A step draws its noise from a generator that is seeded with its number."""

    times = 1

    def add_noise(self) -> None:
        self.number += 1
        key = torch.Generator().manual_seed(self.times * self.number)
        std = self.noise_multiplier * self.max_grad_norm
        for p in self.params:
            p.grad = p.summed_grad + std * torch.randn(p.shape, generator=key)


class OwnSecret(OwnKey):
    times = 10**12 + 1


EXCEEDS = "more than the clipping norm in the sum of a step: "
KINDS: dict[str, tuple[Any, str]] = {
    "the sum is kept": (SumKept, "not made of the gradients of its batch"),
    "one is spared at times": (SparedAtTimes, EXCEEDS),
    "less noise than is clipped": (LessForNoise, EXCEEDS),
    "the norm grows": (GrowingNorm, EXCEEDS),
    "a row at half": (RowAtHalf, "a row of a matrix has too little noise"),
    "few entries without": (FewWithout, "noise of some entries: the noisy gradient equals"),
    "back with the other sign": (BackWithOtherSign, "reuse."),
    "seeded in the step": (SeededByStep, "seeded again"),
    "seeded before the step": (SeededBefore, "seeded again"),
    "a key from its number": (OwnKey, "torch.Generator().manual_seed("),
    "a key from a secret": (OwnSecret, "the training seeds the noise generator itself"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_comes_between_examinations_is_named_within_twenty_steps(tmp_path, kind):
    planted, words = KINDS[kind]
    of_training = not issubclass(planted, DPOptimizer)
    report = report_of(
        tmp_path,
        None if of_training else planted,
        planted if of_training else Wide if planted is RowAtHalf else Training,
        examinations=1 if kind.startswith("a key") else 0,
    )
    assert report.verdict.outcome != "PASS"
    assert words in told(report), told(report)


class NeverSeeded(Training):
    """Opacus is given a generator as torch makes it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.settings["noise_generator"] = torch.Generator()


def test_a_generator_that_was_never_seeded_is_a_violation(tmp_path):
    report = report_of(tmp_path, training=NeverSeeded, steps=2, examinations=0)
    assert report.verdict.faults[0].name == "noise_from_constant_seed"


# --- Correct trainings: nothing is said of them.


class Automatic(Counted):
    """Each row is normalized, so that none is longer than the clipping norm."""

    def factors(self, norms: torch.Tensor) -> torch.Tensor:
        return self.max_grad_norm / (norms + 0.01)


class Masked(Counted):
    """A random half of the entries of sum and noise is left out."""

    def add_noise(self) -> None:
        self.number += 1
        for p in self.params:
            mask = (torch.rand_like(p) < 0.5).float()
            p.summed_grad = p.summed_grad * mask
            p.grad = p.summed_grad + self.draw(p) * mask


class MaskedRows(Counted):
    """The first half of each tensor is left out before clipping, so that the rest counts more."""

    def clip_and_accumulate(self) -> None:
        for p in self.params:
            p.grad_sample[:, : len(p) // 2] = 0.0
        super().clip_and_accumulate()


class NextNorm(Counted):
    """The norm of the next step is set as soon as this step's noise is added."""

    def add_noise(self) -> None:
        super().add_noise()
        self.max_grad_norm = 0.5 + 0.5 / (1 + self.number)


class SecretSeeds(Training):
    """A hook before the step seeds the generator with eight bytes of the system."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        torch.manual_seed(int.from_bytes(os.urandom(8), "big") | 1 << 40)


class FewParameters(Training):
    """The net has fewer parameters than would determine the rows' factors."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.net = nn.Linear(16, 2)
        self.data.tensors[1].remainder_(2)


@pytest.mark.parametrize(
    "made", [Automatic, Masked, MaskedRows, NextNorm, SecretSeeds, FewParameters, PerLayer, Counted]
)
def test_nothing_is_said_of_a_correct_training(tmp_path, made):
    of_optimizer = issubclass(made, DPOptimizer)
    plant, training = (made, Training) if of_optimizer else (None, made)
    report = report_of(tmp_path, plant, training, examinations=0)
    assert report.verdict.outcome != "VIOLATION", told(report)
    assert "every_step" not in told(report)
    assert any(check.name == "every_step" for check in report.checks)


# --- The numbers.


def test_noise_of_equal_size_has_no_quiet_row_and_no_zeros():
    generator = torch.Generator().manual_seed(3)
    total = torch.randn(40, 64, generator=generator)
    grad = total + 2.0 * torch.randn(40, 64, generator=generator)
    zeros, rounded, squares, counts = noise_by_row(grad, total, 2.0)
    assert zeros.sum() == 0.0
    assert rounded.sum() < 1e-2
    assert counts.tolist() == [64.0] * 40
    assert squares / counts == pytest.approx(np.ones(40), abs=0.9)
    grad[5, 7] = total[5, 7]
    assert noise_by_row(grad, total, 2.0)[0].sum() == 1.0
