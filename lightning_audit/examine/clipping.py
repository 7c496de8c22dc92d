"""What a step's clipping makes of gradients of the audit's own, put where the batch's would be.

The user's clipping and noise run; no forward or backward pass decides the gradients. With the same
noise, the releases of a batch and of the batch without one gradient differ by that gradient's part,
which is to be at most the clipping norm.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from lightning_audit.canaries.sample_batches import rows, taken
from lightning_audit.examine.answers import (
    Answer,
    Finding,
    distance,
    on_a_lattice,
    shift_by_more_draws,
    too_coarse,
)
from lightning_audit.examine.crafted_gradients import CraftedGradients, Trial
from lightning_audit.examine.step_replay import Replay, StepReplay

#: Trials of one examination at the most.
TRIALS = 32


def examine_clipping(
    replay: StepReplay,
    batch: Any,
    tolerated: float,
    seed: int,
    trials: int = TRIALS,
) -> Answer:
    """Replay a step with gradients of the audit's own.

    Args:
        replay: of the step.
        batch: a physical batch, whose records are repeated to as many as there are gradients.
        tolerated: rounding, in units of the clipping norm.
        seed: of the replays and of the gradients.
        trials: how many gradients are left out.
    """
    count = rows(batch)
    usual = replay.run([batch], seed)
    if usual.rows != count:
        return Answer(reason=_no_rows(usual.rows, count))
    if reason := too_coarse(replay.rounding(usual), tolerated):
        return Answer(reason=reason)
    crafted = CraftedGradients(replay.sizes, count, seed)
    found: list[Finding] = []
    asked = 0
    for trial in crafted.trials():
        if asked >= trials:
            break
        one, other = _both(replay, batch, trial, seed)
        if one.error or other.error:
            continue
        asked += 1
        far = distance(one, other)
        if far > 1.0 + tolerated and on_a_lattice(torch.cat(one.releases)):
            far = shift_by_more_draws(partial(_both, replay, batch, trial), seed)
        if far > 1.0 + tolerated:
            found.append(Finding(trial.name, far, 1.0))
    return Answer(asked, tuple(found), "" if asked else "no crafted gradient could be replayed")


def _both(replay: StepReplay, batch: Any, trial: Trial, seed: int) -> list[Replay]:
    """The step with the gradients of a trial, and without the one."""
    return [
        replay.run([_of_size(batch, len(own))], seed, rows=own)
        for own in (trial.rows, trial.neighbour)
    ]


def _no_rows(seen: int, count: int) -> str:
    if not seen:
        return "no per-sample gradients are formed, or the training does not hand them over"
    return f"{seen} gradients of {count} records come to be clipped"


def _of_size(batch: Any, size: int) -> Any:
    """A batch of as many records."""
    count = rows(batch)
    return taken(batch, [number % count for number in range(size)])
