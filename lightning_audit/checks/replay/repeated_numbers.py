"""Numbers of one draw that stand at several entries, judged against the chance of a coincidence."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lightning_audit.layout import FloatArray

#: Entries of all draws of which runs are compared, and of which pairs are counted.
_COMPARED, _COUNTED = 100_000, 3000
#: Expected coincidences of runs, over all pairs, at the most.
_CHANCE = 1e-9
#: Smallest chance of a pair that is reckoned with; shortest and longest runs.
_LEAST, _SHORTEST, _LONGEST = 1e-6, 4, 32
#: Entries from which on values are counted; part of them that are few; part of a release's that
#: the noise has, too, where both lie on one lattice.
_MANY, _FEW, _SHARED = 40, 0.6, 0.1


def repeated_numbers(draws: Sequence[FloatArray], *, across: bool = False) -> str:
    """Tell whether runs of numbers, up to their sign and direction, come twice.

    A run is so long that not one coincidence is to be expected in 10^9 draws, by the rate at which
    two single numbers agree.

    Args:
        draws: of each tensor, ``[draws, entries]``.
        across: whether runs of one tensor count that come in another; else those that come twice
            in one tensor.

    Returns:
        What was found, in words; empty if nothing was, or if so many numbers agree that runs tell
        nothing.
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
    return f"runs of {length} numbers stand {where}, {twice} of {runs}"


def copied_entries(draws: FloatArray) -> str:
    """Tell whether entries have the numbers of others in all draws, up to their sign.

    Args:
        draws: of all tensors, ``[draws, entries]``.

    Returns:
        What was found, in words; empty if nothing was, or if numbers agree so often that draws
        tell nothing.
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
    """How often two numbers of a sample are equal up to their sign; zeros are left out."""
    some = np.abs(numbers[numbers != 0.0])
    some = some[:: max(1, len(some) // _COUNTED)]
    if len(some) < 2:
        return 1.0
    _, counts = np.unique(some, return_counts=True)
    return float((counts * (counts - 1.0)).sum() / (len(some) * (len(some) - 1.0)))


def _runs(row: NDArray[np.float32], length: int) -> NDArray[np.uint64]:
    """A number for each run, the same for its negative and for its reverse."""
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
    """Tell whether noise has few values beside a release that has others.

    The lattice of the noise is coarser than that of the sum then, which shows in the last digits.

    Args:
        noise: of several draws, ``[n]``.
        released: a draw and a sum, ``[m]``.

    Returns:
        What was found, in words; empty if nothing was.
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
