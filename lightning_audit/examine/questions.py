"""The questions that an examination asks of a step, one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from lightning_audit.canaries.sample_batches import rows
from lightning_audit.examine.answers import Answer
from lightning_audit.examine.clipping import examine_clipping
from lightning_audit.examine.record_sensitivity import examine_sensitivity, tolerance
from lightning_audit.examine.release_use import examine_release
from lightning_audit.examine.step_replay import StepReplay

#: Names of the questions, and what a yes says.
QUESTIONS: Mapping[str, str] = {
    "replay.sensitivity": "one record moves what a step releases by at most the clipping norm",
    "replay.clipping": "one gradient, whatever it is, adds at most the clipping norm",
    "replay.release": "what a step leaves behind rests on its release alone",
}
#: Records that a batch must have so that one can be left out.
LEAST_RECORDS = 3

_NOT_SURE = (
    "it cannot be told where the noise is in; show it: "
    "grads = lightning_audit.released(grads, module=self)"
)


def ask_all(
    replay: StepReplay, batches: Sequence[Any], seed: int, *, low_precision: bool
) -> dict[str, Answer]:
    """Ask every question of a step, by its name.

    Args:
        replay: of the step.
        batches: the physical batches of one logical step.
        seed: of the replays.
        low_precision: whether layers compute in bf16 or fp16.
    """
    if reason := _obstacle(replay, batches, seed):
        return {name: Answer(reason=reason) for name in QUESTIONS}
    tolerated = tolerance(replay.dtypes, low_precision=low_precision)
    largest = max(batches, key=rows)
    clipping = (
        examine_clipping(replay, largest, tolerated, seed)
        if len(batches) == 1 or replay.skips
        else Answer(reason="gradients of several batches are added up by the Trainer")
    )
    return {
        "replay.sensitivity": examine_sensitivity(replay, batches, tolerated, seed),
        "replay.clipping": clipping,
        "replay.release": examine_release(replay, batches, seed),
    }


def _obstacle(replay: StepReplay, batches: Sequence[Any], seed: int) -> str:
    """Why nothing can be asked, or empty."""
    try:
        most = max(map(rows, batches), default=0)
    except ValueError as error:
        return str(error)
    if most < LEAST_RECORDS:
        return f"a batch of {most} records is too small"
    base = replay.run(batches, seed)
    if base.error:
        return f"the step cannot be replayed ({base.error}, {base.where})"
    if not base.releases:
        return "the batch makes no step"
    if not base.sure:
        return _NOT_SURE
    if not all(bool(torch.isfinite(release).all()) for release in base.releases):
        return "what the step releases is not finite"
    return ""
