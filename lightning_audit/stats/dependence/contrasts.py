"""Combinations of draws in which what they have in common cancels."""

from __future__ import annotations

import numpy as np

from lightning_audit.stats._arguments import Floats


def contrasts(draws: Floats) -> Floats:
    """Independent combinations of draws in which what they have in common cancels.

    Args:
        draws: independent, of one size, ``[n, ...]``.

    Returns:
        Of the same size each, ``[n - 1, ...]``: the Helmert contrasts.
    """
    total = np.cumsum(draws[:-1], axis=0)
    number = np.arange(1, len(draws)).reshape(-1, *[1] * (draws.ndim - 1))
    return np.asarray((total - number * draws[1:]) / np.sqrt(number * (number + 1.0)))


def differences(draws: Floats) -> Floats:
    """Differences of each draw of one half and its like of the other, ``[n // 2, ...]``."""
    half = len(draws) // 2
    return np.asarray(draws[:half] - draws[half : 2 * half])
