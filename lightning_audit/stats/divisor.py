"""By what was the noisy sum divided: by the constant that is stated, or by another number."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


def divisor_log_e(released: FloatArray, sums: FloatArray, noise: float, ratio: float) -> float:
    r"""Log e-value of one step for "the noisy sum was divided by what is stated".

    With the released gradient y times the stated divisor, the sum s that was known before the
    noise, and the true divisor over the stated one k, the likelihood of "``k y - s`` is the claimed
    noise" is divided by the largest one of "``y - s`` is noise of at least the claimed size".

    Formula:
        ``n log k + log N(k y - s; 0, noise^2) - max_{v >= noise^2} log N(y - s; 0, v)``

    Args:
        released: the gradient times the stated divisor, ``[n]``.
        sums: the clipped sums, in the same unit, ``[n]``.
        noise: claimed standard deviation of the noise, in the same unit, > 0.
        ratio: k, > 0.

    Returns:
        Log e-value: the exponential is at most 1 in expectation, whatever ``ratio`` and ``sums``,
        if the noise is independent of them and normal.

    References:
        Wasserman, Ramdas & Balakrishnan 2020 (universal inference).
    """
    n = len(released)
    plain = float(np.sum((released - sums) ** 2))
    divided = float(np.sum((ratio * released - sums) ** 2))
    variance = max(noise**2, plain / max(n, 1))
    null = -0.5 * n * math.log(variance) - 0.5 * plain / variance
    other = n * math.log(ratio) - n * math.log(noise) - 0.5 * divided / noise**2
    return other - null
