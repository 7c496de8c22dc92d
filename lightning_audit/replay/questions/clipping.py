"""Test a step's clipping with crafted gradients that replace those of the batch.

The user's clipping and noise run, without a forward or backward pass. Under the same noise, the
releases with and without one gradient differ by that gradient's contribution, which must be at most
the clipping norm.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from lightning_audit.canaries.sample_batches import rows
from lightning_audit.checks.replay.replay_answers import Answer
from lightning_audit.checks.replay.replay_findings import Finding
from lightning_audit.checks.replay.unanswered import NOT_SHOWN
from lightning_audit.replay.questions.clipping_kind import clipping_kind
from lightning_audit.replay.questions.crafted_gradients import CraftedGradients, Trial
from lightning_audit.replay.questions.replayed_pair import (
    MORE,
    SHIFTED,
    Draw,
    Judged,
    Unshown,
    hands_all_over,
    judge,
)
from lightning_audit.replay.replay import Replay, Stopped
from lightning_audit.replay.replay_distance import rounding, too_coarse
from lightning_audit.replay.rows_replay import RowsReplay, why_no_rows
from lightning_audit.replay.step_replay import StepReplay

#: Largest number of trials of one examination.
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
    """Replay a step with crafted gradients.

    Args:
        replay: of the step.
        batch: a physical batch, whose records are repeated to match the number of gradients.
        tolerated: rounding, in units of the clipping norm.
        seed: of the replays and of the gradients.
        trials: largest number of trials; each leaves out one gradient.
        begin: number of trials in earlier examinations, after which this one continues.
        replaced: whether the gradient is replaced by zeros instead of left out, so that the number
            of gradients is equal; also done if leaving it out shifts random numbers.
    """
    count = rows(batch)
    usual = replay.usual([batch], seed)
    if reason := why_no_rows(usual, count, by_opacus=replay.clips_by_opacus):
        return Answer(reason=reason)
    if reason := too_coarse(rounding(usual.releases, replay.dtypes), tolerated):
        return Answer(reason=reason)
    crafted = CraftedGradients(replay.sizes, count, seed, replay.dtype)
    given = RowsReplay(replay, batch, next(crafted.trials()).rows, seed)
    unshown, found = Unshown(replay, seed, shown=usual.shown), list[Finding]()
    asked, shifted, zeros = 0, 0, replaced
    start = begin % TRIALS
    with contextlib.suppress(Stopped):  # findings until then are kept
        for trial in itertools.islice(_endless(crafted), start, start + trials):
            judged = _judge(given, trial, seed, 1.0 + tolerated, zeros=zeros)
            if judged.shifted and not zeros:
                zeros = True
                judged = _judge(given, trial, seed, 1.0 + tolerated, zeros=zeros)
            shifted += judged.shifted
            if not judged.tells:
                continue
            if judged.far > 1.0 + tolerated:
                if not found and not given.alone and not hands_all_over(replay, batch, seed):
                    return Answer(reason=MORE)
                if not unshown.takes(_pair(given, trial, zeros=zeros), 1):
                    found.append(_finding(trial, judged.far, replay.sizes))
            asked += 1
    if unshown.count and not found:
        return Answer(reason=NOT_SHOWN)
    why = SHIFTED if shifted else replay.why_none("crafted gradient")
    kind = clipping_kind(replay, given.run, count, seed, tolerated) if found else ""
    return Answer(asked, tuple(found), "" if asked else why, kind=kind)


def _judge(given: RowsReplay, trial: Trial, seed: int, allowed: float, *, zeros: bool) -> Judged:
    """Compare the step with a trial's gradients to that without one of them, or with zeros."""
    return judge(_pair(given, trial, zeros=zeros), seed, allowed, by_row=zeros)


def _pair(given: RowsReplay, trial: Trial, *, zeros: bool) -> Draw:
    without = trial.with_zeros if zeros else trial.neighbour

    def draw(seed: int) -> list[Replay]:
        return [given.run(rows, seed) for rows in (trial.rows, without)]

    return draw


def _finding(trial: Trial, far: float, sizes: Sequence[int]) -> Finding:
    left = trial.rows[trial.left_out]
    parts = sum(bool(part.any()) for part in torch.split(left, list(sizes)))
    whole, alone = float(left.norm()), parts == 1 < len(sizes)
    return Finding(trial.name, far, 1.0, whole=whole, in_one_tensor=alone)


def _endless(crafted: CraftedGradients) -> Iterator[Trial]:
    """Yield trials of all families forever, with new directions each time."""
    while True:
        yield from crafted.trials()
