"""Which samples' gradients are not finite, where a step's gradient is not."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from lightning_audit.dpsgd.row_places import rows_of_records
from lightning_audit.layout import IndexArray

_NOWHERE: IndexArray = np.zeros(0, dtype=np.int64)


def not_finite(gradients: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """Which rows of per-sample gradients hold NaN or infinity.

    Args:
        gradients: one tensor ``[n, *shape]`` a parameter.

    Returns:
        One boolean a sample, ``[n]``; None where there are none or not the same samples in all.
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
    """Which rows of ``grad_sample`` hold NaN or infinity, over all batches that wait.

    Args:
        params: the parameters, each with one tensor, or a list of one a batch.
        canaries: how many rows are none of the data's, by the tensor's identity.
        places: where those stand, see `row_places`; None behind the batch.

    Returns:
        One boolean a sample, ``[n]``; None where gradients are absent.
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
    """Whether the tensors that are there hold neither NaN nor infinity."""
    return all(bool(torch.isfinite(t.detach()).all()) for t in tensors if t is not None)
