"""MeasureMIA: error counts of the attack on each record, from models with and without it.

The counts are the input of the posteriors of epsilon in `stats.attack_strength`. Records share
models here: counts of one record are as modeled, counts of several are from the same trainings and
not independent of each other, which the posteriors assume.

References:
    Yıldırım, Kaya, Yıldırım and Savaş, "MCMC for Bayesian estimation of differential privacy from
    membership inference attacks", 2025, arXiv:2504.16683, algorithms 2 to 5.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from lightning_audit import _validate
from lightning_audit.attacks._shadow_scores import ShadowScores
from lightning_audit.stats._arguments import Floats
from lightning_audit.stats._confusion import ConfusionCounts
from lightning_audit.stats.membership.loss_attack import (
    Challenges,
    measure_attack,
    measure_cross_fed,
)

__all__ = ["cross_fed_mia", "measure_mia"]


def measure_mia(
    scores: ArrayLike, membership: ArrayLike, alpha: ArrayLike = 0.1, *, shadows: int = 8
) -> ConfusionCounts:
    """Count the errors of the two-normal test, each challenge with shadow models of its own.

    Of the models that a record is in, and of those that it is out of, the first
    ``n * (2 * shadows + 1)`` are used, where n is the same for all records: n attacked, ``shadows``
    for each of the n attacked models with the record, and as many for each without. The counts of
    a record are independent binomials, as `attack_strength_posterior` assumes, if the models are
    trained independently: memberships in complementary pairs are not, by a little.

    Args:
        scores: Scores or losses of the records under the models, finite, ``[models, records]``.
        membership: Whether the model was trained with the record, bool, ``[models, records]``.
        alpha: False positive rate in (0, 1) aimed at, a number or several, ``[k]``. Fix the one
            that is used before the scores are seen.
        shadows: Shadow models a side of each challenge, at least 2.

    Returns:
        The counts, ``[records]``, or ``[k, records]`` for several alpha.

    Raises:
        ValueError: If an argument has another form or range, a score is not finite, a record is in
            or out of fewer than ``2 * shadows + 1`` models, or shadow scores are equal.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> membership = np.arange(400)[:, None] % 2 == np.array([0, 1])
        >>> counts = measure_mia(rng.normal(2.0 * membership), membership)
        >>> counts.n_in.tolist(), counts.n_out.tolist()
        ([11, 11], [11, 11])
    """
    k = _validate.positive_int("shadows", shadows, "shadow models a side of each challenge")
    if k < 2:
        raise ValueError("shadows=1 must be at least 2: one score has no spread.")
    least = 2 * k + 1
    known = ShadowScores.of(scores, membership, least_in=least, least_out=least)
    n = _fewest(known) // least

    def challenges(own: Floats, rest: Floats, with_record: bool) -> Challenges:
        shadows_own = own[n : n * (k + 1)].reshape(n, k)
        shadows_rest = rest[n * (k + 1) : n * least].reshape(n, k)
        pair = (shadows_rest, shadows_own) if with_record else (shadows_own, shadows_rest)
        return Challenges(own[:n], *pair)

    return _of_each_record(
        known,
        lambda out, inside: measure_attack(
            challenges(out, inside, False), challenges(inside, out, True), alpha
        ),
    )


def cross_fed_mia(
    scores: ArrayLike, membership: ArrayLike, alpha: ArrayLike = 0.1
) -> tuple[ConfusionCounts, int]:
    """Count the errors of the two-normal test if each model is attacked by all the others.

    Of each side the first n models are used, where n is the smallest number of models that a record
    is in or out of. The decisions about a record are correlated: pass both results to
    `correlated_attack_posterior`, not to a binomial model.

    Args:
        scores: As in `measure_mia`.
        membership: As in `measure_mia`.
        alpha: As in `measure_mia`.

    Returns:
        (counts, ``[records]``, or ``[k, records]`` for several alpha; the cluster n).

    Raises:
        ValueError: As in `measure_mia`, for 3 models a side.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> membership = np.arange(200)[:, None] % 2 == np.array([0, 1])
        >>> counts, cluster = cross_fed_mia(rng.normal(2.0 * membership), membership)
        >>> cluster, counts.n_in.tolist()
        (100, [100, 100])
    """
    known = ShadowScores.of(scores, membership, least_in=3, least_out=3)
    n = _fewest(known)
    counts = _of_each_record(
        known, lambda out, inside: measure_cross_fed(out[:n], inside[:n], alpha)
    )
    return counts, n


def _fewest(known: ShadowScores) -> int:
    return min(int(known.models(side).sum(axis=0).min()) for side in ("in", "out"))


def _of_each_record(
    known: ShadowScores, measure: Callable[[Floats, Floats], ConfusionCounts]
) -> ConfusionCounts:
    """Return counts of each record, in the last axis, from scores without it and with it."""
    found = []
    for record, (column, inside) in enumerate(zip(known.scores.T, known.membership.T, strict=True)):
        try:
            found.append(measure(column[~inside], column[inside]))
        except ValueError as error:
            raise ValueError(f"record {record}: {error}") from error
    return ConfusionCounts(
        *(np.stack([getattr(c, name) for c in found], axis=-1) for name in ("fn", "tp", "fp", "tn"))
    )
