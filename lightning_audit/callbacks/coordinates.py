"""Which entries of the gradient are read at every step, and where the canaries lie among them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lightning_audit.canaries.placement import Placement
from lightning_audit.checks.witnesses import Witnesses
from lightning_audit.layout import Direction, FloatArray, IndexArray


@dataclass(frozen=True)
class Located:
    """Directions among the entries that are read, entry by entry.

    Args:
        row: number of the direction, ``[m]``.
        at: position among what is read, ``[m]``.
        value: the direction's entry there, ``[m]``.
    """

    row: IndexArray
    at: IndexArray
    value: FloatArray

    def products(self, values: FloatArray, count: int) -> FloatArray:
        """Inner products of ``count`` directions with what was read, ``[n]`` to ``[count]``."""
        sums = np.bincount(self.row, weights=self.value * values[self.at], minlength=count)
        return np.asarray(sums, dtype=np.float64)

    def combined(self, weights: FloatArray, size: int) -> FloatArray:
        """The directions summed with ``weights``, over the ``size`` entries that are read."""
        sums = np.bincount(self.at, weights=weights[self.row] * self.value, minlength=size)
        return np.asarray(sums, dtype=np.float64)


class Coordinates:
    """The entries that are read: witnesses and canaries, tensor by tensor.

    Args:
        witnesses: entries that carry no canary.
        placement: the canaries.
    """

    def __init__(self, witnesses: Witnesses, placement: Placement) -> None:
        self._fixed = [not item.canary.moving for item in placement.placed]
        self._known: dict[int, tuple[IndexArray, FloatArray]] = {}
        self._start: dict[int, int] = {}
        #: Tensor -> flat coordinates, sorted and distinct.
        self.by_tensor: dict[int, IndexArray] = {}
        #: Number of all entries.
        self.size = 0
        canaries, none, witness_at = placement.support(), np.zeros(0, dtype=np.int64), []
        for j, own in sorted(witnesses.index.items()):
            # In a tensor that canaries fill, witnesses are among the canaries' coordinates.
            self.by_tensor[j] = np.union1d(own, canaries.get(j, none))
            self._start[j] = self.size
            witness_at.append(self.size + np.searchsorted(self.by_tensor[j], own))
            self.size += len(self.by_tensor[j])
        #: Positions of the witnesses, in their order.
        self.witness_at: IndexArray = np.concatenate(witness_at)

    def locate(self, directions: Sequence[Direction]) -> Located:
        """Where the placement's directions of a step lie."""
        found = []
        for row, direction in enumerate(directions):
            entries = self._known.get(id(direction))
            if entries is None:
                entries = self._entries(direction)
                if self._fixed[row]:
                    # A fixed direction lives as long as its placement, so its id stays its own.
                    self._known[id(direction)] = entries
            found.append((np.full(len(entries[0]), row), *entries))
        row, at, value = zip(*found, strict=True)
        return Located(np.concatenate(row), np.concatenate(at), np.concatenate(value))

    def _entries(self, direction: Direction) -> tuple[IndexArray, FloatArray]:
        at = [
            self._start[part.tensor] + np.searchsorted(self.by_tensor[part.tensor], part.index)
            for part in direction.parts
        ]
        return np.concatenate(at), np.concatenate([part.value for part in direction.parts])
