"""How far a record's gradient moves with the other records of its batch."""

from __future__ import annotations

import math

import torch


def largest_change(copies: torch.Tensor, mixed: torch.Tensor, same: int) -> float | None:
    """The largest relative change of one record's gradient between two batches.

    Where the record's rows lie in the mixed batch need not be known: training code may sort its
    records. Wherever one lies, there is one in the batch of copies, with the same random numbers.

    Args:
        copies: per-sample gradients of a batch of copies of the record, ``[n, d]``.
        mixed: those of a batch in which only some are copies, ``[n, d]``.
        same: how many rows of it are the record's.

    Returns:
        The change over the gradient's norm, or over the median norm where that is larger: a small
        gradient is a difference of larger numbers, and has their rounding. Infinity where the
        batch of copies alone has gradients that are not finite; None where the other has, or all
        gradients are zero.
    """
    norms = torch.stack([copies.norm(dim=1), mixed.norm(dim=1)])
    if not bool(torch.isfinite(norms[1]).all()) or not norms.any():
        return None
    if not bool(torch.isfinite(norms[0]).all()):
        return math.inf
    scale = norms.amax(dim=0).clamp(min=float(norms[norms > 0].median()))
    changes = (copies - mixed).norm(dim=1) / scale
    return float(changes.sort().values[same - 1])
