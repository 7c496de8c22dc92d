"""Does a step's noise come back: the nearest step of the past, found and tested on two halves."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lightning_audit.stats.sequential import noise_log_e

FloatArray = NDArray[np.float64]

#: Coordinates by which the nearest step of the past is found; the others test it.
SEARCHED = 64


class NoisePast:
    """Readings of the latest steps, in single precision.

    Args:
        kept: number of steps.
    """

    def __init__(self, kept: int = 4096) -> None:
        self._kept = kept
        self._rows = np.zeros((0, 0), dtype=np.float32)
        self._squares = np.zeros(0, dtype=np.float32)
        self._number = 0

    def __len__(self) -> int:
        return min(self._number, self._kept)

    @property
    def latest(self) -> FloatArray:
        """Readings of the latest step, ``[n]``; empty before the first."""
        if not self._number:
            return np.zeros(0)
        return np.asarray(self._rows[(self._number - 1) % self._kept], dtype=np.float64)

    def add(self, readings: FloatArray) -> None:
        """Keep the readings of a step, ``[n]``, n the same at every step."""
        at = self._number % self._kept
        if at >= len(self._rows):
            more = min(max(16, len(self._rows)), self._kept - len(self._rows))
            width = len(readings)
            rows = self._rows.reshape(-1, width)
            self._rows = np.concatenate([rows, np.zeros((more, width), dtype=np.float32)])
            self._squares = np.concatenate([self._squares, np.zeros(more, dtype=np.float32)])
        self._rows[at] = readings
        searched = self._rows[at, :: self._stride]
        self._squares[at] = searched @ searched
        self._number += 1

    def recurrence_log_e(self, readings: FloatArray) -> tuple[float, int]:
        """Log e-value of one step for "this noise is new", and the age of what it resembles.

        The step of the past that is nearest on some coordinates is the centre of the others. It
        rests on the past and on noise that is independent of the noise it is held against, so that
        the differences are at least as large as the noise (`noise_log_e`).

        Args:
            readings: in units of the claimed standard deviation, ``[n]``.

        Returns:
            The log e-value, 0 without a past; and how many steps ago, 0 without a past.
        """
        size = len(self)
        if not size or len(readings) < 2:
            return 0.0, 0
        searched = readings[:: self._stride].astype(np.float32)
        rows = self._rows[:size]
        # Squared distances but for a constant.
        distances = self._squares[:size] - 2.0 * (rows[:, :: self._stride] @ searched)
        nearest = int(np.argmin(distances))
        tested = np.ones(len(readings), dtype=bool)
        tested[:: self._stride] = False
        gap = readings[tested] - rows[nearest, tested]
        age = (self._number - 1 - nearest) % self._kept + 1
        return float(noise_log_e(len(gap), gap @ gap)), age

    @property
    def _stride(self) -> int:
        """Every so many coordinates one is searched by: about `SEARCHED`, at most half of them."""
        return max(2, self._rows.shape[1] // SEARCHED)
