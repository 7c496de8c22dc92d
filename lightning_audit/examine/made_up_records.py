"""Records that are made up within the range of the data, and so may be in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils import _pytree

from lightning_audit.canaries.sample_batches import leaves, rows, taken
from lightning_audit.replay.step_replay import StepReplay


def made_up_records(
    replay: StepReplay, batches: Sequence[Any], seed: int
) -> Iterator[tuple[str, Any]]:
    """The last batch with one record more, and what that is.

    Its floating point numbers are the largest or the smallest of the batch, column by column; its
    whole numbers are a record's. So logarithms, roots and tables are defined for it, unless they
    are of several columns.

    Args:
        replay: of the step.
        batches: the physical batches of one logical step.
        seed: of the choice.
    """
    last = batches[-1]
    for name, largest in (("largest", True), ("smallest", False)):
        yield f"its inputs the {name} of the batch by column", _with_extreme(last, largest=largest)
    hardest = _hardest(replay, batches, seed)
    if hardest is not None:
        yield "its inputs some of the largest and smallest of the batch by column", hardest


def _with_extreme(batch: Any, *, largest: bool) -> Any:
    """A batch and a record more, the first one with the largest or smallest inputs."""
    longer = taken(batch, [*range(rows(batch)), 0])
    for tensor in leaves(longer):
        if tensor.is_floating_point():
            tensor[-1] = tensor.amax(0) if largest else tensor.amin(0)
    return longer


def _hardest(replay: StepReplay, batches: Sequence[Any], seed: int) -> Any:
    """A batch and a record more, of many within the range the one with the largest gradient."""
    if len(batches) > 1 or not replay.usual(batches, seed).norms:
        return None
    batch = batches[0]
    made = within_range(batch, seed)
    seen = replay.run([made], seed)
    norms = torch.cat(seen.norms) if seen.norms else torch.zeros(0)
    if seen.error or len(norms) != rows(made):
        return None
    row = int(torch.nan_to_num(norms, nan=-1.0, posinf=-1.0).argmax())
    return _pytree.tree_map(lambda a, b: torch.cat([a, b[row : row + 1]]), batch, made)


def within_range(batch: Any, seed: int) -> Any:
    """As many records as a batch has, each of the largest and smallest numbers by column at random.

    Whole numbers, as labels are, are another record's.

    Args:
        batch: tensors with the samples first, in tuples, lists, dicts or named tuples.
        seed: of the choice.

    Returns:
        New tensors in the same containers.
    """
    generator = torch.Generator().manual_seed(seed)
    made = taken(batch, [*range(1, rows(batch)), 0])
    for tensor in leaves(made):
        if tensor.is_floating_point():
            low, high = tensor.amin(0, keepdim=True), tensor.amax(0, keepdim=True)
            lower = torch.rand(tensor.shape, generator=generator) < 0.5
            tensor.copy_(torch.where(lower.to(tensor.device), low, high))
    return made
