"""Readings of a privatize function, for several kinds of gradients and batches."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from lightning_audit.blackbox.probes import (
    NoiseReading,
    Probe,
    Released,
    ShiftReading,
    read_noise,
    read_shift,
)
from lightning_audit.replay.questions.crafted_gradients import (
    OVERSIZE,
    Trial,
    against_others,
    alone,
)
from lightning_audit.stats._arguments import Floats

__all__ = ["ADDS_UP", "LEARNING", "probes", "read_noises", "read_shifts"]

#: Number of noise readings, coordinates times calls, after which reading stops.
_NOISE_READINGS = 10_000
#: If gradients of norm C add less than this, they do not add up as stated.
ADDS_UP = 0.5
#: Log e-value above the threshold that mixing over stakes costs.
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
    """Read the noise of several kinds of batches.

    Args:
        released: The function under audit.
        along: Direction of oversized gradients, unit vector ``[d]``.
        sigma: Claimed noise multiplier, > 0.
        batch_size: Number of gradients in a batch.
        batches: "poisson" adds a batch of twice the size.
        calls: Largest number of calls for each batch.
        goal: Log e-value at which reading stops.

    Returns:
        The reading of each batch, by name.
    """
    most = max(20, min(calls, -(-_NOISE_READINGS // len(along))))
    zeros = np.zeros((batch_size, len(along)))
    loaded = np.vstack([zeros[1:], OVERSIZE * along])
    rows = {"no gradient": zeros, "an oversized gradient": loaded}
    if batches == "poisson":
        rows["twice as many gradients"] = np.vstack([zeros, zeros])
    return {name: read_noise(released, batch, sigma, most, goal) for name, batch in rows.items()}


def probes(along: Floats, sizes: Sequence[int], batch_size: int, group: int) -> dict[str, Probe]:
    """Return the gradients whose shifts distinguish faults of clipping, by name.

    Args:
        along: Unit vector with a part of the same length in every tensor, ``[d]``.
        sizes: Number of entries of each tensor.
        batch_size: Rows of each batch, including rows of zeros.
        group: Number of gradients that are included or left out together.
    """
    unit = torch.from_numpy(along)
    zeros = np.zeros((batch_size, len(along)))
    many = np.vstack([zeros[group:], np.tile(along, (group, 1))])
    one = [alone(OVERSIZE * unit, batch_size)]
    found = {
        "one oversized": _of_trials(one, along),
        "oversized": Probe([OVERSIZE * many], zeros, along, group),
        "of norm C": Probe([many], zeros, along, group),
        "against all others": _of_trials([against_others(unit, batch_size)], along),
    }
    if len(sizes) > 1:
        tensor = torch.repeat_interleave(torch.tensor(sizes))
        each = math.sqrt(len(sizes)) * unit
        alone_in = [alone(OVERSIZE * each * (tensor == k), batch_size) for k in range(len(sizes))]
        found["in one tensor"] = _of_trials(alone_in, each.numpy())
    return found


def _of_trials(trials: Sequence[Trial], along: Floats) -> Probe:
    """Return a probe from trials that share one neighboring batch."""
    return Probe([t.rows.numpy() for t in trials], trials[0].with_zeros.numpy(), along)


def read_shifts(
    released: Released,
    probes: Mapping[str, Probe],
    sigma: float,
    calls: int,
    goal: float,
    rng: np.random.Generator,
) -> dict[str, ShiftReading]:
    """Read the shift of every probe through the noise, by name; arguments as in `read_shift`."""
    readings: dict[str, ShiftReading] = {}
    for name, probe in probes.items():
        most = calls
        if name == "against all others" and readings["of norm C"].shift <= ADDS_UP:
            # A sum that is clipped as a whole adds at most 2 C, which takes many calls to show.
            # It is ruled out if gradients add up.
            wanted = math.ceil(11.0 * (goal + LEARNING) * sigma**2)
            most = max(calls, min(wanted, 10 * calls))
        readings[name] = read_shift(released, probe, sigma, most, goal, rng)
    return readings
