r"""Test whether the signs of noise follow those of earlier steps.

If the noise of a step is independent of everything before, its signs are tosses of one coin, for
any sizes and any earlier signs. They are tested against two coins: one for coordinates that were
above zero some steps ago, and one for those that were below. The coin need not be fair: noise with
a mean other than zero follows nothing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import special

from lightning_audit.stats._arguments import Floats
from lightning_audit.stats.evalues.sequential import log_mean_exp

#: Lags at which signs are compared, in steps.
LAGS = 16
#: Values smaller than this are rounding errors, and have no sign.
_ROUNDING = 1e-3


def lag_sign_log_e(counts: NDArray[np.int64]) -> Floats:
    r"""Return the log e-value for "the signs are tosses of one coin, for any earlier signs".

    Formula:
        ``log( B(1 + n[0, 0], 1 + n[0, 1]) B(1 + n[1, 0], 1 + n[1, 1]) / max_q q^p (1 - q)^m )``
        with ``p`` signs above zero and ``m`` below: two coins with uniform priors against the best
        one coin.

    Args:
        counts: Numbers n of signs, ``[..., 2, 2]``: by the earlier sign (above, below), and by the
            sign (above, below).

    Returns:
        The log e-value, ``[...]``; flag at ``>= log(1 / significance)``, at any look.

    Example:
        >>> float(lag_sign_log_e(np.zeros((2, 2), dtype=np.int64)))
        0.0
        >>> bool(lag_sign_log_e(np.array([[40, 160], [160, 40]])) > 60)
        True

    References:
        Wasserman, Ramdas and Balakrishnan, "Universal inference", PNAS 117, 2020, arXiv:1912.11436.
    """
    two = special.betaln(1.0 + counts[..., 0], 1.0 + counts[..., 1]).sum(axis=-1)
    tosses = counts.sum(axis=-2)
    rates = tosses / np.maximum(tosses.sum(axis=-1, keepdims=True), 1)
    return np.asarray(two - special.xlogy(tosses, rates).sum(axis=-1))


class LagSigns:
    """E-process for "the noise of a step does not follow that of earlier steps": a mean over lags.

    Args:
        lags: Number of lags.
    """

    def __init__(self, lags: int = LAGS) -> None:
        #: Signs at each lag, ``[lags, 2, 2]``; see `lag_sign_log_e`.
        self.counts: NDArray[np.int64] = np.zeros((lags, 2, 2), dtype=np.int64)
        #: Whether entries of the latest steps were above zero, and below, ``[lags, 2, n]``, and
        #: the numbers of these steps.
        self._past = np.zeros((lags, 2, 0), dtype=np.float32)
        self._steps = np.full(lags, -1, dtype=np.int64)
        self._seen = 0

    def update(self, noise: Floats, step: int) -> None:
        """Update with the noise of a step.

        Args:
            noise: In units of its claimed standard deviation, ``[n]``, the same n at every step.
            step: Its number, larger than those before; steps may be left out.
        """
        lags = len(self.counts)
        if self._past.shape[2] != len(noise):
            self._past = np.zeros((lags, 2, len(noise)), dtype=np.float32)
            self._steps[:] = -1
        signs = np.stack([noise > _ROUNDING, noise < -_ROUNDING]).astype(np.float32)
        apart = step - self._steps
        known = (self._steps >= 0) & (apart <= lags)
        self.counts[apart[known] - 1] += (self._past[known] @ signs.T).astype(np.int64)
        at = self._seen % lags
        self._past[at], self._steps[at] = signs, step
        self._seen += 1

    @property
    def log_e(self) -> float:
        """Log e-value so far."""
        return float(log_mean_exp(lag_sign_log_e(self.counts)))

    @property
    def lag(self) -> int:
        """The lag with the largest e-value, in steps."""
        return int(np.argmax(lag_sign_log_e(self.counts))) + 1

    @property
    def agreement(self) -> float:
        """Share of signs that agree at that lag; 0.5 if none was compared."""
        counts = self.counts[self.lag - 1]
        total = int(counts.sum())
        return float(np.trace(counts)) / total if total else 0.5
