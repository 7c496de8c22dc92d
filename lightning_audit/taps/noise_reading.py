"""Reads the noisy gradient together with its clipped sum, if the optimizer keeps the sum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from lightning_audit.layout import FloatArray, IndexArray
from lightning_audit.taps.tensor_views import entries_at, numpy_views

#: Largest number of noise entries whose values are read.
BLOCK = 16384
#: Largest number of entries copied at once; largest size of a small tensor.
_AT_ONCE, _SMALL = 2**22, 2**14


@dataclass(frozen=True)
class NoiseReading:
    """A step's gradient and its clipped sum at the same coordinates, canaries included in both.

    Args:
        released: entries of the noisy gradient, ``[n]``.
        sums: entries of the clipped sum before the noise, ``[n]``; None if the sum is not kept.
        sum_norm: norm of the whole clipped sum; None if the sum is not kept or not requested.
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
        released: the noisy gradient, one tensor per parameter.
        coordinates: tensor -> flat coordinates to read.
        sums: whether ``summed_grad`` contains the sums to which the noise was added.
        norm: whether to compute the norm of the whole sum.

    Returns:
        The reading; None if a gradient is missing or has lower than single precision.
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


@dataclass(frozen=True)
class TensorReading:
    """A step's gradient and clipped sum over whole tensors, canaries included in both.

    Args:
        entries: number of entries of each tensor, ``[L]``.
        released: sum of squares of the gradient times its divisor, ``[L]``.
        noise: sum of squares of the gradient times its divisor minus the clipped sum, ``[L]``.
        block: the noise (the same difference) at the first and the last entries of each tensor,
            ``[m]``; None if not requested.
    """

    entries: FloatArray
    released: FloatArray
    noise: FloatArray
    block: FloatArray | None


@torch.no_grad()
def read_tensors(
    params: Sequence[torch.nn.Parameter],
    released: Sequence[torch.Tensor | None],
    divisor: float,
    *,
    block: bool,
) -> TensorReading | None:
    """Read whole tensors of a step between its noise and its update.

    Args:
        params: the parameters, in the order of the layout.
        released: the noisy gradient, one tensor per parameter.
        divisor: divisor of the noisy sum.
        block: whether to return the first and the last entries of each tensor, about `BLOCK` in
            all.

    Returns:
        The reading; None if a gradient or a sum is missing, or has neither single nor double
        precision.
    """
    pairs = [(g, clipped_sum(p, g)) for p, g in zip(params, released, strict=True)]
    squares, ends = [], []
    most = max(2, BLOCK // max(len(pairs), 1))
    for grad, held in pairs:
        if grad is None or held is None or not (_is_fine(grad) and _is_fine(held)):
            return None
        flat, sums = grad.detach().reshape(-1), held.detach().reshape(-1)
        if flat.shape != sums.shape or flat.device != sums.device:
            return None
        squares.append(_squares(flat, sums, divisor))
        if block:
            half = min(most, len(flat)) // 2
            where = [slice(0, half), slice(len(flat) - half, len(flat))]
            ends += [flat[at] * divisor - sums[at] for at in where]
    if not squares:
        return None
    device = squares[0].device
    both = torch.stack([own.to(device) for own in squares]).cpu().double().numpy()
    edge = torch.cat([end.to(device) for end in ends]).cpu().double().numpy() if block else None
    sizes = np.array([float(p.numel()) for p in params])
    return TensorReading(sizes, both[:, 0], both[:, 1], edge)


def _squares(flat: torch.Tensor, sums: torch.Tensor, divisor: float) -> torch.Tensor:
    """Return the sums of squares of gradient times divisor, and of that minus the clipped sum."""
    views = numpy_views([flat, sums]) if len(flat) <= _SMALL else None
    if views is not None:  # numpy is faster for small tensors
        scaled = views[0].astype(np.float64) * divisor
        rest = scaled - views[1]
        return torch.from_numpy(np.array([scaled @ scaled, rest @ rest]))
    found = torch.zeros(2, dtype=torch.float64, device="cpu" if flat.is_mps else flat.device)
    for start in range(0, len(flat), _AT_ONCE):
        grad = flat[start : start + _AT_ONCE] * divisor
        rest = grad - sums[start : start + _AT_ONCE]
        found += torch.stack([_square(grad), _square(rest)]).to(found.device)
    return found


def _square(entries: torch.Tensor) -> torch.Tensor:
    """Return the sum of squares, in double precision; computed on the CPU for MPS."""
    if entries.device.type == "mps":
        entries = entries.cpu()
    norm: torch.Tensor = torch.linalg.vector_norm(entries, dtype=torch.float64)
    return norm.square()


def _is_fine(tensor: torch.Tensor) -> bool:
    return tensor.dtype in (torch.float32, torch.float64)


def clipped_sum(param: torch.nn.Parameter, grad: torch.Tensor | None) -> torch.Tensor | None:
    """Return the clipped sum that Opacus keeps, unless it became the gradient in place.

    Args:
        param: a parameter.
        grad: its noisy gradient.
    """
    held: torch.Tensor | None = getattr(param, "summed_grad", None)
    if held is None or grad is None or held.data_ptr() == grad.data_ptr():
        return None
    return held


def clipped_sums(params: Sequence[torch.nn.Parameter]) -> list[torch.Tensor | None]:
    """Return the `clipped_sum` of each parameter for its ``p.grad``."""
    return [clipped_sum(p, p.grad) for p in params]


def _entries(
    tensors: Sequence[torch.Tensor | None], coordinates: dict[int, IndexArray]
) -> FloatArray | None:
    held = [t for t in tensors if t is not None and t.dtype in (torch.float32, torch.float64)]
    return entries_at(held, coordinates) if len(held) == len(tensors) else None
