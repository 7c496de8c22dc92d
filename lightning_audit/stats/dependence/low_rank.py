r"""E-value for full-rank noise, from the singular values of a matrix of noise."""

from __future__ import annotations

import math

import numpy as np
import scipy
from numpy.typing import ArrayLike


def low_rank_log_e(matrix: ArrayLike) -> float:
    r"""Return the log e-value for "the entries are independent normal noise of one size".

    The largest singular value of p x q standard normal entries is above ``sqrt(p) + sqrt(q) + t``
    with a probability of at most ``exp(-t^2 / 2)``; their sum of squares is below
    ``p q - 2 sqrt(p q t^2 / 2)`` with a probability of at most the same. So the ratio of the two,
    from which the size of the noise cancels, has a p-value, and ``p^(-1/2) / 2`` is an e-value.

    Args:
        matrix: Finite noise in any unit, ``[p, q]``.

    Returns:
        Log e-value; 0 if all entries are zero.

    Example:
        >>> low_rank_log_e(np.outer(np.arange(1, 21), np.arange(1, 31))) > 9.2
        True
        >>> low_rank_log_e(np.zeros((3, 3)))
        0.0

    References:
        Davidson and Szarek 2001, doi:10.1016/S1874-5849(01)80010-3, theorem II.13; Laurent and
        Massart 2000, doi:10.1214/aos/1015957395, lemma 1; Vovk and Wang 2021, arXiv:1912.06116
        (calibrators).
    """
    entries = np.asarray(matrix, dtype=np.float64)
    if not entries.any():
        return 0.0
    entries = entries / np.abs(entries).max()
    (rows, columns), count = entries.shape, entries.size
    edge = math.sqrt(rows) + math.sqrt(columns)
    seen = np.linalg.norm(entries, 2) / np.linalg.norm(entries)

    def beyond(t: float) -> float:
        """Return the excess of the ratio over what t allows."""
        squares = count - 2.0 * math.sqrt(count * t * t / 2.0)
        return float(seen * math.sqrt(squares) - (edge + t))

    most = 0.999 * math.sqrt(count / 2.0)  # above this the sum of squares has no lower limit
    if beyond(0.0) <= 0.0:
        t = 0.0
    elif beyond(most) >= 0.0:
        t = most
    else:
        t = float(scipy.optimize.brentq(beyond, 0.0, most))
    log_p = min(math.log(2.0) - 0.5 * t * t, 0.0)
    return -0.5 * log_p - math.log(2.0)
