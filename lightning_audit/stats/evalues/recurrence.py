"""Test whether a step's noise recurs: the nearest past step, found and tested on two halves."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from lightning_audit.stats._arguments import Floats
from lightning_audit.stats.evalues.noise_scale import noise_log_e

#: Number of coordinates used to find the nearest step; the others test it.
SEARCHED = 32


class NoisePast:
    """Readings of the latest steps, in single precision.

    Args:
        kept: Number of steps to keep.
    """

    def __init__(self, kept: int = 4096) -> None:
        self._kept = kept
        #: Coordinates used to find the nearest step, and the other coordinates.
        self._parts: tuple[NDArray[np.intp], NDArray[np.intp]] | None = None
        self._searched = np.zeros((0, 0), dtype=np.float32)
        self._tested = np.zeros((0, 0), dtype=np.float32)
        self._squares = np.zeros(0, dtype=np.float32)
        self._number = 0
        self._steps = np.zeros(0, dtype=np.int64)
        #: Number of the step that was nearest to the latest one; -1 without a past.
        self.nearest = -1
        #: Root mean square of the latest differences from the nearest step, over that of new
        #: noise of the claimed size; infinite without a past.
        self.difference_ratio = math.inf

    def __len__(self) -> int:
        return min(self._number, self._kept)

    def add(self, readings: Floats, step: int | None = None) -> None:
        """Store the readings of a step.

        Args:
            readings: In units of the claimed standard deviation, ``[n]``, the same n at every step.
            step: Number of the step; None if every step is stored, to count them.
        """
        searched, tested = self._divided(readings)
        at = self._number % self._kept
        if at >= len(self._squares):
            more = min(max(16, len(self._squares)), self._kept - len(self._squares))
            self._searched = _longer(self._searched, more, len(searched))
            self._tested = _longer(self._tested, more, len(tested))
            self._squares = np.concatenate([self._squares, np.zeros(more, dtype=np.float32)])
            self._steps = np.concatenate([self._steps, np.zeros(more, dtype=np.int64)])
        self._searched[at], self._tested[at] = searched, tested
        self._squares[at] = searched @ searched
        self._steps[at] = self._number if step is None else step
        self._number += 1

    def recurrence_log_e(self, readings: Floats) -> tuple[float, int]:
        """Return the log e-value of one step for "this noise is new", and the age of its match.

        The past step that is nearest on some coordinates is the center of the others. It depends on
        the past, and on noise that is independent of the tested noise, so the differences are at
        least as large as the noise (`noise_log_e`; own proof, on arXiv:2210.01948).

        Args:
            readings: In units of the claimed standard deviation, ``[n]``.

        Returns:
            The log e-value, 0 without a past; and the age of the match in kept steps, 0 without a
            past.
        """
        size = len(self)
        if not size or len(readings) < 2:
            return 0.0, 0
        searched, tested = self._divided(readings)
        # Squared distances up to a constant.
        distances = self._squares[:size] - 2.0 * (self._searched[:size] @ searched)
        nearest = int(np.argmin(distances))
        gap = np.asarray(tested - self._tested[nearest], dtype=np.float64)
        self.difference_ratio = math.sqrt(float(gap @ gap) / (2.0 * len(gap)))
        self.nearest = int(self._steps[nearest])
        age = (self._number - 1 - nearest) % self._kept + 1
        return float(noise_log_e(len(gap), gap @ gap)), age

    def _divided(self, readings: Floats) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the search coordinates, about `SEARCHED` and at most half, and the others."""
        if self._parts is None:
            stride = max(2, len(readings) // SEARCHED)
            chosen = np.arange(len(readings)) % stride == 0
            self._parts = np.flatnonzero(chosen), np.flatnonzero(~chosen)
        single = readings.astype(np.float32)
        return single[self._parts[0]], single[self._parts[1]]


def _longer(rows: NDArray[np.float32], more: int, width: int) -> NDArray[np.float32]:
    added = np.zeros((more, width), dtype=np.float32)
    return np.concatenate([rows, added]) if len(rows) else added
