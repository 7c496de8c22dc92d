"""The distance of two replays of a step, and when rounding or a lattice hides it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from lightning_audit.replay.put_back import same_bits
from lightning_audit.replay.replay import Replay

#: Smallest and largest number of entries in the test for a lattice. Among many more entries,
#: numbers in single precision repeat by chance.
_ENTRIES, _ENOUGH = 500, 200_000
#: Smallest shift on a lattice that few draws show.
_LATTICE_RESOLUTION = 1.15


def distance(one: Replay, other: Replay) -> float:
    """Return the norm of the difference of two replays' releases, in units of the clipping norm.

    Infinite if their numbers of steps differ, or if a release is not finite.
    """
    if len(one.releases) != len(other.releases):
        return math.inf
    if not one.releases:
        return 0.0
    far = float((torch.cat(one.releases) - torch.cat(other.releases)).norm())
    return math.inf if math.isnan(far) else far


def equal_releases(one: Replay, other: Replay) -> bool:
    """Return whether two replays have the same releases, bit for bit."""
    return len(one.releases) == len(other.releases) and all(
        map(torch.equal, one.releases, other.releases)
    )


def equal_after(one: Replay, other: Replay) -> bool:
    """Return whether two replays have the same state after the step, bit for bit."""
    return one.after.keys() == other.after.keys() and all(
        same_bits(mine.view(torch.int64), other.after[name].view(torch.int64))
        for name, mine in one.after.items()
    )


def rounding(releases: Sequence[torch.Tensor], dtypes: Sequence[torch.dtype]) -> float:
    """Return the norm of the rounding error in the difference of two steps.

    Assumes independent errors, relative to each entry's size, in both steps.

    Args:
        releases: of one of the steps, ``[d]`` each, in units of the clipping norm.
        dtypes: in which they were computed.
    """
    digits = max(torch.finfo(dtype).eps for dtype in dtypes)
    return 0.5 * digits * math.hypot(*(float(release.norm()) for release in releases))


def hidden_by_noise(
    change: torch.Tensor, draws: Sequence[torch.Tensor], sigma: float, allowed: float
) -> bool:
    """Return whether noise hides a record's change as well as the noise of a release would.

    Only the ratio of change to noise counts, so the unit is arbitrary. The noise is averaged over
    entries, weighted by their squared changes, and estimated within three standard errors.

    Args:
        change: change of the values by a record, ``[d]``.
        draws: the same values under several random numbers, ``[d]`` each.
        sigma: the claimed noise over the clipping norm.
        allowed: change by one record that a release may show, in units of the clipping norm.
    """
    weights = change.square() / change.square().sum().clamp(min=1e-300)
    variance = float(weights @ torch.stack(list(draws)).var(dim=0))
    freedom = (len(draws) - 1) / float(weights.square().sum())
    ratio = float(change.norm()) / max(math.sqrt(variance), 1e-300)
    return ratio * sigma <= allowed * (1.0 + 3.0 / math.sqrt(2.0 * freedom))


def too_coarse(rounding: float, tolerated: float) -> str:
    """Return why rounding hides the sensitivity, or empty.

    Args:
        rounding: norm of the rounding of a difference, in units of the clipping norm.
        tolerated: tolerated excess of a sensitivity over 1.
    """
    more = math.hypot(1.0, rounding) - 1.0
    if more <= tolerated:
        return ""
    return f"rounding of the released sum alone adds {more:.2g} to a sensitivity of 1"


def independent(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two draws have the same size and low correlation, as independent ones."""
    norms = float(one.norm()), float(other.norm())
    if not min(norms) > 0.0:
        return False
    alike = abs(float(one @ other)) < 0.5 * norms[0] * norms[1]
    return alike and abs(norms[1] / norms[0] - 1.0) < 5.0 / math.sqrt(len(one))


def on_a_lattice(release: torch.Tensor) -> bool:
    """Return whether a release has few distinct values, as with integer noise."""
    entries = release[:: max(1, len(release) // _ENOUGH)]
    entries = entries[entries != 0.0]
    if len(entries) < _ENTRIES:
        return False
    return len(torch.unique(entries.abs().float())) < len(entries) / 2


def shift_by_more_draws(
    draw: Callable[[int], Sequence[Replay]], seed: int, draws: int = 6
) -> float:
    """Estimate the norm of a shift between releases on a lattice, from several pairs.

    A single pair shows the shift only in whole steps of the lattice. Under other random numbers the
    rounding is independent, so that inner products of the differences estimate the shift's square.
    Six pairs do not resolve a shift below 1.15.

    Args:
        draw: replays both batches under a seed.
        seed: the first seed.
        draws: number of pairs.

    Returns:
        The shift in units of the clipping norm, capped at 1 if it is below the resolution.
    """
    pairs = [draw(seed + number) for number in range(draws)]
    if any(one.error or other.error for one, other in pairs):
        return 1.0
    gaps = [torch.cat(one.releases) - torch.cat(other.releases) for one, other in pairs]
    products = [float(a @ b) for k, a in enumerate(gaps) for b in gaps[:k]]
    shift = math.sqrt(max(0.0, sum(products) / len(products)))
    return shift if shift > _LATTICE_RESOLUTION else min(shift, 1.0)
