"""The entries of a gradient at which its noise is tested: all, or the first rows of tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from lightning_audit.layout import FloatArray, Layout
from lightning_audit.replay.replay_distance import on_a_lattice

#: Tensors that a finding names.
_NAMED = 3


@dataclass(frozen=True)
class NoiseEntries:
    """The tested entries of some tensors.

    Args:
        names: of the tensors.
        shapes: rows and columns of the tested part of each tensor.
        columns: number of columns of each whole tensor.
        sizes: number of entries of each whole tensor.
    """

    names: Sequence[str]
    shapes: Sequence[tuple[int, int]]
    columns: Sequence[int]
    sizes: Sequence[int]

    @classmethod
    def of(cls, layout: Layout, most: int) -> NoiseEntries:
        """Choose about ``most`` entries of a layout: an equal part of each tensor's rows."""
        sizes = [slot.numel for slot in layout]
        part = min(1.0, most / max(sum(sizes), 1))
        shapes, columns = [], []
        for slot in layout:
            wide = math.prod(slot.shape[1:]) if len(slot.shape) > 1 else max(slot.numel, 1)
            high = slot.numel // wide if wide else 0
            rows = max(1, math.ceil(part * high)) if high else 0
            seen = wide if rows > 1 or part == 1.0 else max(1, math.ceil(part * wide * high / rows))
            shapes.append((rows, min(seen, wide)))
            columns.append(wide)
        return cls([slot.name for slot in layout], shapes, columns, sizes)

    @property
    def count(self) -> int:
        """The number of tested entries."""
        return sum(rows * columns for rows, columns in self.shapes)

    def of_release(self, release: torch.Tensor) -> list[FloatArray]:
        """Return the tested entries of a release ``[d]``, ``[rows, columns]`` for each tensor."""
        found = []
        for own, (rows, seen), wide in zip(
            torch.split(release, list(self.sizes)), self.shapes, self.columns, strict=True
        ):
            found.append(own[: rows * wide].reshape(rows, wide)[:, :seen].numpy().copy())
        return found

    def tensors_of(self, marked: torch.Tensor) -> str:
        """Return the names of the tensors in which entries are marked, ``[d]``."""
        parts = torch.split(marked, list(self.sizes))
        names = [n for n, own in zip(self.names, parts, strict=True) if bool(own.any())]
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        return ", ".join(f"`{name}`" for name in names[:_NAMED]) + more


def flat(entries: Sequence[FloatArray]) -> FloatArray:
    """Concatenate the entries of all tensors."""
    return np.concatenate([own.ravel() for own in entries])


class DrawsOfNoise:
    """Summary of draws of the noise alone; whole draws would take too much memory.

    Args:
        entries: the tested entries.
    """

    def __init__(self, entries: NoiseEntries) -> None:
        self._entries = entries
        #: The first draw, and the largest and smallest value of each entry, ``[d]``.
        self.first = self.high = self.low = torch.empty(0)
        #: The tested entries of each draw, by tensor.
        self.looked: list[list[FloatArray]] = []
        #: Whether all draws are equal, and whether the first two differ by steps of a lattice.
        self.same, self.lattice = True, False

    def __len__(self) -> int:
        return len(self.looked)

    def take(self, draw: torch.Tensor) -> None:
        """Add a draw, ``[d]``."""
        if not self.looked:
            self.first, self.high, self.low = draw, draw.clone(), draw.clone()
        elif len(self) == 1:
            self.lattice = on_a_lattice(draw - self.first)
        self.same = self.same and torch.equal(draw, self.first)
        torch.maximum(self.high, draw, out=self.high)
        torch.minimum(self.low, draw, out=self.low)
        self.looked.append(self._entries.of_release(draw))

    def in_units_of(self, sigma: float) -> list[FloatArray]:
        """Return the tested entries of all draws, ``[draws, rows, columns]`` for each tensor."""
        return [np.stack(own) / sigma for own in zip(*self.looked, strict=True)]
