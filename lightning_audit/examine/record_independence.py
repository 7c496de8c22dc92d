"""Whether a record's gradient stays what it is beside other records.

Clipping bounds what a record's own gradient adds. Where a record moves the gradients of others as
well, by a layer or a loss that works over the batch, it does not bound what the record adds.
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

#: Entries that are kept of the gradients of a batch, and of one gradient at the least.
_ENTRIES, _LEAST = 10_000_000, 1000
#: Further seeds under which both batches of a finding draw as many random numbers.
_SEEDS, _APART = 4, 5_915_587

_NO_NUMBERS = "the gradients of the batch are zero or not finite"
_NOT_REPEATABLE = "the step gives other gradients when it runs again"
_DRAWS = "the step draws as many random numbers as its data tell, so they are not comparable"


def examine_independence(replay: StepReplay, batch: Any, tolerated: float, seed: int) -> Answer:
    """Replay a batch whose records are copies of one, and one in which only some are.

    Args:
        replay: of the step.
        batch: a physical batch.
        tolerated: relative change of a gradient that rounding may make.
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
        return Answer(reason="other than one per-sample gradient of each record is formed")
    same = count * made // rows(batch)
    change = largest_change(_together(first), _together(second), same)
    if change is None:
        return Answer(reason=_NO_NUMBERS)
    if change <= tolerated:
        return Answer(asked=1)
    replay.allow(1 + 2 * _SEEDS)
    # Draws that follow the data are as many by chance, but not under each of several seeds.
    for one, other in ((first, second), *(pair(seed + n * _APART) for n in range(1, 1 + _SEEDS))):
        if one.drawn is None or one.drawn != other.drawn:
            return Answer(reason=_DRAWS)
    again = replay.run([mixed], seed, keep=keep)
    unsteady = largest_change(_together(second), _together(again), made)
    if unsteady is None or unsteady > tolerated / 10:
        return Answer(reason=_NOT_REPEATABLE)
    return Answer(1, (Finding("a record beside others", change, tolerated),))


def _together(found: Replay) -> torch.Tensor:
    return torch.cat(found.gradients)


def largest_change(copies: torch.Tensor, mixed: torch.Tensor, same: int) -> float | None:
    """The largest relative change of one record's gradient between two batches.

    Where the record's rows lie in the mixed batch need not be known: training code may sort its
    records. Wherever one lies, there is one in the batch of copies, with the same random numbers.

    Args:
        copies: per-sample gradients of a batch of copies of the record, ``[n, d]``.
        mixed: those of a batch in which only some are copies, ``[n, d]``.
        same: how many rows of it are the record's.

    Returns:
        The change over the gradient's norm, or over the median norm where that is larger: a small
        gradient is a difference of larger numbers, and has their rounding. Infinity where the
        batch of copies alone has gradients that are not finite; None where the other has, or all
        gradients are zero.
    """
    norms = torch.stack([copies.norm(dim=1), mixed.norm(dim=1)])
    if not bool(torch.isfinite(norms[1]).all()) or not norms.any():
        return None
    if not bool(torch.isfinite(norms[0]).all()):
        return math.inf
    scale = norms.amax(dim=0).clamp(min=float(norms[norms > 0].median()))
    changes = (copies - mixed).norm(dim=1) / scale
    return float(changes.sort().values[same - 1])
