"""Poisson batches without a record, which are steps as well: noise alone."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree

SKIPPED = (
    "empty batches were skipped: Poisson sampling draws no record now and then, and the accountant "
    "supposes a step of noise alone there; a model that stays as it was tells that nobody was "
    "drawn. Step on such batches too, as Opacus' loader and optimizer can"
)


class EmptyBatches:
    """Sees whether a training that steps once a batch leaves the empty ones out."""

    def __init__(self) -> None:
        self._once_a_batch = True

    def skipped(self, batch: Any) -> bool:
        """Whether a batch was empty that ended without a step, as with every other such batch."""
        empty = is_empty(batch)
        self._once_a_batch &= empty
        return empty and self._once_a_batch


def is_empty(batch: Any) -> bool:
    """Whether the tensors of a batch hold no sample."""
    tensors = [x for x in _pytree.tree_leaves(batch) if isinstance(x, torch.Tensor) and x.dim()]
    return bool(tensors) and all(len(tensor) == 0 for tensor in tensors)
