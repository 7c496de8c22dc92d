"""How far two replays of a step are apart, and when rounding or a lattice hides it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from lightning_audit.replay.put_back import same_bits
from lightning_audit.replay.replay import Replay

#: Entries that are few, and that are enough, when it is asked whether they lie on a lattice. Of
#: many more, numbers in single precision come back by chance.
_ENTRIES, _ENOUGH = 500, 200_000
#: What few draws can tell of a shift on a lattice.
_LATTICE_RESOLUTION = 1.15


def distance(one: Replay, other: Replay) -> float:
    """Norm of the difference of two replays' releases; infinite if their steps are not as many.

    It is infinite, too, where one of them is not finite: then a record makes it so.
    """
    if len(one.releases) != len(other.releases):
        return math.inf
    if not one.releases:
        return 0.0
    far = float((torch.cat(one.releases) - torch.cat(other.releases)).norm())
    return math.inf if math.isnan(far) else far


def equal_releases(one: Replay, other: Replay) -> bool:
    """Whether two replays released the same, bit for bit."""
    return len(one.releases) == len(other.releases) and all(
        map(torch.equal, one.releases, other.releases)
    )


def equal_after(one: Replay, other: Replay) -> bool:
    """Whether two replays left the same behind, bit for bit."""
    return one.after.keys() == other.after.keys() and all(
        same_bits(mine.view(torch.int64), other.after[name].view(torch.int64))
        for name, mine in one.after.items()
    )


def rounding(releases: Sequence[torch.Tensor], dtypes: Sequence[torch.dtype]) -> float:
    """Norm of what rounding adds to the difference of two steps, in clipping norms.

    Each entry is rounded to its own size, twice for a difference, independently of it.

    Args:
        releases: of one of them, ``[d]`` each.
        dtypes: in which they were made.
    """
    digits = max(torch.finfo(dtype).eps for dtype in dtypes)
    return 0.5 * digits * math.hypot(*(float(release.norm()) for release in releases))


def hidden_by_noise(
    change: torch.Tensor, draws: Sequence[torch.Tensor], sigma: float, allowed: float
) -> bool:
    """Whether a record's change has noise beside it that hides it as a release's noise would.

    In any unit: of what is computed of a release, change and noise have the same. The noise is that
    of the entries that change, by their squares, and is known to within three standard errors.

    Args:
        change: what a record moves, ``[d]``.
        draws: the same values under several random numbers, ``[d]`` each.
        sigma: the claimed noise over the clipping norm.
        allowed: clipping norms that a record may move a release by.
    """
    weights = change.square() / change.square().sum().clamp(min=1e-300)
    variance = float(weights @ torch.stack(list(draws)).var(dim=0))
    freedom = (len(draws) - 1) / float(weights.square().sum())
    ratio = float(change.norm()) / max(math.sqrt(variance), 1e-300)
    return ratio * sigma <= allowed * (1.0 + 3.0 / math.sqrt(2.0 * freedom))


def too_coarse(rounding: float, tolerated: float) -> str:
    """Why rounding hides the sensitivity, or empty.

    Args:
        rounding: norm of the rounding of a difference, in units of the clipping norm.
        tolerated: what a sensitivity of 1 may exceed it by.
    """
    more = math.hypot(1.0, rounding) - 1.0
    if more <= tolerated:
        return ""
    return f"rounding of the released sum alone adds {more:.2g} to a sensitivity of 1"


def independent(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two draws are as large as each other and nothing alike: other random numbers."""
    norms = float(one.norm()), float(other.norm())
    if not min(norms) > 0.0:
        return False
    alike = abs(float(one @ other)) < 0.5 * norms[0] * norms[1]
    return alike and abs(norms[1] / norms[0] - 1.0) < 5.0 / math.sqrt(len(one))


def on_a_lattice(release: torch.Tensor) -> bool:
    """Whether the entries of a release are few numbers, as those of integer noise."""
    entries = release[:: max(1, len(release) // _ENOUGH)]
    entries = entries[entries != 0.0]
    if len(entries) < _ENTRIES:
        return False
    return len(torch.unique(entries.abs().float())) < len(entries) / 2


def shift_by_more_draws(
    draw: Callable[[int], Sequence[Replay]], seed: int, draws: int = 6
) -> float:
    """Norm of a shift that a single release shows in whole steps of its lattice only.

    Releases of other random numbers jump at other places, so that the inner products of their
    differences are those of the shift alone. So few draws do not show a shift below 1.15.

    Args:
        draw: gives a replay of either batch under a seed.
        seed: the first one.
        draws: how many pairs.

    Returns:
        The shift in units of the clipping norm; 1 where it may be that.
    """
    pairs = [draw(seed + number) for number in range(draws)]
    if any(one.error or other.error for one, other in pairs):
        return 1.0
    gaps = [torch.cat(one.releases) - torch.cat(other.releases) for one, other in pairs]
    products = [float(a @ b) for k, a in enumerate(gaps) for b in gaps[:k]]
    shift = math.sqrt(max(0.0, sum(products) / len(products)))
    return shift if shift > _LATTICE_RESOLUTION else min(shift, 1.0)
