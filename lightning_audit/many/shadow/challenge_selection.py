"""Selection of the records that an attack distinguishes best: challenge points."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from lightning_audit import _validate
from lightning_audit._validate import BadArgument
from lightning_audit.attacks.lira_attack import lira
from lightning_audit.many.shadow.shadows import Shadows
from lightning_audit.stats._arguments import Floats

__all__ = ["Attack", "challenge_points"]

#: Function of (scores ``[models, records]``, membership ``[models, records]``, target scores
#: ``[targets, records]``) that returns ``[targets, records]``, above 0 if it guesses "in". The
#: first two are of models on which it is fitted, the third of models that it attacks.
Attack = Callable[[Floats, NDArray[np.bool_], Floats], Floats]


def challenge_points(
    shadows: Shadows,
    count: int,
    by: Literal["separation", "accuracy"] = "separation",
    attack: Attack = lira,
) -> NDArray[np.int64]:
    r"""Return the records that an attack distinguishes best in shadow models.

    The models are divided into two halves. The attack scores each half after it was fitted on the
    other one. The weight of a record is

    - "separation": the difference of the means of its attack scores in models with and without it,
      over the root mean square of their standard deviations;
    - "accuracy": the share of models in which the attack's guess, whether its score is above 0, is
      right. With few models many records have the same share: separation decides between them.

    The record with the smaller index is first if all this is equal. Selection uses membership:
    audit these points on models other than ``shadows``, or pay for the selection
    (`many.shadow.selection_price`).

    Args:
        shadows: models for the selection, at least four of which did not fail. An attack may need
            more: LiRA needs two models with and two without each record in each half, which eight
            complementary models have.
        count: number of points.
        by: weight.
        attack: see `Attack`, such as the functions of `lightning_audit.attacks`; default LiRA
            online with one variance for all records.

    Returns:
        Indices of the records, the most vulnerable first, ``[count]``.

    Raises:
        ValueError: if an argument is out of its range, or fewer than ``count`` records were both in
            and out of models of each half.

    References:
        Zanella-Béguelin et al., "Bayesian Estimation of Differential Privacy", ICML 2023,
        arXiv:2206.05199, Algorithm 3, which scores all models by one attack.
    """
    number = _validate.positive_int("count", count, "such as 50")
    _validate.one_of("by", by, ("separation", "accuracy"))
    scores, membership = _cross_fitted(shadows, attack)
    separation = _separation(scores, membership)
    known = np.flatnonzero(np.isfinite(separation))
    if len(known) < number:
        raise BadArgument(
            f"count={number} is larger than the number of records that were both in and out of "
            f"models of each half, {len(known)}; give more shadow models, or fewer points."
        )
    keys: list[Floats] = [-separation[known]]
    if by == "accuracy":
        right = np.mean((scores > 0) == membership, axis=0)
        keys.append(-right[known])
    return known[np.lexsort(keys)][:number].astype(np.int64)  # the last key decides first


def _cross_fitted(shadows: Shadows, attack: Attack) -> tuple[Floats, NDArray[np.bool_]]:
    """Return the attack's scores of models that it was not fitted on, and their membership."""
    halves = [half.finished() for half in shadows.split(1, 1)]
    if min(map(len, halves)) < 2:
        raise BadArgument(
            f"shadows has {sum(map(len, halves))} models that did not fail; give at least four."
        )
    found = [
        attack(fitted.scores, fitted.membership, scored.scores)
        for fitted, scored in (halves, halves[::-1])
    ]
    return np.concatenate(found), np.concatenate([half.membership for half in halves[::-1]])


def _separation(scores: Floats, membership: NDArray[np.bool_]) -> Floats:
    """Return the weights, ``[records]``; NaN for a record without scores of either side."""
    moments = []
    for side in (membership, ~membership):
        with np.errstate(invalid="ignore", divide="ignore"):
            count = side.sum(axis=0)
            mean = np.where(side, scores, 0.0).sum(axis=0) / count
            moments.append((mean, np.where(side, (scores - mean) ** 2, 0.0).sum(axis=0) / count))
    (inside, spread_in), (outside, spread_out) = moments
    spread = np.sqrt(0.5 * (spread_in + spread_out))
    return np.asarray((inside - outside) / np.maximum(spread, 1e-12))
