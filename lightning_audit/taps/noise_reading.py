"""Reads the gradient beside the clipped sum that it was made of, where an optimizer shows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from lightning_audit.layout import FloatArray, IndexArray
from lightning_audit.taps.tensor_views import entries_at


@dataclass(frozen=True)
class NoiseReading:
    """A step's gradient and its clipped sum at the same coordinates, canaries in both.

    Args:
        released: entries of the final gradient, ``[n]``.
        sums: entries of the clipped sum before the noise, ``[n]``; None where no sum is shown.
        sum_norm: norm of the whole clipped sum; None where no sum is shown or it was not asked for.
    """

    released: FloatArray
    sums: FloatArray | None
    sum_norm: float | None = None


@torch.no_grad()
def read_noise(
    params: Sequence[torch.nn.Parameter],
    released: Sequence[torch.Tensor | None],
    coordinates: dict[int, IndexArray],
    *,
    sums: bool,
    norm: bool,
) -> NoiseReading | None:
    """Read a step between its noise and its update.

    Args:
        params: the parameters, in the order of the layout.
        released: the noisy gradient, one tensor for each parameter.
        coordinates: tensor -> flat coordinates to read.
        sums: whether ``summed_grad`` holds the sums that the gradient was made of.
        norm: whether the norm of the whole sum is wanted.

    Returns:
        The reading; None where a gradient is missing, or of lower than single precision.
    """
    grads = _entries([released[j] for j in coordinates], coordinates)
    if grads is None:
        return None
    held = [clipped_sum(p, g) for p, g in zip(params, released, strict=True)] if sums else []
    parts = _entries([held[j] for j in coordinates], coordinates) if sums else None
    whole = None
    if norm and parts is not None:
        norms = [part.norm() for part in held if part is not None]
        whole = float(torch.stack([n.to(norms[0].device) for n in norms]).cpu().double().norm())
    return NoiseReading(grads, parts, whole)


def clipped_sum(param: torch.nn.Parameter, grad: torch.Tensor | None) -> torch.Tensor | None:
    """The clipped sum that Opacus keeps, unless it was turned into the gradient in place.

    Args:
        param: a parameter.
        grad: its gradient, where the noise is in.
    """
    held: torch.Tensor | None = getattr(param, "summed_grad", None)
    if held is None or grad is None or held.data_ptr() == grad.data_ptr():
        return None
    return held


def clipped_sums(params: Sequence[torch.nn.Parameter]) -> list[torch.Tensor | None]:
    """The `clipped_sum` of each parameter beside its gradient."""
    return [clipped_sum(p, p.grad) for p in params]


def _entries(
    tensors: Sequence[torch.Tensor | None], coordinates: dict[int, IndexArray]
) -> FloatArray | None:
    held = [t for t in tensors if t is not None and t.dtype in (torch.float32, torch.float64)]
    return entries_at(held, coordinates) if len(held) == len(tensors) else None
