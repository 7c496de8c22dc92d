"""Test whether a record's gradient depends on the other records of its batch.

Clipping bounds the contribution of a record's own gradient. If the record also changes the
gradients of others, through a layer or a loss over the batch, clipping does not bound its total
contribution.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from lightning_audit.canaries.sample_batches import copies, rows
from lightning_audit.checks.replay.replay_answers import Answer
from lightning_audit.checks.replay.replay_findings import Finding
from lightning_audit.replay.replay import Replay
from lightning_audit.replay.step_replay import StepReplay

#: Largest number of kept entries over a batch's gradients, and smallest number per gradient.
_ENTRIES, _LEAST = 10_000_000, 1000
#: Further seeds under which both batches of a finding must draw the same number of random numbers.
_SEEDS, _APART = 4, 5_915_587

_NO_NUMBERS = "the gradients of the batch are zero or not finite"
_NOT_REPEATABLE = "the step gives other gradients when it runs again"
_DRAWS = "the number of random draws depends on the data, so that replays are not comparable"


def examine_independence(replay: StepReplay, batch: Any, tolerated: float, seed: int) -> Answer:
    """Replay a batch of copies of one record, and a batch in which only some are copies.

    Args:
        replay: of the step.
        batch: a physical batch.
        tolerated: relative change of a gradient that rounding may cause.
        seed: of the replays.
    """
    keep = min(sum(replay.sizes), max(_ENTRIES // rows(batch), _LEAST))
    alone, mixed, count = copies(batch)

    def pair(seed: int) -> tuple[Replay, Replay]:
        one, other = (replay.run([each], seed, keep=keep) for each in (alone, mixed))
        return one, other

    first, second = pair(seed)
    if first.error or second.error:
        return Answer(reason=first.error or second.error)
    made = first.rows
    if not made or made % rows(batch) or second.rows != made:
        return Answer(reason="the step does not form one per-sample gradient per record")
    same = count * made // rows(batch)
    change = largest_change(_together(first), _together(second), same)
    if change is None:
        return Answer(reason=_NO_NUMBERS)
    if change <= tolerated:
        return Answer(asked=1)
    replay.allow(1 + 2 * _SEEDS)
    # Data-dependent numbers of draws may agree by chance, but not under each of several seeds.
    for one, other in ((first, second), *(pair(seed + n * _APART) for n in range(1, 1 + _SEEDS))):
        if one.drawn is None or one.drawn != other.drawn:
            return Answer(reason=_DRAWS)
    again = replay.run([mixed], seed, keep=keep)
    unsteady = largest_change(_together(second), _together(again), made)
    if unsteady is None or unsteady > tolerated / 10:
        return Answer(reason=_NOT_REPEATABLE)
    return Answer(1, (Finding("a record among others", change, tolerated),))


def _together(found: Replay) -> torch.Tensor:
    return torch.cat(found.gradients)


def largest_change(copies: torch.Tensor, mixed: torch.Tensor, same: int) -> float | None:
    """Return the largest relative change of one record's gradient between two batches.

    The position of the record's rows in the mixed batch need not be known, because training code
    may sort its records: each position in the batch of copies has one, with the same random
    numbers.

    Args:
        copies: per-sample gradients of a batch of copies of the record, ``[n, d]``.
        mixed: per-sample gradients of a batch in which only some are copies, ``[n, d]``.
        same: number of rows of ``mixed`` that are the record's.

    Returns:
        The change over the gradient's norm, or over the median norm if that is larger: a small
        gradient is a difference of larger numbers, and has their rounding. Infinity if ``copies``
        has non-finite gradients and ``mixed`` has not; None if ``mixed`` has, or if all gradients
        are zero.
    """
    norms = torch.stack([copies.norm(dim=1), mixed.norm(dim=1)])
    if not bool(torch.isfinite(norms[1]).all()) or not norms.any():
        return None
    if not bool(torch.isfinite(norms[0]).all()):
        return math.inf
    scale = norms.amax(dim=0).clamp(min=float(norms[norms > 0].median()))
    changes = (copies - mixed).norm(dim=1) / scale
    return float(changes.sort().values[same - 1])
