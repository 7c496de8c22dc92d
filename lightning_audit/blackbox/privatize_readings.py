"""What is read off a privatize function: every kind of gradient, every kind of batch."""

from __future__ import annotations

import math

import numpy as np

from lightning_audit.blackbox.probes import (
    NoiseReading,
    Released,
    ShiftReading,
    read_noise,
    read_shift,
)
from lightning_audit.stats._arguments import Floats

__all__ = ["ADDS_UP", "LEARNING", "read_noises", "read_shifts"]

#: Norm of oversized gradients, in clipping norms; and of the one that outweighs all of them.
OVERSIZE, OUTWEIGHING = 1e3, 1e6
#: Coordinates times calls by which each reading of the noise goes on.
_NOISE_READINGS = 10_000
#: Gradients of norm C that add less are not what is stated.
ADDS_UP = 0.5
#: Log e-value beyond the threshold that the choice of a stake costs.
LEARNING = 2.0


def read_noises(
    released: Released,
    along: Floats,
    sigma: float,
    batch_size: int,
    batches: str,
    calls: int,
    goal: float,
) -> dict[str, NoiseReading]:
    """Read the noise off every kind of batch, by name.

    Args as of `read_noise`, and the direction of oversized gradients, ``[d]``; another number of
    gradients is tried if ``batches`` is "poisson".
    """
    most = max(20, min(calls, -(-_NOISE_READINGS // len(along))))
    zeros = np.zeros((batch_size, len(along)))
    loaded = np.vstack([zeros[1:], OVERSIZE * along])
    rows = {"no gradient": zeros, "an oversized gradient": loaded}
    if batches == "poisson":
        rows["twice as many gradients"] = np.vstack([zeros, zeros])
    return {name: read_noise(released, batch, sigma, most, goal) for name, batch in rows.items()}


def read_shifts(
    released: Released,
    along: Floats,
    sigma: float,
    batch_size: int,
    group: int,
    calls: int,
    goal: float,
    rng: np.random.Generator,
) -> dict[str, ShiftReading]:
    """Read the shift of every kind of gradient, by name.

    Args as of `read_shift`; ``group`` gradients go in or out together where many do.
    """
    zeros = np.zeros((batch_size, len(along)))
    many = np.tile(along, (group, 1))

    def read(base: Floats, extras: list[Floats], at: Floats, most: int = calls) -> ShiftReading:
        return read_shift(released, base, extras, at, sigma, most, goal, rng)

    readings = {
        "one oversized": read(zeros[1:], [OVERSIZE * along[None]], along),
        "oversized": read(zeros[group:], [OVERSIZE * many], along),
        "of norm C": read(zeros[group:], [many], along),
    }
    # A sum that is clipped as a whole adds 2 C at the most, which takes many calls to show; that
    # gradients add up excludes it.
    adds_up = readings["of norm C"].shift > ADDS_UP
    wanted = math.ceil(11.0 * (goal + LEARNING) * sigma**2)
    enough = calls if adds_up else max(calls, min(wanted, 10 * calls))
    against = np.tile(-OVERSIZE * along, (batch_size - 1, 1))
    readings["against all others"] = read(against, [OUTWEIGHING * along[None]], along, enough)
    if len(released.sizes) > 1:
        tensor = np.repeat(np.arange(len(released.sizes)), released.sizes)
        each = math.sqrt(len(released.sizes)) * along
        extras = [OVERSIZE * (each * (tensor == k))[None] for k in range(len(released.sizes))]
        readings["in one tensor"] = read(zeros[1:], extras, each)
    return readings
