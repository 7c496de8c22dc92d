r"""Noise that is correlated over steps by design: how its draws come back from the releases.

With coefficients ``c`` the noise of step t is ``sum_k c_k z_{t-k}``, where the draws z are
independent and those before the first step are zero. The draws are recovered one after the other,

.. math:: z_t = (x_t - \sum_{k \ge 1} c_k z_{t-k}) / c_0,

and what is unknown of a past draw decays, or grows, as the `inverse_response`.

References:
    Kairouz et al. 2021 (DP-FTRL); Choquette-Choo et al. 2023 (banded matrix factorisation).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lightning_audit.stats._arguments import Floats

#: Steps that are looked at beside the coefficients' own.
_STEPS = 2048
#: What a rest may grow by from the first half of these steps to the second: as a power of time, as
#: with coefficients that sum to zero, but not exponentially.
_GROWTH = 16.0
#: What is left of a unit of rest that is taken for nothing.
_NOTHING = 0.01


def inverse_response(coefficients: Sequence[float], steps: int) -> Floats:
    """What a unit of the release of step 0 is in the recovered draws of the steps from there.

    Args:
        coefficients: c, the first one not 0, ``[m]``.
        steps: number of steps, >= 1.

    Returns:
        The weights, ``[steps]``; infinite or NaN where they overflow.

    Example:
        >>> inverse_response((1.0, -0.5), 4).tolist()
        [1.0, 0.5, 0.25, 0.125]
    """
    c = np.asarray(coefficients, dtype=np.float64)
    later = c[:0:-1]  # the one of the oldest draw first
    found = np.zeros(len(later) + steps)
    with np.errstate(over="ignore", invalid="ignore"):
        for t in range(steps):
            unit = 1.0 if t == 0 else 0.0
            found[len(later) + t] = (unit - later @ found[t : t + len(later)]) / c[0]
    return np.asarray(found[len(later) :])


def is_recoverable(coefficients: Sequence[float]) -> bool:
    """Whether no rest in the recovered draws grows exponentially.

    Example:
        >>> is_recoverable((1.0, -1.0)), is_recoverable((1.0, -2.0))
        (True, False)
    """
    response = np.abs(inverse_response(coefficients, _STEPS + 4 * len(coefficients)))
    first, second = np.array_split(response, 2)
    return bool(np.isfinite(response).all() and second.max() <= _GROWTH * first.max())


def steps_to_forget(coefficients: Sequence[float]) -> int | None:
    """Steps after which unknown draws of the past are left as one per cent of a draw at most.

    Returns:
        The number; None where they never are, as with coefficients that sum to zero.

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
