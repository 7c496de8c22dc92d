"""Compare two replays that differ in one record or one gradient, under a second seed as well.

A record's contribution to a release is the same vector under any random numbers. If the two replays
draw different random numbers, their difference is noise, which is another vector each time.
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
    "other records"
)
MORE = "the training clips gradients that the replay could not replace"
_SECOND = 7_368_787
#: Least cosine of two differences with a common part: independent ones reach 4 standard deviations
#: in 1 of 30,000 cases.
_LEAST, _DEVIATIONS = 0.05, 4.0
#: With fewer entries than ``_FEW`` a cosine is not enough: differences must agree up to a tenth,
#: under ``_SEEDS`` further seeds.
_FEW, _SAME, _SEEDS = 25, 0.1, 3
#: Pairs that estimate the noise in a record's contribution, and the factor by which a nonlinear
#: function of the noisy gradient may show a record more than the gradient does.
_PAIRS, _BENT = 5, 3.0
#: Number of tested findings after which further ones are classified alike.
_ENOUGH = 3
#: Rounding of equal sums, and least cosine of gradients of its own that a training adds.
_ROUNDING, _ADDED = 1e-3, 0.3


@dataclass(frozen=True)
class Judged:
    """Result of comparing a pair.

    Args:
        far: distance of its releases, in units of the clipping norm.
        failed: whether the user's code failed on one of its batches.
        shifted: whether the two replays drew different random numbers, so that the result is void.
    """

    far: float = 0.0
    failed: bool = False
    shifted: bool = False

    @property
    def tells(self) -> bool:
        """Whether the result is valid."""
        return not self.failed and not self.shifted


def judge(
    draw: Draw, seed: int, allowed: float, *, by_row: bool = False, least_cosine: float = 0.0
) -> Judged:
    """Measure the distance of a pair's releases, and whether it is noise.

    Args:
        draw: replays the pair.
        seed: of the replays.
        allowed: largest distance that is no finding, in units of the clipping norm.
        by_row: whether only one gradient differs, and the batches are equal. Then nothing else
            changes, but that gradient may be rounded or dropped at random.
        least_cosine: least cosine of the differences under both seeds, if the records draw their
            own random numbers: their gradients have few directions, and are alike by chance.
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
    """Return whether post-processing of a correct noisy gradient could explain a pair's distance.

    Args:
        draw: replays the pair.
        replay: of the step.
        seed: of the replays.
        moved: change by one record that a release may show, in units of the clipping norm.
    """
    replay.allow(2 * _PAIRS)
    pairs = [draw(seed + number * _SECOND) for number in range(_PAIRS)]
    if any(each.error or not each.releases for pair in pairs for each in pair):
        return False
    gaps = [_gap(*pair) for pair in pairs]
    if any(gap.shape != gaps[0].shape or not bool(torch.isfinite(gap).all()) for gap in gaps):
        return False
    # A linear map of the noisy sum gives the same change by a record each time.
    linear = all(float((gap - gaps[0]).norm()) <= _SAME * float(gaps[0].norm()) for gap in gaps)
    allowed = moved * (1.0 if linear else _BENT)
    releases = [one.release for one, _ in pairs]
    return hidden_by_noise(gaps[0], releases, replay.noise_multiplier, allowed)


class Unshown:
    """Findings that post-processing could explain, in a training that does not show its release.

    Args:
        replay: of the step.
        seed: of the replays.
        shown: whether the training shows its release; then there are no such findings.
    """

    def __init__(self, replay: StepReplay, seed: int, *, shown: bool) -> None:
        self._replay, self._seed, self._shown = replay, seed, shown
        #: Number of such findings.
        self.count = 0

    def takes(self, draw: Draw, moved: int) -> bool:
        """Return whether a pair that is too far apart is one of them; see `is_processed`."""
        if self._shown:
            return False
        if self.count < _ENOUGH and not is_processed(draw, self._replay, self._seed, moved):
            return False
        self.count += 1
        return True


def is_noise(cosine: float, size: int) -> bool:
    """Return whether two vectors may be independent, given their cosine.

    Args:
        cosine: of the two vectors.
        size: number of entries of each.
    """
    return cosine < min(max(_LEAST, _DEVIATIONS / math.sqrt(size)), 1.0 - _SAME)


def _alike(one: Replay, other: Replay, draw: Draw, seed: int) -> tuple[float, float]:
    """Return the least cosine of a pair's difference with those under other seeds.

    Also the least norm of their common part. The cosine is -1 if the pair cannot be replayed again.
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
    """Return whether a replay can replace all gradients that a step clips.

    With zero gradients, two batches release the same noise, unless the training adds gradients of
    its own. These are the same vector under another seed; noise that depends on records is not.

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
