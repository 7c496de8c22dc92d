r"""Noise that is correlated over steps by design: recovery of its draws from the releases.

With coefficients ``c`` the noise of step t is ``sum_k c_k z_{t-k}``, where the draws z are
independent and those before the first step are zero. The draws are recovered one after the other,

.. math:: z_t = (x_t - \sum_{k \ge 1} c_k z_{t-k}) / c_0,

and an error in a past draw decays, or grows, as the `inverse_response`.

References:
    Kairouz et al. 2021, arXiv:2103.00039 (DP-FTRL); Choquette-Choo et al. 2023, arXiv:2306.08153
    (banded matrix factorization).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lightning_audit.stats._arguments import Floats

#: Number of steps that are examined in addition to the number of coefficients.
_STEPS = 2048
#: Largest growth of an error from the first half of these steps to the second: polynomial growth,
#: as with coefficients that sum to zero, but not exponential growth.
_GROWTH = 16.0
#: Fraction of a unit error below which it is neglected.
_NOTHING = 0.01


def inverse_response(coefficients: Sequence[float], steps: int) -> Floats:
    """Return the effect of a unit release at step 0 on the draws recovered from there on.

    Args:
        coefficients: c, the first one not 0, ``[m]``.
        steps: Number of steps, >= 1.

    Returns:
        The weights, ``[steps]``; infinite or NaN where they overflow.

    Example:
        >>> inverse_response((1.0, -0.5), 4).tolist()
        [1.0, 0.5, 0.25, 0.125]
    """
    c = np.asarray(coefficients, dtype=np.float64)
    later = c[:0:-1]  # the coefficient of the oldest draw first
    found = np.zeros(len(later) + steps)
    with np.errstate(over="ignore", invalid="ignore"):
        for t in range(steps):
            unit = 1.0 if t == 0 else 0.0
            found[len(later) + t] = (unit - later @ found[t : t + len(later)]) / c[0]
    return np.asarray(found[len(later) :])


def is_recoverable(coefficients: Sequence[float]) -> bool:
    """Return whether no error in the recovered draws grows exponentially.

    Args:
        coefficients: c, the first one not 0, ``[m]``.

    Example:
        >>> is_recoverable((1.0, -1.0)), is_recoverable((1.0, -2.0))
        (True, False)
    """
    response = np.abs(inverse_response(coefficients, _STEPS + 4 * len(coefficients)))
    first, second = np.array_split(response, 2)
    return bool(np.isfinite(response).all() and second.max() <= _GROWTH * first.max())


def steps_to_forget(coefficients: Sequence[float]) -> int | None:
    """Return the number of steps after which unknown past draws have decayed to one per cent.

    Args:
        coefficients: c, the first one not 0, ``[m]``.

    Returns:
        The number; None if they never decay so far, as with coefficients that sum to zero.

    Example:
        >>> steps_to_forget((1.0, -0.5)), steps_to_forget((1.0, -1.0))
        (6, None)
    """
    c = np.abs(np.asarray(coefficients, dtype=np.float64))
    response = np.abs(inverse_response(coefficients, _STEPS + 4 * len(c))) * c[1:].sum()
    # The largest from each step on.
    left = np.maximum.accumulate(response[::-1])[::-1]
    below = np.flatnonzero(left < _NOTHING)
    return int(below[0]) if len(below) else None
