"""Scores and membership of shadow models."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lightning_audit import _validate
from lightning_audit._validate import BadArgument, shown

__all__ = ["Shadows"]


@dataclass(frozen=True, eq=False)
class Shadows:
    """Scores of all records by models that were trained on random halves.

    Args:
        scores: score of each record by each model, ``[models, records]``; NaN in the rows of
            models whose training failed.
        membership: whether each record was in each model's data, ``[models, records]``.
        seeds: seed of each training, ``[models]``.
        pairs: whether models 2i and 2i + 1 have complementary data.

    Raises:
        ValueError: if the shapes or kinds differ from these, or a score is infinite.
    """

    scores: NDArray[np.float64]
    membership: NDArray[np.bool_]
    seeds: NDArray[np.int64]
    pairs: bool = False

    def __post_init__(self) -> None:
        shapes = self.scores.shape, self.membership.shape
        if self.scores.ndim != 2 or len(set(shapes)) > 1 or self.seeds.shape != shapes[0][:1]:
            raise BadArgument(
                f"scores, membership and seeds have shapes {shapes[0]}, {shapes[1]} and "
                f"{self.seeds.shape}, must be [models, records] twice, and [models]."
            )
        if self.membership.dtype != np.bool_:
            raise BadArgument(
                f"membership has dtype {self.membership.dtype}, must hold True or False."
            )
        missing = ~np.isfinite(self.scores)
        if (missing.any(axis=1) & ~missing.all(axis=1)).any() or np.isinf(self.scores).any():
            raise BadArgument(
                "scores must be finite, except that all scores of a model whose training failed "
                "are NaN."
            )
        if self.pairs and len(self.scores) % 2:
            raise BadArgument(
                f"{len(self.scores)} models are no complementary pairs; give an even number, or "
                "pairs=False."
            )

    def __len__(self) -> int:
        return len(self.scores)

    @property
    def records(self) -> int:
        """Number of records."""
        return int(self.scores.shape[1])

    @property
    def failed(self) -> NDArray[np.bool_]:
        """Whether the training of each model failed, ``[models]``."""
        return np.asarray(np.isnan(self.scores).any(axis=1))

    def split(self, *shares: float) -> tuple[Shadows, ...]:
        """Return groups of models, such as those for selection, attack and targets.

        A pair of complementary models is in one group. No model is in two groups, so what is fitted
        on one group does not depend on the scores of another.

        Args:
            shares: relative size > 0 of each group, in the order of the models.

        Raises:
            ValueError: if a share is not positive, or a group would have no model.

        Example:
            >>> made = Shadows(np.zeros((8, 3)), np.zeros((8, 3), bool), np.arange(8), pairs=True)
            >>> [len(group) for group in made.split(1, 2, 1)]
            [2, 4, 2]
        """
        for share in shares:
            _validate.positive("shares", share, "a relative size for each group")
        step = 2 if self.pairs else 1
        units = len(self) // step
        ends = step * np.rint(np.cumsum(shares) / np.sum(shares) * units).astype(int)
        bounds = [0, *ends.tolist()]
        if min(np.diff(bounds), default=0) <= 0:
            raise BadArgument(
                f"shares={shown(shares)} leave a group without "
                f"{'a pair of models' if self.pairs else 'a model'}, and there are {len(self)} "
                "models; give other shares or more models."
            )
        return tuple(
            self.chosen(np.arange(first, last)) for first, last in itertools.pairwise(bounds)
        )

    def chosen(self, models: NDArray[np.int_], pairs: bool | None = None) -> Shadows:
        """Return some of the models.

        Args:
            models: their positions, ``[m]``.
            pairs: whether they are pairs; None for that of all models.
        """
        kept = self.pairs if pairs is None else pairs
        return Shadows(self.scores[models], self.membership[models], self.seeds[models], kept)

    def finished(self) -> Shadows:
        """Return the models whose training did not fail, no longer as pairs."""
        return self.chosen(np.flatnonzero(~self.failed), pairs=False)

    def firsts(self) -> Shadows:
        """Return one model of each pair, or all models if they are no pairs."""
        return self.chosen(np.arange(0, len(self), 2 if self.pairs else 1), pairs=False)

    def joined(self, other: Shadows) -> Shadows:
        """Return these models and then others on the same records.

        Raises:
            ValueError: if the numbers of records differ.
        """
        if self.records != other.records:
            raise BadArgument(
                f"the models have scores of {self.records} and of {other.records} records; join "
                "models of one data set."
            )
        return Shadows(
            np.concatenate([self.scores, other.scores]),
            np.concatenate([self.membership, other.membership]),
            np.concatenate([self.seeds, other.seeds]),
            self.pairs and other.pairs,
        )
