"""Replays of a step with crafted gradients instead of its records' gradients."""

from __future__ import annotations

from typing import Any

import torch

from lightning_audit.canaries.sample_batches import rows, taken
from lightning_audit.checks.replay.unanswered import OTHER_ROWS
from lightning_audit.replay.replay import Replay
from lightning_audit.replay.replay_distance import equal_releases
from lightning_audit.replay.step_replay import StepReplay


class RowsReplay:
    """Replays of a step with given per-sample gradients.

    If clipping and noise alone give the same release, the rest of the step is skipped.

    Args:
        replay: of the step.
        batch: a physical batch, whose records are repeated to match the number of gradients.
        first: gradients for the test whether the rest can be skipped, ``[n, d]``.
        seed: of that test.
    """

    def __init__(self, replay: StepReplay, batch: Any, first: torch.Tensor, seed: int) -> None:
        self._replay, self._batch = replay, batch
        #: Whether the rest of the step is skipped.
        self.alone = False
        if replay.clips_alone:
            whole, short = (self._run(first, seed, alone=way) for way in (False, True))
            self.alone = bool(whole.releases) and not short.error and equal_releases(whole, short)

    def run(self, gradients: torch.Tensor, seed: int) -> Replay:
        """Replay the step with gradients in units of the clipping norm, ``[n, d]``."""
        return self._run(gradients, seed, alone=self.alone)

    def weights(self, gradients: torch.Tensor, seed: int) -> torch.Tensor | None:
        """Return the weights ``[d]`` after the whole step with given gradients; None if unknown."""
        replay = self._run(gradients, seed, alone=False, look=True)
        names = [f"parameters of {slot.name}" for slot in self._replay.layout]
        if replay.error or not all(name in replay.after for name in names):
            return None
        return torch.cat([replay.after[name] for name in names])

    def _run(
        self, gradients: torch.Tensor, seed: int, *, alone: bool, look: bool = False
    ) -> Replay:
        batch = _of_size(self._batch, len(gradients))
        return self._replay.run([batch], seed, rows=gradients, alone=alone, look=look)


def why_no_rows(usual: Replay, count: int, *, by_opacus: bool) -> str:
    """Return why the gradients cannot be replaced, or empty.

    Args:
        usual: replay of the step as it is.
        count: number of records of the batch.
        by_opacus: whether Opacus clips the gradients.
    """
    if not usual.rows:
        return "no per-sample gradients are formed, or per_sample is not called with them"
    if usual.rows != count:
        return OTHER_ROWS
    if usual.parts > 1 and by_opacus:
        return "the batch is clipped in several parts"
    return ""


def _of_size(batch: Any, size: int) -> Any:
    """Return a batch of ``size`` records, repeating them if necessary."""
    count = rows(batch)
    return taken(batch, [number % count for number in range(size)])
