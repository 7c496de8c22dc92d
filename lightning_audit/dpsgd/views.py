"""A tensor's memory as a numpy array: single entries are read and written there in less time."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray


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
