"""Finds the small seed from which noise was drawn.

**Torch's generator on the CPU is a Mersenne twister, seeded by 32 bits.** It makes normal numbers
of sixteen uniform ones at a time (Box and Muller): entry j is ``r cos(2 pi u)`` and entry j + 8 is
``r sin(2 pi u)``, where u is output j + 8 of the twister in 24 bits. So two entries determine u,
for noise of any size. Output k is a function of words k, k + 1 and k + 397 of the seeded state,
which a recurrence over words gives for many seeds at once. Eight outputs, each to a thousandth,
leave no seed of 2^20 by chance.

References:
    Matsumoto and Nishimura 1998, doi:10.1145/272991.272995.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lightning_audit.stats._arguments import Floats

#: Number of seeds that are tried, at once, and for NumPy's generators.
SEEDS, _AT_ONCE, NUMPY_SEEDS = 2**20, 2**15, 2**12
#: Entries that determine a seed, and the outputs that are compared.
_BLOCK, _OUTPUTS = 16, range(8, 16)
#: Largest error of a uniform number; least correlation of noise with NumPy's of a seed.
_NEAR, _SAME = 1e-3, 0.999


def small_seed(noise: Floats) -> str:
    """Return the generator and the small seed that a tensor's noise was drawn from, as text.

    Args:
        noise: entries of a tensor in their order, of any size, ``[n]``, n at least 16.

    Returns:
        The text, as "torch.Generator().manual_seed(17)"; empty if there is no such seed below
        `SEEDS` (torch, CPU) or `NUMPY_SEEDS` (NumPy).

    Example:
        >>> import torch
        >>> generator = torch.Generator().manual_seed(123_456)
        >>> small_seed(0.3 * torch.randn(64, generator=generator).numpy())
        'torch.Generator().manual_seed(123456)'
        >>> small_seed(np.random.default_rng(17).normal(size=40))
        'numpy.random.default_rng(17)'
    """
    values = np.asarray(noise, dtype=np.float64).ravel()
    if len(values) < _BLOCK or not np.isfinite(values).all() or not values.any():
        return ""
    for make in (np.random.default_rng, np.random.RandomState):
        for seed in range(NUMPY_SEEDS):
            drawn = make(seed).standard_normal(_BLOCK)
            size = np.linalg.norm(drawn) * np.linalg.norm(values[:_BLOCK])
            if drawn @ values[:_BLOCK] > _SAME * size:
                return f"numpy.random.{make.__name__}({seed})"
    angles = np.arctan2(values[8:_BLOCK], values[:8])
    uniform = angles / (2.0 * np.pi) % 1.0
    for start in range(0, SEEDS, _AT_ONCE):
        seeds = np.arange(start, start + _AT_ONCE, dtype=np.uint32)
        gaps = np.abs(_twisted(seeds) / 2.0**24 - uniform[:, None])
        near = (np.minimum(gaps, 1.0 - gaps) < _NEAR).all(axis=0)
        if near.any():
            return f"torch.Generator().manual_seed({seeds[near][0]})"
    return ""


def _twisted(seeds: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return some outputs of a Mersenne twister, in 24 bits, of each seed, ``[outputs, seeds]``."""
    kept: dict[int, NDArray[np.uint32]] = {}
    wanted = {k + shift for k in _OUTPUTS for shift in (0, 1, 397)}
    word = seeds.copy()
    for number in range(1, max(wanted) + 1):
        word = np.uint32(1_812_433_253) * (word ^ (word >> np.uint32(30))) + np.uint32(number)
        if number in wanted:
            kept[number] = word
    return np.stack([_tempered(kept[k], kept[k + 1], kept[k + 397]) for k in _OUTPUTS])


def _tempered(
    word: NDArray[np.uint32], following: NDArray[np.uint32], far: NDArray[np.uint32]
) -> NDArray[np.uint32]:
    mixed = (word & np.uint32(0x80000000)) | (following & np.uint32(0x7FFFFFFF))
    odd = (following & np.uint32(1)) * np.uint32(0x9908B0DF)
    y = far ^ (mixed >> np.uint32(1)) ^ odd
    y ^= y >> np.uint32(11)
    y ^= (y << np.uint32(7)) & np.uint32(0x9D2C5680)
    y ^= (y << np.uint32(15)) & np.uint32(0xEFC60000)
    y ^= y >> np.uint32(18)
    low: NDArray[np.uint32] = y & np.uint32(0xFFFFFF)
    return low
