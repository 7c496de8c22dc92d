"""What is read of one step's gradient, from the noise to the end of its update."""

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
        values: entries of the noisy gradient, canaries already taken out, ``[n]`` in the order of
            the tap's coordinates; NaN where a parameter had no gradient. Where the gradient was
            replaced, those that were there when the update was done.
        replaced: a backward pass ran between the reading and the end of the update, which used
            another gradient than the one that was read.
        unclear: the gradient was changed without a backward pass, by an optimizer that is not
            torch's own, so that it cannot be told which gradient the update used.
        at_cut: whether it was read where the noise was known to be in, before the optimizer that
            updates was called.
        factor: what the gradient was multiplied by between the cut and the update; None where it
            was changed in another way, or not read at the cut.
        used: the gradient when the update was done, ``[n]``; None where it is ``values``, in bits.
        moves: what became of the weights; None where they were not watched.
        raw: whether the gradient that was read is what a backward pass left, and nobody wrote to it
            since.
        dead: which entries were exactly zero when they were read, canaries included, ``[n]``; None
            where none was.
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
