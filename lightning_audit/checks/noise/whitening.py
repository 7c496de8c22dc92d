"""Noise that is correlated over steps by a claim's `noise_coefficients`: the draw of each step.

What is read of a step is its draw, draws of earlier steps and data. Whatever of an earlier step
stays in a draw that is recovered here, such as its data, or a canary that clipping let through, is
known before the present draw is made. It stands beside the draw as data do, under which the tests
of the steps are valid.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_audit.layout import FloatArray
from lightning_audit.stats.dependence.correlated_noise import steps_to_forget


class Whitening:
    """Recovers the draws of coordinates that are read at every step.

    Where a step cannot be read, its draw is taken for zero.

    Args:
        coefficients: see `PrivacyClaim`; only their ratios to the first one count.
    """

    def __init__(self, coefficients: Sequence[float]) -> None:
        c = np.asarray(coefficients, dtype=np.float64)
        self._later = c[1:] / c[0]
        self._forgets = steps_to_forget(coefficients)
        #: Row t mod (m - 1) holds the draws of step t, ``[m - 1, n]``.
        self._past: FloatArray | None = None
        self._steps = 0
        #: Steps since a draw was not known; None where all were.
        self._since: int | None = None

    @property
    def settled(self) -> bool:
        """Whether nothing is left in the draws of one that is not known."""
        if self._since is None:
            return True
        return self._forgets is not None and self._since >= self._forgets

    def draw(self, read: FloatArray, dead: NDArray[np.bool_] | None = None) -> FloatArray:
        """The draws of a step.

        Args:
            read: the step's readings in units of a draw's standard deviation, ``[n]``, n the same
                at every step.
            dead: which entries were exactly zero, ``[n]``: nothing was drawn there; None for none.

        Returns:
            The draws, and beside them what stays of the data, ``[n]``; NaN where a reading is not
            finite.
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
        """A step passes whose draws are not known."""
        self._keep(0.0)
        self._since = 0

    def begin_amid(self) -> None:
        """Steps were taken before that nobody read."""
        self._since = 0

    def _keep(self, drawn: FloatArray | float) -> None:
        if self._past is not None:
            self._past[self._steps % len(self._past)] = drawn
        self._steps += 1
        if self._since is not None:
            self._since += 1

    def _by_row(self) -> FloatArray:
        """The coefficient of each row of the past."""
        count = len(self._later)
        ages = (self._steps - 1 - np.arange(count)) % count
        return np.asarray(self._later[ages])

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds: functions of what was released."""
        past = None if self._past is None else self._past.copy()
        return {"past": past, "steps": self._steps, "since": self._since}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint's state."""
        past = state["past"]
        self._past = None if past is None else np.array(past)
        self._steps, self._since = state["steps"], state["since"]
