"""The violations of Nasr et al. 2023, with the paper's settings.

Section 6.3 audits single steps that claim epsilon 1.27; appendix B gives delta 1e-5, batches of 256
(its ConvNet) and 2,500 observations each with and without a canary in every step. Here a training
of 625 steps with eight canaries, each in half of the steps, gives as many observations. The paper
trains a WideResNet on CIFAR-10 and on random images, for hours; here a small net is trained on
random data. It names no clipping norm; here that is 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from opacus.optimizers import DPOptimizer
from torch.utils.data import DataLoader

from lightning_audit.stats.gdp import gaussian_mu
from lightning_audit.testing.faults import FAULTS, Fault
from lightning_audit.testing.faulty_noise import ScaledNoise
from lightning_audit.testing.trainings import Training

EPSILON, DELTA = 1.27, 1e-5
NOISE_MULTIPLIER = 1.0 / float(gaussian_mu(EPSILON, DELTA))
BATCH_SIZE = 256
STEPS = 625
#: True epsilons at which the noise is too small: what f-DP finds, and the largest that is shown.
TOO_LARGE = (1.57, 2.17)


class PublishedSettings(Training):
    """Batch size and noise multiplier of the paper."""

    def __init__(self, plant: Callable[[DPOptimizer], DPOptimizer] | None = None) -> None:
        super().__init__(plant, noise_multiplier=NOISE_MULTIPLIER)

    def plain_loader(self) -> DataLoader[Any]:
        """Batches in order."""
        return DataLoader(self.data, BATCH_SIZE)


class NoiseOfEpsilon157(ScaledNoise):
    """Noise by which a step has epsilon 1.57."""

    factor = float(gaussian_mu(EPSILON, DELTA) / gaussian_mu(TOO_LARGE[0], DELTA))


class NoiseOfEpsilon217(ScaledNoise):
    """Noise by which a step has epsilon 2.17."""

    factor = float(gaussian_mu(EPSILON, DELTA) / gaussian_mu(TOO_LARGE[1], DELTA))


def violations() -> dict[str, Fault]:
    """The violations by the figure that shows them."""
    small = FAULTS["half_noise"]
    return {
        "figure 7": _with_settings(FAULTS["clip_after_average"]),
        "figure 8": _with_settings(FAULTS["few_seeds"]),
        "figure 9, epsilon 1.57": _with_settings(replace(small, optimizer=NoiseOfEpsilon157)),
        "figure 9, epsilon 2.17": _with_settings(replace(small, optimizer=NoiseOfEpsilon217)),
    }


def _with_settings(fault: Fault) -> Fault:
    return replace(fault, training=PublishedSettings, steps=STEPS)
