"""`shadow_models`: trains models on random halves of a data set, and scores all records."""

from __future__ import annotations

import os
import sys
import tempfile
from typing import Any

import numpy as np

from lightning_audit import _validate
from lightning_audit._validate import BadArgument
from lightning_audit.files.printable import visible
from lightning_audit.many.audit_trainings import digests_of
from lightning_audit.many.driver import Driver, OnFailure
from lightning_audit.many.engines.executors import settings_of
from lightning_audit.many.engines.local_processes import refuse_inside_a_worker
from lightning_audit.many.game.plan import MOST_IN_BLOCK, Plan, block_size
from lightning_audit.many.game.user_training import Score, Work
from lightning_audit.many.shadow.halves import Halves, Subsets
from lightning_audit.many.shadow.shadows import Shadows
from lightning_audit.many.training_store import TrainingStore

__all__ = ["shadow_models"]


def shadow_models(
    train: Any,
    dataset: Any,
    *,
    models: int,
    score: Score | None = None,
    engine: Any = None,
    store: str | os.PathLike[str] | None = None,
    seed: int = 0,
    pairs: bool = True,
    identity: str | None = None,
    on_failure: OnFailure = "count",
    limit: float | None = None,
) -> Shadows:
    """Train models on random halves of a data set, and score all records with each of them.

    As in `audit_training`, a training that fails is started once more; then its scores are NaN. The
    same call again continues a store, also with more models.

    Args:
        train: function of (data set, seed) that returns a model, or the scores of all records,
            ``[records]``; or an object with ``many(data_sets, seeds)``, such as `DPSGDMany`.
        dataset: a tuple of arrays or tensors, a map-style Dataset, or a list of records.
        models: number of models, even for pairs.
        score: function of (model, record) that returns a number, or an object with
            ``many(model, records)`` that returns one a record; None for `LogitMargin`.
        engine: as in `audit_training`; None for one process a core.
        store: folder of the trainings; None for a temporary one, without lines about the progress.
        seed: of halves and trainings, >= 0.
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
    count = _checked(models, seed, pairs, limit, on_failure)
    work = Work(train, Subsets(dataset), score)
    settings = settings_of(engine)
    halves = "complementary pairs" if pairs else "independent coins"
    digests = {**digests_of(work, identity), "seed": str(seed), "halves": halves}
    with tempfile.TemporaryDirectory() as folder:
        kept = TrainingStore(folder if store is None else store, digests, work.worlds.canaries)
        try:
            at_once = min(MOST_IN_BLOCK, count) if hasattr(train, "many") else block_size(count)
            block = kept.fixed("block", at_once)
            plan = (Halves if pairs else Plan)(seed, count, block, work.worlds.canaries)
            driver = Driver(plan, work, settings, kept, on_failure=on_failure, limit=limit)
            driver.line = _silent if store is None else _printed
            return _run(driver, pairs)
        finally:
            kept.close()


def _run(driver: Driver, pairs: bool) -> Shadows:
    """Run all trainings, and return what they gave."""
    driver.run()
    count = driver.plan.trainings
    prefix = driver.store.prefix(count)
    seeds = np.array([driver.plan.training(number).seed for number in range(count)])
    return Shadows(prefix.scores, prefix.coins, seeds, pairs)


def _checked(
    models: int, seed: int, pairs: bool, limit: float | None, on_failure: OnFailure
) -> int:
    """Return the number of models."""
    _validate.one_of("on_failure", on_failure, ("count", "raise"))
    if limit is not None:
        _validate.positive("limit", limit, "in seconds a training")
    count = _validate.positive_int("models", models, "such as 256")
    if pairs and count % 2:
        raise BadArgument(f"models={count} must be even for complementary pairs, or pairs=False.")
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise BadArgument(f"seed={_validate.shown(seed)} must be a whole number >= 0.")
    return count


def _silent(text: str) -> None:
    pass


def _printed(text: str) -> None:
    print(visible(text), file=sys.stderr, flush=True)
