"""Two replays that differ in one record or one gradient, judged under a second seed as well.

What a record adds to a release is the same vector under other random numbers. Where the two draw
other numbers than each other, their difference is noise, which is another vector each time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lightning_audit.canaries.sample_batches import rows, taken
from lightning_audit.replay.random_places import same_numbers
from lightning_audit.replay.replay import Replay
from lightning_audit.replay.replay_distance import (
    distance,
    hidden_by_noise,
    on_a_lattice,
    shift_by_more_draws,
)
from lightning_audit.replay.step_replay import StepReplay

#: Replays a pair under a seed.
Draw = Callable[[int], Sequence[Replay]]

SHIFTED = (
    "with another record, or without its gradient, the step draws other random numbers for the "
    "others"
)
MORE = "the training clips more than the gradients that it hands over"
_SECOND = 7_368_787
#: Least cosine of two differences that have a part in common: independent ones come to 4 standard
#: deviations in 1 of 30,000 cases.
_LEAST, _DEVIATIONS = 0.05, 4.0
#: Below so many entries a cosine tells nothing: the differences are the same up to a tenth of them,
#: under so many seeds.
_FEW, _SAME, _SEEDS = 25, 0.1, 3
#: Pairs that tell how much noise is beside a record's part, and times that a function of the noisy
#: gradient that is no multiple of it may show a record more than it does.
_PAIRS, _BENT = 5, 3.0
#: Findings after which the others count as they do.
_ENOUGH = 3
#: Relative rounding of equal sums, and least cosine of what a training adds of its records.
_ROUNDING, _ADDED = 1e-3, 0.3


@dataclass(frozen=True)
class Judged:
    """What came of a pair.

    Args:
        far: how far its releases are apart, in clipping norms.
        failed: whether the user's code took one of its batches not.
        shifted: whether the random numbers of the two are others, so that it tells nothing.
    """

    far: float = 0.0
    failed: bool = False
    shifted: bool = False

    @property
    def tells(self) -> bool:
        """Whether it tells something of the step."""
        return not self.failed and not self.shifted


def judge(
    draw: Draw, seed: int, allowed: float, *, by_row: bool = False, least_cosine: float = 0.0
) -> Judged:
    """How far the releases of a pair are apart, if that is no noise.

    Args:
        draw: replays the pair.
        seed: of the replays.
        allowed: a distance that is no finding, in clipping norms.
        by_row: whether a gradient alone differs, and batches do not. Then nothing moves beside it,
            but it may be rounded or left out at random.
        least_cosine: that the differences under both seeds must have, where the records draw
            numbers of their own: their gradients lie in few directions, and are alike by chance.
    """
    one, other = draw(seed)
    if one.error or other.error:
        return Judged(failed=True)
    if not same_numbers(one, other):
        return Judged(shifted=True)
    far = distance(one, other)
    if far <= allowed or not math.isfinite(far):
        return Judged(far)
    if on_a_lattice(torch.cat(one.releases)):
        return Judged(shift_by_more_draws(draw, seed))
    cosine, common = _alike(one, other, draw, seed)
    moves = cosine >= least_cosine and (by_row or common > allowed)
    return Judged(far, shifted=not moves or is_noise(cosine, len(torch.cat(one.releases))))


def is_processed(draw: Draw, replay: StepReplay, seed: int, moved: int) -> bool:
    """Whether a pair is apart because more was done to correct noisy gradients, as far as seen.

    Args:
        draw: replays the pair.
        replay: of the step.
        seed: of the replays.
        moved: clipping norms that a record may move a release by.
    """
    replay.allow(2 * _PAIRS)
    pairs = [draw(seed + number * _SECOND) for number in range(_PAIRS)]
    if any(each.error or not each.releases for pair in pairs for each in pair):
        return False
    gaps = [_gap(*pair) for pair in pairs]
    if any(gap.shape != gaps[0].shape or not bool(torch.isfinite(gap).all()) for gap in gaps):
        return False
    # What a sum and its noise are multiplied with leaves a record's part the same vector.
    linear = all(float((gap - gaps[0]).norm()) <= _SAME * float(gaps[0].norm()) for gap in gaps)
    allowed = moved * (1.0 if linear else _BENT)
    releases = [one.release for one, _ in pairs]
    return hidden_by_noise(gaps[0], releases, replay.noise_multiplier, allowed)


class Unshown:
    """Findings that may be where more was done to a release that the training does not show.

    Args:
        replay: of the step.
        seed: of the replays.
        shown: whether the training shows it, so that none is.
    """

    def __init__(self, replay: StepReplay, seed: int, *, shown: bool) -> None:
        self._replay, self._seed, self._shown = replay, seed, shown
        #: How many there are.
        self.count = 0

    def takes(self, draw: Draw, moved: int) -> bool:
        """Whether a pair that is too far apart is one of them; see `is_processed`."""
        if self._shown:
            return False
        if self.count < _ENOUGH and not is_processed(draw, self._replay, self._seed, moved):
            return False
        self.count += 1
        return True


def is_noise(cosine: float, size: int) -> bool:
    """Whether two vectors of so many entries with such a cosine may be independent.

    Args:
        cosine: of the two.
        size: entries of each.
    """
    return cosine < min(max(_LEAST, _DEVIATIONS / math.sqrt(size)), 1.0 - _SAME)


def _alike(one: Replay, other: Replay, draw: Draw, seed: int) -> tuple[float, float]:
    """Cosine of a pair's difference with that under other seeds, and the norm of what both have.

    The least of each; the cosine is -1 where the pair cannot be replayed again.
    """
    first = _gap(one, other)
    found = []
    for number in range(1, 1 + (1 if len(first) >= _FEW else _SEEDS)):
        pair = draw(seed + number * _SECOND)
        if any(replay.error for replay in pair) or not math.isfinite(distance(*pair)):
            return -1.0, 0.0
        again = _gap(*pair)
        product = float(first @ again)
        cosine = product / max(float(first.norm() * again.norm()), 1e-300)
        if len(first) < _FEW and float((again - first).norm()) > _SAME * float(first.norm()):
            cosine = -1.0
        found.append((cosine, math.sqrt(max(0.0, product))))
    return min(cosine for cosine, _ in found), min(common for _, common in found)


def _gap(one: Replay, other: Replay) -> torch.Tensor:
    return one.release - other.release


def hands_all_over(replay: StepReplay, batch: Any, seed: int) -> bool:
    """Whether all that a step clips is what it hands over.

    Gradients of zeros beside two batches release the same noise, unless the training adds something
    of the records. What it adds is the same vector under another seed; noise that depends on
    records is not.

    Args:
        replay: of the step.
        batch: a physical batch.
        seed: of the replays.
    """
    count = rows(batch)
    zeros = torch.zeros(1, sum(replay.sizes)).expand(count, -1)
    batches = batch, taken(batch, [0] * count)

    def draw(seed: int) -> list[Replay]:
        return [replay.run([each], seed, rows=zeros) for each in batches]

    one, other = draw(seed)
    if one.error or other.error or not one.releases:
        return False
    far = distance(one, other)
    if far <= _ROUNDING or not math.isfinite(far):
        return far <= _ROUNDING
    return _alike(one, other, draw, seed)[0] < _ADDED
