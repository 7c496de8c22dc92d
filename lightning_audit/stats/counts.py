"""Lower bounds on epsilon and mu from an attack's error counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["ConfusionCounts"]

Counts = NDArray[np.int64]


@dataclass(frozen=True)
class ConfusionCounts:
    """Outcomes of guessing "in" or "out" in two worlds, at one threshold or at many.

    Args:
        fn: canary in, guessed out (type II errors); whole numbers >= 0, any common shape.
        tp: canary in, guessed in.
        fp: canary out, guessed in (type I errors).
        tn: canary out, guessed out.

    Raises:
        ValueError: A count is no whole number or is negative.

    Example:
        >>> counts = ConfusionCounts(fn=35, tp=65, fp=25, tn=75)
        >>> int(counts.n_in), int(counts.n_out)
        (100, 100)
    """

    fn: Counts
    tp: Counts
    fp: Counts
    tn: Counts

    def __init__(self, fn: ArrayLike, tp: ArrayLike, fp: ArrayLike, tn: ArrayLike) -> None:
        checked = [
            _whole(*item) for item in zip(("fn", "tp", "fp", "tn"), (fn, tp, fp, tn), strict=True)
        ]
        for name, value in zip(
            ("fn", "tp", "fp", "tn"), np.broadcast_arrays(*checked), strict=True
        ):
            object.__setattr__(self, name, value)

    @property
    def n_in(self) -> Counts:
        """Observations with the canary in."""
        return self.fn + self.tp

    @property
    def n_out(self) -> Counts:
        """Observations with the canary out."""
        return self.fp + self.tn

    @classmethod
    def from_scores(
        cls, scores_in: ArrayLike, scores_out: ArrayLike, thresholds: ArrayLike
    ) -> ConfusionCounts:
        """Count the guesses "in if the score exceeds the threshold".

        Args:
            scores_in: scores with the canary in, ``[n_in]``.
            scores_out: scores with the canary out, ``[n_out]``.
            thresholds: a number, or an array of any shape.

        Returns:
            The counts, of the shape of ``thresholds``.
        """
        inside, outside = (
            np.sort(np.asarray(s, dtype=np.float64)) for s in (scores_in, scores_out)
        )
        fn = np.searchsorted(inside, thresholds, side="right")
        tn = np.searchsorted(outside, thresholds, side="right")
        return cls(fn=fn, tp=len(inside) - fn, fp=len(outside) - tn, tn=tn)


def _whole(name: str, value: Any) -> Counts:
    counts = np.asarray(value)
    if counts.dtype.kind not in "iu" or np.any(counts < 0):
        raise ValueError(f"{name}={value!r} must hold whole numbers >= 0; pass event counts")
    return counts.astype(np.int64)
