"""Finds samples with a non-finite gradient, in steps whose gradient is not finite."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from lightning_audit.dpsgd.row_places import rows_of_records
from lightning_audit.layout import IndexArray

_NOWHERE: IndexArray = np.zeros(0, dtype=np.int64)


def not_finite(gradients: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """Return which rows of per-sample gradients contain NaN or infinity.

    Args:
        gradients: one tensor ``[n, *shape]`` per parameter.

    Returns:
        One boolean per sample, ``[n]``; None for no tensors or different numbers of rows.
    """
    if len({len(g) for g in gradients}) != 1:
        return None
    flat = [g.detach().reshape(len(g), math.prod(g.shape[1:])) for g in gradients]
    rows = [~torch.isfinite(g).all(dim=1) for g in flat]
    return torch.stack([row.to(rows[0].device) for row in rows]).any(dim=0)


def waiting_not_finite(
    params: Sequence[torch.nn.Parameter],
    canaries: Mapping[int, int],
    places: IndexArray | None = None,
) -> torch.Tensor | None:
    """Return which rows of ``grad_sample`` contain NaN or infinity, over all pending batches.

    Args:
        params: the parameters, each with one tensor, or a list of one tensor per batch.
        canaries: number of canary rows, by the tensor's id.
        places: their positions, see `row_places`; None if they follow the batch's rows.

    Returns:
        One boolean per sample, ``[n]``; None if gradients are missing.
    """
    held = [getattr(p, "grad_sample", None) for p in params]
    known = []
    for batch in zip(*(h if isinstance(h, list) else [h] for h in held), strict=False):
        if not all(isinstance(t, torch.Tensor) for t in batch):
            return None
        counts = {canaries.get(id(t), 0) for t in batch}
        count = counts.pop() if len(counts) == 1 else None
        found = None if count is None else not_finite(batch)
        if found is not None and count:
            found = rows_of_records(found, _NOWHERE if places is None else places, count)
        known.append(found)
    rows = [found for found in known if found is not None]
    return torch.cat(rows) if rows and len(rows) == len(known) else None


def all_finite(tensors: Sequence[torch.Tensor | None]) -> bool:
    """Return whether the tensors contain neither NaN nor infinity; None entries are skipped."""
    return all(bool(torch.isfinite(t.detach()).all()) for t in tensors if t is not None)
