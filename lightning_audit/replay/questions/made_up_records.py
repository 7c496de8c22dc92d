"""Synthetic records within the range of the data, which the data set might contain."""

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
    """Yield descriptions of a synthetic record, and the last batch with that record added.

    The record's floating point numbers are the largest or smallest of the batch in each column; its
    integers are those of a record of the batch. So logarithms, roots and lookup tables are defined
    for it, unless they combine several columns.

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
    """Append a copy of the first record with the largest or smallest inputs of each column."""
    longer = taken(batch, [*range(rows(batch)), 0])
    for tensor in leaves(longer):
        if tensor.is_floating_point():
            tensor[-1] = tensor.amax(0) if largest else tensor.amin(0)
    return longer


def _hardest(replay: StepReplay, batches: Sequence[Any], seed: int) -> Any:
    """Append the one of many synthetic records whose gradient is largest; None if unknown."""
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
    """Return as many records as a batch has, each number the largest or smallest of its column.

    Which one is random. Integers, such as labels, are those of another record.

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
