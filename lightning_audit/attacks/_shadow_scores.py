"""Scores of records under shadow models, validated, and their means and spreads a record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lightning_audit.stats._arguments import Floats, places

Side = Literal["in", "out"]
Bools = NDArray[np.bool_]
_AMONG = {"in": "in", "out": "out of"}


@dataclass(frozen=True, eq=False)
class ShadowScores:
    """Scores of records under models whose membership is known.

    Args:
        scores: Scores, finite, ``[models, records]``.
        membership: Whether the model was trained with the record, ``[models, records]``.
    """

    scores: Floats
    membership: Bools

    @classmethod
    def of(
        cls, scores: ArrayLike, membership: ArrayLike, *, least_in: int = 0, least_out: int = 0
    ) -> ShadowScores:
        """Return the validated scores.

        Args:
            scores: As the field.
            membership: As the field.
            least_in: Number of models that each record must be in.
            least_out: Number of models that each record must be out of.

        Raises:
            ValueError: If a score is not finite, shapes differ, the membership is not boolean, or a
                record is in or out of too few models.
        """
        values = matrix("scores", scores, "models")
        inside = membership_of("membership", membership, values, "scores")
        found = cls(values, inside)
        for side, least in (("in", least_in), ("out", least_out)):
            models = found.models(side).sum(axis=0)  # type: ignore[arg-type]
            few = models < least
            if np.any(few):
                record = int(np.argmax(few))
                among = _AMONG[side]
                raise ValueError(
                    f"membership has record {record} {among} {int(models[record])} models, must "
                    f"have each record {among} at least {least} (fewer: {places(few)}); "
                    "train more models, each on a random half of the records."
                )
        return found

    def models(self, side: Side) -> Bools:
        """Return which models a record is in, or out of, ``[models, records]``."""
        return self.membership if side == "in" else ~self.membership

    def mean(self, side: Side) -> Floats:
        """Return the mean score of each record over the models of a side, ``[records]``."""
        models = self.models(side)
        # Relative to one score of the side, so that the mean of equal scores is exact.
        shift = self.scores[models.argmax(axis=0), np.arange(models.shape[1])]
        total = np.sum(np.where(models, self.scores - shift, 0.0), axis=0)
        return np.asarray(shift + total / models.sum(axis=0))

    def spread(self, side: Side, *, pooled: bool) -> Floats:
        """Return the standard deviation of the scores of each record on a side, ``[records]``.

        Args:
            side: Models with the record, or without it.
            pooled: Whether all records have one: the square root of the sum of squared distances
                from each record's mean, over the number of scores less the number of records.
                Otherwise each record has its own, over the number of its scores less one.

        Raises:
            ValueError: If scores have no spread.
        """
        models = self.models(side)
        squares = np.sum(np.where(models, self.scores - self.mean(side), 0.0) ** 2, axis=0)
        degrees = models.sum(axis=0) - 1
        if pooled:
            squares = np.full(squares.shape, squares.sum() / degrees.sum())
            degrees = np.ones_like(degrees)
        if np.any(none := squares <= 0):
            advice = "check that models have random seeds of their own"
            if not pooled:
                advice += ", or use an attack with a pooled variance"
            raise ValueError(
                f"scores of record {int(np.argmax(none))} by the models that it is {_AMONG[side]} "
                f"are equal ({places(none)}), must differ: equal scores have no spread; {advice}."
            )
        return np.asarray(np.sqrt(squares / degrees))

    def targets(self, targets: ArrayLike) -> Floats:
        """Return the validated scores under attacked models, ``[targets, records]``.

        Raises:
            ValueError: If a score is not finite, or there is not one of each record.
        """
        values = matrix("targets", targets, "targets")
        if values.shape[1] != self.scores.shape[1]:
            raise ValueError(
                f"targets has shape {values.shape}, must be [targets, records] for "
                f"{self.scores.shape[1]} records; give the scores of the same records in the same "
                "order."
            )
        return values


def matrix(name: str, values: ArrayLike, rows: str) -> Floats:
    """Return finite scores as ``[rows, records]``, at least one of each."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 2 or not array.size:
        raise ValueError(
            f"{name} has shape {array.shape}, must be [{rows}, records], at least one of each; "
            "give one score for each model and record."
        )
    if np.any(bad := ~np.isfinite(array)):
        raise ValueError(
            f"{name} holds nan or infinity, must be finite ({places(bad)}); leave out the models "
            "that failed, and clip infinite scores."
        )
    return array


def membership_of(name: str, membership: ArrayLike, like: Floats, like_name: str) -> Bools:
    """Return a boolean membership in the shape of other scores."""
    inside = np.asarray(membership)
    if inside.dtype != np.bool_:
        raise ValueError(
            f"{name} has dtype {inside.dtype}, must be bool: True if the model was trained with "
            "the record."
        )
    if inside.shape != like.shape:
        raise ValueError(
            f"{name} has shape {inside.shape}, must be that of {like_name}, {like.shape}; give one "
            "value for each score."
        )
    return inside
