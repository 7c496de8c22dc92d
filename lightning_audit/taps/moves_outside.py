"""Do the weights move outside of the update as much as noise that is missing would move them?

Noise can be added to the weights instead of the gradient. Then the gradient of the update shows
none, and nothing that it shows says anything of the noise.
"""

from __future__ import annotations

import numpy as np

from lightning_audit.layout import FloatArray
from lightning_audit.taps.weight_watch import Moves

#: How large the moves must be, in those that the claimed noise would give in the same update.
_AS_NOISE = 0.2
#: Steps that must have been watched.
_ENOUGH = 3


class MovesOutside:
    """Counts steps between which weights moved as by noise."""

    def __init__(self) -> None:
        self._watched = self._moved = 0

    def update(self, moves: Moves, gradient: FloatArray) -> None:
        """Take in one step.

        Args:
            moves: of the weights.
            gradient: what the update used, in units of the claimed noise, ``[n]``.
        """
        outside = moves.outside
        if outside is None or not np.isfinite(gradient).all() or not np.isfinite(outside).all():
            return
        # Decay and projections move weights along themselves; noise does not.
        square = float(moves.start @ moves.start)
        along = float(outside @ moves.start) / square if square > 0 else 0.0
        rest = float(np.linalg.norm(outside - along * moves.start))
        step = float(np.linalg.norm(moves.update))
        size = float(np.linalg.norm(gradient)) / np.sqrt(len(gradient))
        self._watched += 1
        # Noise of the claimed size, put through the same update, moves by step / size.
        self._moved += bool(rest > 0 and rest * size >= _AS_NOISE * step)

    @property
    def like_noise(self) -> bool:
        """Whether that was so in most steps."""
        return self._watched >= _ENOUGH and 2 * self._moved > self._watched
