"""Entries of the gradient that are read at every step, and the canaries' positions in them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lightning_audit.canaries.placement import Placement
from lightning_audit.checks.noise.witnesses import Witnesses
from lightning_audit.layout import Direction, FloatArray, IndexArray


@dataclass(frozen=True)
class Located:
    """Canary directions restricted to the entries that are read, in sparse form.

    Args:
        row: index of the direction, ``[m]``.
        at: position in the reading, ``[m]``.
        value: the direction's entry at that position, ``[m]``.
    """

    row: IndexArray
    at: IndexArray
    value: FloatArray

    def products(self, values: FloatArray, count: int) -> FloatArray:
        """Return inner products of ``count`` directions with a reading, ``[n]`` to ``[count]``."""
        sums = np.bincount(self.row, weights=self.value * values[self.at], minlength=count)
        return np.asarray(sums, dtype=np.float64)

    def shares(self, chosen: NDArray[np.bool_], count: int) -> FloatArray:
        """Return each direction's share of squared norm on ``chosen``, ``[n]`` to ``[count]``."""
        weights = self.value**2 * chosen[self.at]
        sums = np.bincount(self.row, weights=weights, minlength=count)
        norms = np.bincount(self.row, weights=self.value**2, minlength=count)
        return np.asarray(sums / np.where(norms > 0, norms, 1.0), dtype=np.float64)

    def combined(self, weights: FloatArray, size: int) -> FloatArray:
        """Return the sum of the directions times ``weights``, ``[count]`` to ``[size]``."""
        sums = np.bincount(self.at, weights=weights[self.row] * self.value, minlength=size)
        return np.asarray(sums, dtype=np.float64)


class Coordinates:
    """The entries that are read in each tensor: probe coordinates and canary coordinates.

    Args:
        witnesses: probe coordinates, which carry no canary.
        placement: the canaries.
    """

    def __init__(self, witnesses: Witnesses, placement: Placement) -> None:
        self._fixed = [not item.canary.moving for item in placement.placed]
        self._known: Located | None = None
        self._start: dict[int, int] = {}
        #: Tensor -> flat coordinates, sorted and distinct.
        self.by_tensor: dict[int, IndexArray] = {}
        #: Number of all entries.
        self.size = 0
        canaries, none, witness_at = placement.support(), np.zeros(0, dtype=np.int64), []
        for j, own in sorted(witnesses.index.items()):
            # In a tensor that canaries fill, probe coordinates are canary coordinates too.
            self.by_tensor[j] = np.union1d(own, canaries.get(j, none))
            self._start[j] = self.size
            witness_at.append(self.size + np.searchsorted(self.by_tensor[j], own))
            self.size += len(self.by_tensor[j])
        #: Positions of the probe coordinates, in their order.
        self.witness_at: IndexArray = np.concatenate(witness_at)

    def empty_tensors(self, dead: NDArray[np.bool_]) -> bool:
        """Return whether the dead entries are exactly those of some tensors, but not of all."""
        ends = [*self._start.values(), self.size]
        parts = [dead[a:b] for a, b in itertools.pairwise(ends)]
        return all(part.all() or not part.any() for part in parts) and not dead.all()

    def locate(self, directions: Sequence[Direction]) -> Located:
        """Return the positions of a step's canary directions."""
        if self._known is None:
            # Fixed directions are the same at every step.
            self._known = self._located(directions, fixed=True)
        if all(self._fixed):
            return self._known
        moving = self._located(directions, fixed=False)
        both = zip(
            (self._known.row, self._known.at, self._known.value),
            (moving.row, moving.at, moving.value),
            strict=True,
        )
        return Located(*(np.concatenate(parts) for parts in both))

    def _located(self, directions: Sequence[Direction], *, fixed: bool) -> Located:
        rows = [row for row, kind in enumerate(self._fixed) if kind == fixed]
        found = [self._entries(directions[row]) for row in rows]
        return Located(
            np.repeat(np.array(rows, dtype=np.int64), [len(at) for at, _ in found]),
            np.concatenate([np.zeros(0, dtype=np.int64), *(at for at, _ in found)]),
            np.concatenate([np.zeros(0), *(value for _, value in found)]),
        )

    def _entries(self, direction: Direction) -> tuple[IndexArray, FloatArray]:
        at = [
            self._start[part.tensor] + np.searchsorted(self.by_tensor[part.tensor], part.index)
            for part in direction.parts
        ]
        return np.concatenate(at), np.concatenate([part.value for part in direction.parts])
