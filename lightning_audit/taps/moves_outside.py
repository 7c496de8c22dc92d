"""Detects weight changes outside of the update that are as large as the claimed noise.

Noise can be added to the weights instead of the gradient. Then the gradient of the update contains
none, and no conclusion about the noise can be drawn from it.
"""

from __future__ import annotations

import numpy as np

from lightning_audit.layout import FloatArray
from lightning_audit.taps.weight_watch import Moves

#: Smallest weight change that counts, relative to that of the claimed noise in the same update.
_AS_NOISE = 0.2
#: Smallest number of steps that must have been read.
_ENOUGH = 3


class MovesOutside:
    """Counts steps before which weights changed as by noise."""

    def __init__(self) -> None:
        self._watched = self._moved = 0

    def update(self, moves: Moves, gradient: FloatArray) -> None:
        """Update with one step.

        Args:
            moves: changes of the weights.
            gradient: the gradient that the update used, in units of the claimed noise, ``[n]``.
        """
        outside = moves.outside
        if outside is None or not np.isfinite(gradient).all() or not np.isfinite(outside).all():
            return
        # Weight decay and projections change weights along themselves; noise does not.
        square = float(moves.start @ moves.start)
        along = float(outside @ moves.start) / square if square > 0 else 0.0
        rest = float(np.linalg.norm(outside - along * moves.start))
        step = float(np.linalg.norm(moves.update))
        size = float(np.linalg.norm(gradient)) / np.sqrt(len(gradient))
        self._watched += 1
        # Noise of the claimed size changes the weights by step / size in the same update.
        self._moved += bool(rest > 0 and rest * size >= _AS_NOISE * step)

    @property
    def like_noise(self) -> bool:
        """Whether the weights changed as by noise in most steps."""
        return self._watched >= _ENOUGH and 2 * self._moved > self._watched
