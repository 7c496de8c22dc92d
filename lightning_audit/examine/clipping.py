"""What a step's clipping makes of gradients of the audit's own, put where the batch's would be.

The user's clipping and noise run; no forward or backward pass decides the gradients. With the same
noise, the releases of a batch and of the batch without one gradient differ by that gradient's part,
which is to be at most the clipping norm.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from lightning_audit.canaries.sample_batches import rows
from lightning_audit.examine.crafted_gradients import CraftedGradients, Trial
from lightning_audit.replay.replay import Replay
from lightning_audit.replay.replay_distance import (
    distance,
    on_a_lattice,
    rounding,
    shift_by_more_draws,
    too_coarse,
)
from lightning_audit.replay.rows_replay import RowsReplay, why_no_rows
from lightning_audit.replay.step_replay import StepReplay
from lightning_audit.run_checks.replay_answers import Answer
from lightning_audit.run_checks.replay_findings import Finding

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
    usual = replay.usual([batch], seed)
    if reason := why_no_rows(usual, count, by_opacus=replay.clips_by_opacus):
        return Answer(reason=reason)
    if reason := too_coarse(rounding(usual.releases, replay.dtypes), tolerated):
        return Answer(reason=reason)
    crafted = CraftedGradients(replay.sizes, count, seed, replay.dtype)
    given = RowsReplay(replay, batch, next(crafted.trials()).rows, seed)
    found: list[Finding] = []
    asked = 0
    start = begin % TRIALS
    for trial in itertools.islice(_endless(crafted), start, start + trials):
        if not replay.has_left(2):
            break
        one, other = _pair(given, trial, seed, replaced=replaced)
        if one.error or other.error:
            continue
        asked += 1
        far = distance(one, other)
        if far > 1.0 + tolerated and on_a_lattice(torch.cat(one.releases)):
            pair = partial(_pair, given, trial, replaced=replaced)
            far = shift_by_more_draws(pair, seed)
        if far > 1.0 + tolerated:
            left = trial.rows[trial.left_out]
            parts = sum(bool(part.any()) for part in torch.split(left, replay.sizes))
            alone = parts == 1 < len(replay.sizes)
            whole = float(left.norm())
            found.append(Finding(trial.name, far, 1.0, whole=whole, in_one_tensor=alone))
    return Answer(asked, tuple(found), "" if asked else replay.why_none("crafted gradient"))


def _endless(crafted: CraftedGradients) -> Iterator[Trial]:
    """Trials of all families, again and again, with other directions."""
    while True:
        yield from crafted.trials()


def _pair(given: RowsReplay, trial: Trial, seed: int, *, replaced: bool) -> list[Replay]:
    """The step with the gradients of a trial, and without the one."""
    without = trial.with_zeros if replaced else trial.neighbour
    return [given.run(rows, seed) for rows in (trial.rows, without)]
