"""Batches that make no step: empty ones, and those that are left out at no fixed distance."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree

SKIPPED = (
    "empty batches were skipped: Poisson sampling draws no record now and then, and the accountant "
    "supposes a step of noise alone there; a model that stays as it was tells that nobody was "
    "drawn. Step on such batches too, as Opacus' loader and optimizer can"
)


class LeftOutBatches:
    """Sees which batches make no step.

    Steps lie at a fixed distance within an epoch: on every batch, or on every k-th, where gradients
    are added up or several optimizers take turns. The first and the last of an epoch may come
    earlier. Where an empty batch came in between it cannot be told.
    """

    def __init__(self) -> None:
        #: Whether some were left out at no fixed distance; empty ones do not count.
        self.irregular = False
        #: Whether an empty one was left out, and every other such batch was empty as well.
        self.empty = False
        self._once_a_batch = True
        self.start_epoch()

    def start_epoch(self) -> None:
        """The distance may be another one in each epoch."""
        self._distance: int | None = None
        # Batches before the first step and that one, where it is known, and those since the last.
        self._first, self._batches = 0, 0
        self._begins, self._unsure, self._early = True, False, False

    @property
    def regular(self) -> bool:
        """Whether each batch has made a step lately: one more that does changes nothing."""
        return self._distance == 1 and not (self._batches or self._begins or self._unsure)

    def take(self, batch: Any, *, stepped: bool) -> None:
        """A batch was trained.

        Args:
            batch: as it was trained.
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
    """Whether the tensors of a batch hold no sample."""
    tensors = [x for x in _pytree.tree_leaves(batch) if isinstance(x, torch.Tensor) and x.dim()]
    return bool(tensors) and all(len(tensor) == 0 for tensor in tensors)
