"""Steps as the checks of the noise are given them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_audit.checks.probes import NoiseSeen, NoiseStep, WholeTensors
from lightning_audit.record.store import RecordHeader

#: Of a record with one canary and two tensors.
HEADER = RecordHeader(("Dirac(a)",), ("a", "b"), (3, 4), 5)


def noise_step(noise: NDArray[Any], number: int, *, alone: bool = True) -> NoiseStep:
    """A step with noise multiplier 1 whose clipped sum is zero."""
    return NoiseStep(number, NoiseSeen(noise, np.zeros_like(noise), 1.0), noise if alone else None)


def whole_step(whole: WholeTensors, number: int, *, alone: bool = True) -> NoiseStep:
    """A step of which whole tensors were read."""
    none = np.zeros(1)
    return NoiseStep(number, NoiseSeen(none, none, 1.0, whole=whole), none if alone else None)


def block_step(block: NDArray[Any], number: int) -> NoiseStep:
    """A step of which a block of entries was read."""
    none = np.zeros(1)
    return whole_step(WholeTensors(none, none, none, block), number)
