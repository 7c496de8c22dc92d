"""Outcomes of an attack: the input of every bound from counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lightning_audit import _validate
from lightning_audit.stats._arguments import Floats, places

Counts = NDArray[np.int64]

_NAMES = ("fn", "tp", "fp", "tn")


@dataclass(frozen=True, eq=False)
class ConfusionCounts:
    """Outcomes of guessing "in" or "out" in two worlds, at one threshold or at many.

    The direction of the attack is fixed beforehand: a large score means "in". An attack that is
    correct more often with its guesses inverted proves nothing, unless the inversion was fixed
    beforehand.

    Args:
        fn: Canary in, guessed out (type II errors); whole numbers >= 0, any common shape.
        tp: Canary in, guessed in.
        fp: Canary out, guessed in (type I errors).
        tn: Canary out, guessed out.

    Raises:
        ValueError: If a count is negative or not a whole number.

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
            whole(name, v).astype(np.int64)
            for name, v in zip(_NAMES, (fn, tp, fp, tn), strict=True)
        ]
        shape = np.broadcast_shapes(*(value.shape for value in checked))
        for name, value in zip(_NAMES, checked, strict=True):
            # A read-only view: the counts stay what was validated.
            object.__setattr__(self, name, np.broadcast_to(value, shape))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ConfusionCounts):
            return NotImplemented
        return all(np.array_equal(getattr(self, n), getattr(other, n)) for n in _NAMES)

    __hash__ = None  # type: ignore[assignment]  # arrays have none

    @property
    def shape(self) -> tuple[int, ...]:
        """Common shape of the counts; () for one threshold."""
        return self.fn.shape

    @property
    def n_in(self) -> Counts:
        """Number of observations with the canary in, of the common shape."""
        return np.asarray(self.fn + self.tp)

    @property
    def n_out(self) -> Counts:
        """Number of observations with the canary out, of the common shape."""
        return np.asarray(self.fp + self.tn)

    @classmethod
    def from_scores(
        cls, scores_in: ArrayLike, scores_out: ArrayLike, thresholds: ArrayLike
    ) -> ConfusionCounts:
        """Count the guesses "in if the score exceeds the threshold".

        Args:
            scores_in: Scores with the canary in, ``[n_in]``.
            scores_out: Scores with the canary out, ``[n_out]``.
            thresholds: A number, or an array of any shape, in the unit of the scores.

        Returns:
            The counts, in the shape of ``thresholds``.

        Raises:
            ValueError: If the scores are not a vector, or a score or threshold is nan.

        Example:
            >>> ConfusionCounts.from_scores([0.2, 0.9, 1.4], [-0.3, 0.6], thresholds=0.5).tp
            array(2)
        """
        inside = np.sort(score_vector("scores_in", scores_in))
        outside = np.sort(score_vector("scores_out", scores_out))
        cuts = numbers("thresholds", thresholds)
        fn = np.searchsorted(inside, cuts, side="right")
        tn = np.searchsorted(outside, cuts, side="right")
        return cls(fn=fn, tp=len(inside) - fn, fp=len(outside) - tn, tn=tn)


def whole(name: str, value: Any, advice: str = "pass event counts, not rates or scores") -> Counts:
    counts = np.asarray(value)
    # An empty list has no dtype of its own. A boolean array is usually the outcomes themselves.
    if counts.dtype.kind not in "iu" and counts.size:
        raise ValueError(f"{name}={_validate.shown(value)} must hold whole numbers >= 0; {advice}")
    if np.any(counts < 0):
        first = int(counts[counts < 0].flat[0])
        raise ValueError(f"{name}={first} must be a whole number >= 0; {advice}")
    return counts


def numbers(name: str, value: ArrayLike) -> Floats:
    array = np.asarray(value, dtype=np.float64)
    missing = np.isnan(array)
    if np.any(missing):
        at = f" ({places(missing)})" if missing.ndim else ""
        raise ValueError(
            f"{name} holds nan, must hold numbers; a failed reading is not evidence{at}"
        )
    return array


def score_vector(name: str, value: ArrayLike) -> Floats:
    scores = numbers(name, value)
    if scores.ndim != 1:
        raise ValueError(
            f"{name} has shape {scores.shape}, must be one vector of scores; "
            "pool the observations first, one score each"
        )
    return scores
