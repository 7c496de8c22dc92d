"""What is read off a privatize function: every kind of gradient, every kind of batch."""

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
from lightning_audit.examine.crafted_gradients import OVERSIZE, Trial, against_others, alone
from lightning_audit.stats._arguments import Floats

__all__ = ["ADDS_UP", "LEARNING", "probes", "read_noises", "read_shifts"]

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


def probes(along: Floats, sizes: Sequence[int], batch_size: int, group: int) -> dict[str, Probe]:
    """Gradients by whose shifts faults of clipping are told apart, by name.

    Args:
        along: a unit vector with a part of the same length in every tensor, ``[d]``.
        sizes: entries of each tensor.
        batch_size: rows of each batch, those of zeros included.
        group: gradients that go in or out together where many do.
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
    """A probe of trials of one neighbour."""
    return Probe([t.rows.numpy() for t in trials], trials[0].with_zeros.numpy(), along)


def read_shifts(
    released: Released,
    probes: Mapping[str, Probe],
    sigma: float,
    calls: int,
    goal: float,
    rng: np.random.Generator,
) -> dict[str, ShiftReading]:
    """Read the shift of every probe beside the noise, by name; args as of `read_shift`."""
    readings: dict[str, ShiftReading] = {}
    for name, probe in probes.items():
        most = calls
        if name == "against all others" and readings["of norm C"].shift <= ADDS_UP:
            # A sum that is clipped as a whole adds 2 C at the most, which takes many calls to show;
            # that gradients add up excludes it.
            wanted = math.ceil(11.0 * (goal + LEARNING) * sigma**2)
            most = max(calls, min(wanted, 10 * calls))
        readings[name] = read_shift(released, probe, sigma, most, goal, rng)
    return readings
