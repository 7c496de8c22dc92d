"""Detects batches without a step: empty ones, and others at irregular intervals."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree

SKIPPED = (
    "empty batches were skipped: Poisson sampling sometimes draws no record, and the accountant "
    "assumes a step with only noise then; skipping the step reveals that the batch was empty. Step "
    "on such batches too, as Opacus' loader and optimizer do"
)


class LeftOutBatches:
    """Detector of batches without a step.

    Within an epoch a step is taken on every batch, or on every k-th one if gradients are
    accumulated or several optimizers alternate. The first and the last interval of an epoch may be
    shorter. Intervals that contain an empty batch are not tested.
    """

    def __init__(self) -> None:
        #: Whether non-empty batches were left out at irregular intervals.
        self.irregular = False
        #: Whether an empty batch was left out, and no non-empty batch before it was.
        self.empty = False
        self._once_a_batch = True
        self.start_epoch()

    def start_epoch(self) -> None:
        """Reset at the start of an epoch, which may have another interval."""
        self._distance: int | None = None
        # Number of batches up to the first step's, 0 if unknown; number since the last step.
        self._first, self._batches = 0, 0
        self._begins, self._unsure, self._early = True, False, False

    @property
    def regular(self) -> bool:
        """Whether every recent batch made a step, so that one more changes no state."""
        return self._distance == 1 and not (self._batches or self._begins or self._unsure)

    def take(self, batch: Any, *, stepped: bool) -> None:
        """Update after a batch was trained on.

        Args:
            batch: the batch.
            stepped: whether it made a step.
        """
        if not stepped and is_empty(batch):
            self.empty |= self._once_a_batch
            self._unsure = True
            return
        self._once_a_batch &= stepped
        self._batches += 1
        if not (self._begins or self._unsure):
            late = self._distance is not None and self._batches >= self._distance + stepped
            self.irregular |= self._early or late
        if not stepped:
            return
        if self._begins:
            self._first = 0 if self._unsure else self._batches
        elif not self._unsure:
            self._distance = self._distance or self._batches
            self._early = self._batches < self._distance
            self.irregular |= self._first > self._distance
        self._batches, self._begins, self._unsure = 0, False, False


def is_empty(batch: Any) -> bool:
    """Return whether the tensors of a batch contain no sample."""
    tensors = [x for x in _pytree.tree_leaves(batch) if isinstance(x, torch.Tensor) and x.dim()]
    return bool(tensors) and all(len(tensor) == 0 for tensor in tensors)
