"""The violations of Nasr et al. 2023, with the paper's settings.

Section 6.3 audits single steps that claim epsilon 1.27; appendix B gives delta 1e-5, batches of 256
(its ConvNet) and 2,500 observations each with and without a canary in every step. Here a training
of 625 steps with eight canaries, each in half of the steps, gives the same number of observations.
The paper trains a WideResNet on CIFAR-10 and on the same number of random images; here a small net
is trained on the same number of random records. The paper states no clipping norm; here it is 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from opacus.optimizers import DPOptimizer
from torch.utils.data import DataLoader

from lightning_audit.stats.tradeoff.gdp import gaussian_mu
from lightning_audit.testing.faults import FAULTS, Fault
from lightning_audit.testing.faulty.faulty_noise import ScaledNoise
from lightning_audit.testing.trainings import Training, random_data

EPSILON, DELTA = 1.27, 1e-5
NOISE_MULTIPLIER = 1.0 / float(gaussian_mu(EPSILON, DELTA))
RECORDS, BATCH_SIZE = 50_000, 256
STEPS = 625
#: True epsilons of too little noise: the smallest that f-DP detects, and the largest shown.
TOO_LARGE = (1.57, 2.17)


class PublishedSettings(Training):
    """Number of records, batch size and noise multiplier of the paper."""

    def __init__(self, plant: Callable[[DPOptimizer], DPOptimizer] | None = None) -> None:
        super().__init__(plant, noise_multiplier=NOISE_MULTIPLIER)
        self.data = random_data(records=RECORDS)

    def plain_loader(self) -> DataLoader[Any]:
        """Return sequential batches."""
        return DataLoader(self.data, BATCH_SIZE)


class NoiseOfEpsilon157(ScaledNoise):
    """Noise with which a step has epsilon 1.57."""

    factor = float(gaussian_mu(EPSILON, DELTA) / gaussian_mu(TOO_LARGE[0], DELTA))


class NoiseOfEpsilon217(ScaledNoise):
    """Noise with which a step has epsilon 2.17."""

    factor = float(gaussian_mu(EPSILON, DELTA) / gaussian_mu(TOO_LARGE[1], DELTA))


def violations(name: str) -> dict[str, Fault]:
    """Return the paper's violations that correspond to a fault, with the paper's settings.

    Returns:
        The faults by the figure that shows them.
    """
    fault = replace(FAULTS[name], training=PublishedSettings, steps=STEPS)
    match name:
        case "clip_after_average":
            return {"figure 7": fault}
        case "few_seeds":
            return {"figure 8": fault}
        case "half_noise":
            small = replace(fault, name="noise_too_small")
            return {
                "figure 9, epsilon 1.57": replace(small, optimizer=NoiseOfEpsilon157),
                "figure 9, epsilon 2.17": replace(small, optimizer=NoiseOfEpsilon217),
            }
    return {}
