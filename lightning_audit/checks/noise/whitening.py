"""Decorrelation of noise that a claim's `noise_coefficients` correlate over steps.

A step's reading is its own draw, plus draws of earlier steps, plus data. A recovered draw may also
contain a remainder of earlier steps: their data, or a canary that clipping did not remove. That
remainder is fixed before the present draw is made, so it acts like data, for which the tests of the
steps are valid.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lightning_audit.layout import FloatArray
from lightning_audit.record.kept import Kept
from lightning_audit.stats.dependence.correlated_noise import steps_to_forget


class Whitening(Kept):
    """Recovers each step's draw at coordinates that are read at every step.

    The draw of a step that cannot be read is taken to be zero.

    Args:
        coefficients: see `PrivacyClaim`; only their ratios to the first one matter.
    """

    KEPT = ("_past", "_steps", "_since")

    def __init__(self, coefficients: Sequence[float]) -> None:
        c = np.asarray(coefficients, dtype=np.float64)
        self._later = c[1:] / c[0]
        self._forgets = steps_to_forget(coefficients)
        #: Row t mod (m - 1) holds the draws of step t, ``[m - 1, n]``.
        self._past: FloatArray | None = None
        self._steps = 0
        #: Steps since the latest unknown draw; None if all draws are known.
        self._since: int | None = None

    @property
    def settled(self) -> bool:
        """Whether unknown draws no longer affect the recovered draws."""
        if self._since is None:
            return True
        return self._forgets is not None and self._since >= self._forgets

    def draw(self, read: FloatArray, dead: NDArray[np.bool_] | None = None) -> FloatArray:
        """Return the draws of a step.

        Args:
            read: the step's readings in units of a draw's standard deviation, ``[n]``, n the same
                at every step.
            dead: entries that were exactly zero, ``[n]``: they had no draw; None if none.

        Returns:
            The draws plus the remaining data, ``[n]``; NaN where a reading is not finite.
        """
        if self._past is None or self._past.shape[1] != len(read):
            self._past = np.zeros((len(self._later), len(read)))
        drawn = np.asarray(read - self._by_row() @ self._past)
        if dead is not None:
            drawn = np.where(dead, read, drawn)
        if np.isfinite(drawn).all():
            self._keep(drawn)
        else:
            self.lose()
        return drawn

    def lose(self) -> None:
        """Count a step whose draws are unknown."""
        self._keep(0.0)
        self._since = 0

    def begin_amid(self) -> None:
        """Start after steps that were not read."""
        self._since = 0

    def _keep(self, drawn: FloatArray | float) -> None:
        if self._past is not None:
            self._past[self._steps % len(self._past)] = drawn
        self._steps += 1
        if self._since is not None:
            self._since += 1

    def _by_row(self) -> FloatArray:
        """Return the coefficient of each row of `_past`, ``[m - 1]``."""
        count = len(self._later)
        ages = (self._steps - 1 - np.arange(count)) % count
        return np.asarray(self._later[ages])
