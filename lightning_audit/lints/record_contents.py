"""Finds duplicate records of a data set, by their indices or by their contents."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Subset, TensorDataset

#: Largest size of a data set whose contents are compared, in bytes.
_BYTES = 200_000_000


def repeated_indices(data: Any) -> int | None:
    """Return the number of duplicate records of a data set by their indices.

    Args:
        data: a data set of any kind; torch's `Subset` and `ConcatDataset` are resolved.

    Returns:
        The number of entries in excess of the distinct records; None if it cannot be determined.
    """
    try:
        places = _places(data)
    except (TypeError, AttributeError, NotImplementedError):
        return None
    total = 0
    by_base: dict[int, list[np.ndarray[Any, Any]]] = {}
    for base, indices in places:
        by_base.setdefault(id(base), []).append(indices)
    for parts in by_base.values():
        indices = np.concatenate(parts)
        total += len(indices) - len(np.unique(indices))
    return total


def _places(data: Any) -> list[tuple[Any, np.ndarray[Any, Any]]]:
    """Return the underlying data sets, each with the indices that are used."""
    if type(data) is Subset:
        chosen = np.asarray(list(data.indices), dtype=np.int64)
        found, start = [], 0
        for base, indices in _places(data.dataset):
            inside = chosen[(chosen >= start) & (chosen < start + len(indices))] - start
            found.append((base, indices[inside]))
            start += len(indices)
        return found
    if type(data) is ConcatDataset:
        return [place for part in data.datasets for place in _places(part)]
    return [(data, np.arange(len(data)))]


def repeated_contents(data: Any) -> int | None:
    """Return the number of duplicate records by their contents; None if it is unknown.

    Args:
        data: a data set; only a `TensorDataset` is read.
    """
    if type(data) is not TensorDataset:
        return None
    tensors = [t.detach().cpu() for t in data.tensors]
    if sum(t.numel() * t.element_size() for t in tensors) > _BYTES or not len(data):
        return None
    rows = [_bytes(t) for t in tensors]
    sums = np.add.reduce([_sums(of_one) for of_one in rows])
    _, place, counts = np.unique(sums, return_inverse=True, return_counts=True)
    alike = counts[place] > 1  # all others are distinct
    if not alike.any():
        return 0
    joined = np.ascontiguousarray(np.concatenate([of_one[alike] for of_one in rows], axis=1))
    kinds = joined.view(np.dtype((np.void, joined.shape[1]))).ravel()
    return len(kinds) - len(np.unique(kinds))


def _sums(rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a hash of each row of bytes, ``[n]``, in a twentieth of the time to sort them."""
    whole = rows.shape[1] // 8 * 8
    words = rows[:, :whole].view(np.uint64)
    rest = rows[:, whole:].astype(np.uint64)
    factors = np.random.default_rng(0).integers(
        2**64, size=words.shape[1] + rest.shape[1], dtype=np.uint64
    )
    return np.asarray(words @ factors[: words.shape[1]] + rest @ factors[words.shape[1] :])


def _bytes(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    flat = tensor.reshape(len(tensor), -1).contiguous()
    return flat.view(torch.uint8).numpy() if flat.shape[1] else np.zeros((len(flat), 0), np.uint8)
