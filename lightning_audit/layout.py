"""The trainable tensors of a step, and directions over them for canaries."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

IndexArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class TensorSlot:
    """A trainable tensor.

    Args:
        name: its name in the module.
        shape: its shape.
        clip_share: under per-layer clipping, the tensor's clipping norm over that of the whole
            gradient; None if the gradient is clipped as a whole.
    """

    name: str
    shape: tuple[int, ...]
    clip_share: float | None = None

    @property
    def numel(self) -> int:
        """Number of coordinates."""
        return math.prod(self.shape)


Layout = Sequence[TensorSlot]


@dataclass(frozen=True)
class Part:
    """The entries of a direction in one tensor.

    Args:
        tensor: position of the tensor in the layout.
        index: flat coordinates, ``[n]``, distinct.
        value: the direction's entries at these coordinates, ``[n]``.
    """

    tensor: int
    index: IndexArray
    value: FloatArray


@dataclass(frozen=True)
class Direction:
    """A vector over a layout that is zero outside of its parts."""

    parts: tuple[Part, ...]

    def norm(self) -> float:
        """Return the Euclidean norm."""
        return math.sqrt(sum(float(part.value @ part.value) for part in self.parts))

    def scaled(self, factor: float) -> Direction:
        """Return the vector times ``factor``."""
        return Direction(tuple(Part(p.tensor, p.index, factor * p.value) for p in self.parts))

    def dot(self, other: Direction) -> float:
        """Return the inner product with another direction over the same layout."""
        total = 0.0
        for part in self.parts:
            for theirs in other.parts:
                if part.tensor == theirs.tensor:
                    _, mine, other_at = np.intersect1d(
                        part.index, theirs.index, assume_unique=True, return_indices=True
                    )
                    total += float(part.value[mine] @ theirs.value[other_at])
        return total


def same_objects(one: Sequence[object], other: Sequence[object]) -> bool:
    """Return whether two sequences hold the same objects in the same order, by identity."""
    return len(one) == len(other) and all(map(operator.is_, one, other))


#: The parts of several directions in one tensor: number of the direction, and its part.
RowParts = Sequence[tuple[int, Part]]


def by_tensor(directions: Sequence[Direction]) -> dict[int, RowParts]:
    """Group the parts of several directions over one layout, ``[n]``, by tensor."""
    found: dict[int, list[tuple[int, Part]]] = {}
    for row, direction in enumerate(directions):
        for part in direction.parts:
            found.setdefault(part.tensor, []).append((row, part))
    return dict(found)
