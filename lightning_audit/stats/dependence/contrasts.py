"""Combinations of draws that cancel what the draws have in common."""

from __future__ import annotations

import numpy as np

from lightning_audit.stats._arguments import Floats


def contrasts(draws: Floats) -> Floats:
    """Return independent combinations of draws that cancel what the draws have in common.

    Args:
        draws: Independent draws of one size, ``[n, ...]``.

    Returns:
        The Helmert contrasts, of the same size each, ``[n - 1, ...]``.
    """
    total = np.cumsum(draws[:-1], axis=0)
    number = np.arange(1, len(draws)).reshape(-1, *[1] * (draws.ndim - 1))
    return np.asarray((total - number * draws[1:]) / np.sqrt(number * (number + 1.0)))


def differences(draws: Floats) -> Floats:
    """Return the differences of one half of the draws and the other half, ``[n // 2, ...]``."""
    half = len(draws) // 2
    return np.asarray(draws[:half] - draws[half : 2 * half])
