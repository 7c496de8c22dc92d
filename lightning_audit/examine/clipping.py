"""What a step's clipping makes of gradients of the audit's own, put where the batch's would be.

The user's clipping and noise run; no forward or backward pass decides the gradients. With the same
noise, the releases of a batch and of the batch without one gradient differ by that gradient's part,
which is to be at most the clipping norm.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from lightning_audit.canaries.sample_batches import rows, taken
from lightning_audit.examine.crafted_gradients import CraftedGradients, Trial
from lightning_audit.examine.replay import Replay
from lightning_audit.examine.replay_distance import (
    distance,
    equal_releases,
    on_a_lattice,
    shift_by_more_draws,
    too_coarse,
)
from lightning_audit.examine.step_replay import StepReplay
from lightning_audit.run_checks.replay_answers import Answer, Finding

#: Trials of one examination at the most.
TRIALS = 32


def examine_clipping(
    replay: StepReplay,
    batch: Any,
    tolerated: float,
    seed: int,
    trials: int = TRIALS,
    begin: int = 0,
    *,
    replaced: bool = False,
) -> Answer:
    """Replay a step with gradients of the audit's own.

    Args:
        replay: of the step.
        batch: a physical batch, whose records are repeated to as many as there are gradients.
        tolerated: rounding, in units of the clipping norm.
        seed: of the replays and of the gradients.
        trials: how many gradients are left out, at the most.
        begin: trials that earlier examinations made, with which this one goes on.
        replaced: whether zeros take the place of the gradient, so that there are as many.
    """
    count = rows(batch)
    usual = replay.run([batch], seed)
    if usual.rows != count:
        return Answer(reason=_no_rows(usual.rows, count))
    if usual.parts > 1 and replay.clips_by_opacus:
        return Answer(reason=f"the batch is clipped in {usual.parts} parts")
    if reason := too_coarse(replay.rounding(usual), tolerated):
        return Answer(reason=reason)
    crafted = CraftedGradients(replay.sizes, count, seed)
    pair = _pairs(replay, batch, crafted, seed, replaced=replaced)
    found: list[Finding] = []
    asked = 0
    start = begin % TRIALS
    for trial in itertools.islice(_endless(crafted), start, start + trials):
        if not replay.in_time:
            break
        one, other = pair(trial, seed)
        if one.error or other.error:
            continue
        asked += 1
        far = distance(one, other)
        if far > 1.0 + tolerated and on_a_lattice(torch.cat(one.releases)):
            far = shift_by_more_draws(partial(pair, trial), seed)
        if far > 1.0 + tolerated:
            found.append(Finding(trial.name, far, 1.0))
    return Answer(asked, tuple(found), "" if asked else replay.why_none("crafted gradient"))


def _endless(crafted: CraftedGradients) -> Iterator[Trial]:
    """Trials of all families, again and again, with other directions."""
    while True:
        yield from crafted.trials()


def _pairs(
    replay: StepReplay, batch: Any, crafted: CraftedGradients, seed: int, *, replaced: bool
) -> Callable[[Trial, int], list[Replay]]:
    """What gives the step with the gradients of a trial, and without the one.

    Where clipping and noise alone make the same release, the rest of the step is left out.
    """

    def run(rows: torch.Tensor, seed: int, *, alone: bool) -> Replay:
        return replay.run([_of_size(batch, len(rows))], seed, rows=rows, alone=alone)

    alone = False
    if replay.clips_alone:
        first = next(crafted.trials()).rows
        whole, short = (run(first, seed, alone=way) for way in (False, True))
        alone = bool(whole.releases) and not short.error and equal_releases(whole, short)

    def pair(trial: Trial, seed: int) -> list[Replay]:
        without = trial.with_zeros if replaced else trial.neighbour
        return [run(rows, seed, alone=alone) for rows in (trial.rows, without)]

    return pair


def _no_rows(seen: int, count: int) -> str:
    if not seen:
        return "no per-sample gradients are formed, or the training does not hand them over"
    return f"{seen} gradients of {count} records come to be clipped"


def _of_size(batch: Any, size: int) -> Any:
    """A batch of as many records."""
    count = rows(batch)
    return taken(batch, [number % count for number in range(size)])
