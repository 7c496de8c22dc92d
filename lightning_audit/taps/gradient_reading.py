"""Reading of one step's gradient, from its noise to the end of its update."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lightning_audit.layout import FloatArray
from lightning_audit.taps.weight_watch import Moves


@dataclass(frozen=True)
class Reading:
    """The gradient of one step at the observed coordinates.

    Args:
        values: entries of the noisy gradient without canaries, ``[n]`` in the order of the tap's
            coordinates; NaN if a parameter had no gradient. If the gradient was replaced, the
            entries after the update.
        replaced: whether a backward pass ran between the reading and the end of the update, so that
            the update used another gradient than the one that was read.
        unclear: whether an optimizer that is not torch's own changed the gradient without a
            backward pass, so that it is not known which gradient the update used.
        at_cut: whether it was read right after the noise was added, before the updating optimizer
            was called.
        factor: factor by which the gradient was multiplied between the cut and the update; None if
            it was changed in another way, or not read at the cut.
        used: the gradient after the update, ``[n]``; None if its bits are those of ``values``.
        moves: changes of the weights; None if they were not read.
        raw: whether the gradient that was read is that of a backward pass, not written to since.
        dead: which entries were exactly zero when read, canaries included, ``[n]``; None if none
            was.
    """

    values: FloatArray
    replaced: bool = False
    unclear: bool = False
    at_cut: bool = False
    factor: float | None = None
    used: FloatArray | None = None
    moves: Moves | None = None
    raw: bool = False
    dead: NDArray[np.bool_] | None = None
