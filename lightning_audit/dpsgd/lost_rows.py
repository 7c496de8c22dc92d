"""Which samples' gradients are not finite, where a step's gradient is not."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch


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


def all_finite(tensors: Sequence[torch.Tensor | None]) -> bool:
    """Whether the tensors that are there hold neither NaN nor infinity."""
    return all(bool(torch.isfinite(t.detach()).all()) for t in tensors if t is not None)
