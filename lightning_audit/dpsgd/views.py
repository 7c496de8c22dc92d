"""A tensor's memory as a numpy array: single entries are read and written there in less time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lightning_audit.layout import Direction, FloatArray, by_tensor


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
