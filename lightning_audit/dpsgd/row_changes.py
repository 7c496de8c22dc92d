"""How far per-sample gradients move, when a part of their batch is replaced."""

from __future__ import annotations

import torch


def largest_change(first: torch.Tensor, other: torch.Tensor, same: int) -> float | None:
    """The largest relative change of a gradient that should have stayed.

    It is not supposed to be known which rows are whose. Either so many rows stay in their places;
    or, where the rows are sorted by something of the data, each row is one of the rows before.

    Args:
        first: per-sample gradients of a batch, ``[n, d]``.
        other: those of the batch in which some records are copies of one of the others.
        same: rows of the records that were left.

    Returns:
        The change over the gradient's norm, or over the median norm where that is larger: a small
        gradient is a difference of larger numbers, and has their rounding. None where all
        gradients are zero or some are not finite.
    """
    norms = first.norm(dim=1)
    if not bool(torch.isfinite(norms).all() & torch.isfinite(other).all()) or not norms.any():
        return None
    scale = norms.clamp(min=float(norms[norms > 0].median()))
    in_place = ((other - first).norm(dim=1) / scale).sort().values[same - 1]
    anywhere = (torch.cdist(other, first) / scale).min(dim=1).values.max()
    return float(torch.minimum(in_place, anywhere))
