"""Shadow models: trained on random halves of a data set, with scores of all records."""

from __future__ import annotations

import contextlib
import itertools
import os
import tempfile
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_audit import _validate
from lightning_audit._validate import BadArgument, shown
from lightning_audit.many.audit_trainings import checked_limit, checked_seed, progress, store_of
from lightning_audit.many.driver import Driver, OnFailure
from lightning_audit.many.engines import refuse_inside_a_worker, settings_of
from lightning_audit.many.records import Records
from lightning_audit.many.store import MOST_IN_BLOCK, Plan, block_size
from lightning_audit.many.worlds import Score, Work

# --- The data of shadow models: a half of the records each.


class Subsets:
    """The data set of each half of the records of a data set.

    Args:
        data: a tuple of arrays or tensors, a map-style Dataset, or a list of records.

    Raises:
        BadArgument: if the data set has another form, or fewer than two records.
    """

    def __init__(self, data: Any) -> None:
        self.data = data
        self._records = Records(data)
        if len(self._records) < 2:
            raise BadArgument("dataset has one record; give at least two, which halves can divide.")

    @property
    def canaries(self) -> int:
        """Number of records."""
        return len(self._records)

    @property
    def records(self) -> list[Any]:
        """All records, in order."""
        return [self._records[row] for row in range(self.canaries)]

    def of(self, coins: tuple[int, ...]) -> Any:
        """Return the data set of the records whose coin is 1."""
        return self._records.rearranged(np.flatnonzero(coins))


# --- Scores and membership of shadow models.


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


# --- `shadow_models`: trains models on random halves of a data set, and scores all records.


def shadow_models(
    train: Any,
    dataset: Any,
    *,
    models: int,
    score: Score | None = None,
    engine: Any = None,
    store: str | os.PathLike[str] | None = None,
    seed: int | None = None,
    pairs: bool = True,
    identity: str | None = None,
    on_failure: OnFailure = "count",
    limit: float | None = None,
) -> Shadows:
    """Train models on random halves of a data set, and score all records with each of them.

    The scores of a training that fails are NaN, as in `audit_training`. The same call again
    continues a store, also with more models.

    Args:
        train: function of (data set, seed) that returns a model, or the scores of all records,
            ``[records]``; or an object with ``many(data_sets, seeds)``, such as `DPSGDMany`.
        dataset: a tuple of arrays or tensors, a map-style Dataset, or a list of records.
        models: number of models, even for pairs.
        score: function of (model, record) that returns a number, or an object with
            ``many(model, records)`` that returns one a record; None for `LogitMargin`.
        engine: as in `audit_training`; None for one process a core.
        store: folder of the trainings; None for a temporary one, without lines about the progress.
        seed: of halves and trainings, >= 0, as in `audit_training`; None to draw one.
        pairs: whether models 2i and 2i + 1 have complementary data, so that each record is in as
            many models as it is out of. Else each record has a fair coin of its own in each model;
            `challenge_audit` needs that, and uses only the first models of pairs.
        identity: as in `audit_training`.
        on_failure: "count" to continue after a failed training, "raise" to end.
        limit: as in `audit_training`.

    Returns:
        Scores and membership, in the order of the plan.

    Raises:
        ValueError: if an argument is outside its range. Other errors are those of `audit_training`.
    """
    refuse_inside_a_worker()
    _validate.one_of("on_failure", on_failure, ("count", "raise"))
    limit, count = checked_limit(limit), _validate.positive_int("models", models, "such as 256")
    if pairs and count % 2:
        raise BadArgument(f"models={count} must be even for complementary pairs, or pairs=False.")
    work, settings = Work(train, Subsets(dataset), score), settings_of(engine)
    block = min(MOST_IN_BLOCK, count) if work.at_once else block_size(count)
    plan = Plan(0, count, block, pairs=pairs)
    parts = {"halves": "complementary pairs" if pairs else "independent coins"}
    with tempfile.TemporaryDirectory() as folder:
        place = folder if store is None else store
        made = store_of(place, plan, work, checked_seed(seed), identity, parts)
        with contextlib.closing(made) as kept:
            line = progress(store is not None)
            Driver(work, settings, kept, on_failure=on_failure, limit=limit, line=line).run()
            prefix = kept.prefix()
            seeds = np.array([kept.plan.training(number).seed for number in range(count)])
    return Shadows(prefix.scores, prefix.coins, seeds, pairs)
