"""Views of a tensor's memory as a numpy array, in which single entries are accessed faster."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lightning_audit.layout import Direction, FloatArray, IndexArray, RowParts, by_tensor


def numpy_view(tensor: torch.Tensor) -> NDArray[Any] | None:
    """Return the entries of a tensor as a flat numpy array that shares its memory, or None.

    Indexing a few dozen entries takes torch several times as long as numpy, and a step does so for
    every tensor. Only contiguous float32 and float64 tensors on a CPU have such a view.
    """
    plain = tensor.is_cpu and tensor.dtype in (torch.float32, torch.float64)
    if not plain or not tensor.is_contiguous():
        return None
    entries: NDArray[Any] = tensor.detach().numpy().reshape(-1)
    return entries


def numpy_views(tensors: Sequence[torch.Tensor | None]) -> list[NDArray[Any]] | None:
    """Return the `numpy_view` of each tensor; None unless all of them have one."""
    views: list[NDArray[Any]] = []
    for tensor in tensors:
        view = None if tensor is None else numpy_view(tensor)
        if view is None:
            return None
        views.append(view)
    return views


def entries_at(tensors: Sequence[torch.Tensor], coordinates: dict[int, IndexArray]) -> FloatArray:
    """Return the entries of tensors at given coordinates, in double precision, ``[n]``.

    Args:
        tensors: one tensor per key of ``coordinates``, in its order, on any device.
        coordinates: tensor -> flat coordinates to read.
    """
    pieces: list[FloatArray] = []
    away: list[tuple[int, torch.Tensor]] = []
    for tensor, index in zip(tensors, coordinates.values(), strict=True):
        view = numpy_view(tensor)
        if view is None:
            where = torch.from_numpy(index).to(tensor.device)
            away.append((len(pieces), tensor.detach().reshape(-1)[where]))
            pieces.append(np.zeros(0))
        else:
            pieces.append(view[index].astype(np.float64))
    if away:  # one copy for all: each copy from a device synchronizes
        device = away[0][1].device
        read = torch.cat([t.to(device) for _, t in away]).cpu().double().numpy()
        ends = np.cumsum([len(t) for _, t in away])[:-1]
        for (place, _), values in zip(away, np.split(read, ends), strict=True):
            pieces[place] = values
    return np.concatenate(pieces)


@torch.no_grad()
def add_along(
    tensors: Sequence[torch.Tensor | None], directions: Sequence[Direction], weights: FloatArray
) -> None:
    """Add each direction, times its weight, to the tensors of a layout.

    Args:
        tensors: one per tensor of the layout; None is skipped.
        directions: directions over the layout, ``[n]``.
        weights: their factors, ``[n]``.
    """
    writes: list[tuple[Any, ...]] = []
    puts: list[tuple[Any, ...]] = []
    for j, parts in by_tensor(directions).items():
        tensor = tensors[j]
        if tensor is None:
            continue
        entries = numpy_view(tensor)
        if entries is not None:
            writes += [
                (entries, part.index, (weights[row] * part.value).astype(entries.dtype))
                for row, part in parts
            ]
            continue
        rows, index, value = _joined(parts)
        if not tensor.dim():
            tensor = tensor.reshape(1)  # same memory, but can be indexed
        at = torch.unravel_index(torch.from_numpy(index).to(tensor.device), tensor.shape)
        added = torch.from_numpy(weights[rows] * value).to(tensor.device, tensor.dtype)
        puts.append((tensor, at, added))
    for entries, index, amount in writes:  # all or nothing: a failure above wrote nothing
        entries[index] += amount
    for tensor, at, added in puts:
        tensor.index_put_(at, added, accumulate=True)


def write_rows(
    buffers: Sequence[torch.Tensor], directions: Sequence[Direction], norm: float
) -> None:
    """Write ``norm`` times each direction into the last rows of the buffers, which are zeros.

    Args:
        buffers: one tensor ``[rows, *shape]`` per tensor of the layout.
        directions: vectors over the layout, ``[n]``.
        norm: their factor, in the unit of a per-sample gradient.
    """
    for j, parts in by_tensor(directions).items():
        write_parts(buffers[j][len(buffers[j]) - len(directions) :], parts, norm)


def write_parts(rows: torch.Tensor, parts: RowParts, norm: float) -> None:
    """Write ``norm`` times the directions' parts in one tensor into rows of zeros.

    Args:
        rows: one row per direction, contiguous, ``[n, *shape]``.
        parts: parts of the directions in this tensor.
        norm: factor of the directions, in the unit of a per-sample gradient.
    """
    shape = rows.shape[1:]
    view = numpy_view(rows)
    if view is not None:
        size = math.prod(shape)
        for row, part in parts:
            view[row * size + part.index] = norm * part.value
        return
    number, index, value = _joined(parts)
    at = (number, *np.unravel_index(index, shape)) if shape else (number,)
    where = tuple(torch.from_numpy(i).to(rows.device) for i in at)
    rows[where] = torch.from_numpy(norm * value).to(rows.device, rows.dtype)


def _joined(parts: RowParts) -> tuple[IndexArray, IndexArray, FloatArray]:
    """Return indices of directions, coordinates and entries, ``[m]``, to copy all at once."""
    return (
        np.repeat([row for row, _ in parts], [len(part.index) for _, part in parts]),
        np.concatenate([part.index for _, part in parts]),
        np.concatenate([part.value for _, part in parts]),
    )


#: Largest residual of a gradient that was multiplied by one number, relative to its norm.
_PROPORTIONAL = 1e-4


def factor_of(left: torch.Tensor, arrived: torch.Tensor) -> float | None:
    """Return the number by which ``left`` was multiplied to give ``arrived``; None if none.

    Args:
        left: entries of a gradient, ``[n]``.
        arrived: the same entries later, ``[n]``.
    """
    square = float(left @ left)
    if not (math.isfinite(square) and square > 0.0 and bool(torch.isfinite(arrived).all())):
        return None
    factor = float(left @ arrived) / square
    rest = float((arrived - factor * left).norm())
    return factor if factor > 0.0 and rest <= _PROPORTIONAL * float(arrived.norm()) else None
