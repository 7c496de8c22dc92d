"""A tensor's memory as a numpy array: single entries are read and written there in less time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lightning_audit.layout import Direction, Entries, FloatArray, by_tensor


def numpy_view(tensor: torch.Tensor) -> NDArray[Any] | None:
    """The entries of a tensor as a flat numpy array that shares its memory, or None.

    Indexing a few dozen entries costs torch several times what it costs numpy, and a step does so
    for every tensor. Only contiguous float32 and float64 tensors on a CPU have such a view.
    """
    plain = tensor.is_cpu and tensor.dtype in (torch.float32, torch.float64)
    if not plain or not tensor.is_contiguous():
        return None
    entries: NDArray[Any] = tensor.detach().numpy().reshape(-1)
    return entries


@torch.no_grad()
def add_along(
    tensors: Sequence[torch.Tensor | None], directions: Sequence[Direction], weights: FloatArray
) -> None:
    """Add each direction, times its weight, to the tensors of a layout.

    Args:
        tensors: one for each tensor of the layout; None is left out.
        directions: directions over the layout, ``[n]``.
        weights: what they are multiplied by, ``[n]``.
    """
    for j, (row, index, value) in by_tensor(directions).items():
        tensor, added = tensors[j], weights[row] * value
        if tensor is None:
            continue
        entries = numpy_view(tensor)
        if entries is not None:
            np.add.at(entries, index, added.astype(entries.dtype))
            continue
        at = torch.unravel_index(torch.from_numpy(index).to(tensor.device), tensor.shape)
        tensor.index_put_(
            at, torch.from_numpy(added).to(tensor.device, tensor.dtype), accumulate=True
        )


def write_rows(
    buffers: Sequence[torch.Tensor], directions: Sequence[Direction], norm: float
) -> None:
    """Write ``norm`` times each direction into the last rows of the buffers, which hold zeros.

    Args:
        buffers: a tensor ``[rows, *shape]`` for each tensor of the layout.
        directions: unit directions over the layout, ``[n]``.
        norm: norm of the rows, in the unit of a per-sample gradient.
    """
    for j, entries in by_tensor(directions).items():
        write_entries(buffers[j][len(buffers[j]) - len(directions) :], entries, norm)


def write_entries(rows: torch.Tensor, entries: Entries, norm: float) -> None:
    """Write ``norm`` times the entries of directions in one tensor into rows of zeros.

    Args:
        rows: a row for each direction, contiguous, ``[n, *shape]``.
        entries: of the directions in this tensor.
        norm: norm of the rows, in the unit of a per-sample gradient.
    """
    row, index, value = entries
    shape = rows.shape[1:]
    view = numpy_view(rows)
    if view is not None:
        view[row * math.prod(shape) + index] = norm * value
        return
    at = (row, *np.unravel_index(index, shape)) if shape else (row,)
    where = tuple(torch.from_numpy(i).to(rows.device) for i in at)
    rows[where] = torch.from_numpy(norm * value).to(rows.device, rows.dtype)
