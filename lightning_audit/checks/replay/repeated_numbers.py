"""Tests for numbers that a draw contains several times, against the chance of a coincidence."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lightning_audit.layout import FloatArray

#: Largest number of entries whose runs are compared, and whose pairs are counted.
_COMPARED, _COUNTED = 100_000, 3000
#: Largest expected number of coincidences of runs, over all pairs.
_CHANCE = 1e-9
#: Smallest assumed chance of a pair; shortest and longest runs.
_LEAST, _SHORTEST, _LONGEST = 1e-6, 4, 32
#: Least number of entries whose values are counted; fraction of distinct values below which they
#: are few; fraction of a release's values among those of the noise if both lie on one lattice.
_MANY, _FEW, _SHARED = 40, 0.6, 0.1


def repeated_numbers(draws: Sequence[FloatArray], *, across: bool = False) -> str:
    """Find runs of numbers that occur twice, up to sign and direction.

    A run is long enough that less than one coincidence is expected in 10^9 draws, given the rate at
    which two single numbers agree.

    Args:
        draws: of each tensor, ``[draws, entries]``.
        across: whether to count runs that occur in two tensors; else runs that occur twice in one
            tensor.

    Returns:
        The finding as text; empty if there is none, or if too many numbers agree for such a test.
    """
    total = sum(own.size for own in draws)
    share = min(1.0, _COMPARED / max(total, 1))
    tensors = [own[:, : math.ceil(share * own.shape[1])].astype(np.float32) for own in draws]
    total = sum(own.size for own in tensors)
    numbers = np.concatenate([own.ravel() for own in tensors]) if total else np.zeros(0)
    chance = max(2.0 * pair_rate(numbers), _LEAST)
    if chance >= 0.5:
        return ""
    pairs = 2.0 * total**2
    length = max(_SHORTEST, math.ceil(math.log(pairs / _CHANCE) / -math.log(chance)))
    if length > _LONGEST:
        return ""
    keys = [
        np.concatenate([_runs(row, length) for row in own])
        for own in tensors
        if own.shape[1] >= length
    ]
    if across:
        keys = [np.concatenate([np.unique(own) for own in keys])] if keys else []
    runs = sum(map(len, keys))
    twice = runs - sum(len(np.unique(own)) for own in keys)
    if not twice:
        return ""
    where = "in several tensors" if across else "at several places of a tensor"
    return f"runs of {length} numbers occur {where}, {twice} of {runs}"


def copied_entries(draws: FloatArray) -> str:
    """Find entries that equal another entry in all draws, up to sign.

    Args:
        draws: of all tensors, ``[draws, entries]``.

    Returns:
        The finding as text; empty if there is none, or if numbers agree too often for such a test.
    """
    columns = draws.T.astype(np.float32)
    columns = columns[(columns != 0.0).all(axis=1)]
    chance = max(2.0 * pair_rate(draws[0]), _LEAST)
    if len(columns) < 2 or len(columns) ** 2 * chance ** len(draws) > _CHANCE:
        return ""
    twice = len(columns) - len(np.unique(_hashed(columns)))
    if not twice:
        return ""
    return f"{twice} of {draws.shape[1]} entries have the numbers of another entry in all draws"


def pair_rate(numbers: NDArray[np.floating]) -> float:
    """Return the rate at which two numbers of a sample are equal up to sign, without zeros."""
    some = np.abs(numbers[numbers != 0.0])
    some = some[:: max(1, len(some) // _COUNTED)]
    if len(some) < 2:
        return 1.0
    _, counts = np.unique(some, return_counts=True)
    return float((counts * (counts - 1.0)).sum() / (len(some) * (len(some) - 1.0)))


def _runs(row: NDArray[np.float32], length: int) -> NDArray[np.uint64]:
    """Hash each run; its negative and its reverse have the same hash."""
    windows = np.lib.stride_tricks.sliding_window_view(row, length)
    windows = windows[(windows != 0.0).all(axis=1)]
    forth, back = (_hashed(w) for w in (windows, windows[:, ::-1]))
    return np.minimum(forth, back)


def _hashed(windows: NDArray[np.float32]) -> NDArray[np.uint64]:
    signed = np.ascontiguousarray(windows * np.sign(windows[:, :1])) + np.float32(0.0)
    rng = np.random.default_rng(0)
    factors = rng.integers(1, 2**63, windows.shape[1], dtype=np.uint64) * np.uint64(2) + np.uint64(
        1
    )
    bits = signed.view(np.uint32).astype(np.uint64)
    bits ^= bits >> np.uint64(13)
    return np.asarray((bits * factors).sum(axis=1, dtype=np.uint64))


def few_values(noise: FloatArray, released: FloatArray) -> str:
    """Find noise with few distinct values, if a release has other values.

    The lattice of the noise is then coarser than that of the sum, which its last digits show.

    Args:
        noise: of several draws, ``[n]``.
        released: a draw plus a sum, ``[m]``.

    Returns:
        The finding as text; empty if there is none.
    """
    there = np.abs(noise[noise != 0.0])
    there = there[:: max(1, len(there) // _COMPARED)]
    if len(there) < _MANY:
        return ""
    values = np.unique(there)
    sums = np.abs(released[released != 0.0])
    if len(values) >= _FEW * len(there) or np.isin(sums, values).mean() > _SHARED:
        return ""
    return f"{len(there)} numbers of the noise have {len(values)} values, and a release has others"
