"""Attacks that compare a record's score with a few numbers of its shadow scores."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from lightning_audit import _validate
from lightning_audit.attacks._shadow_scores import ShadowScores
from lightning_audit.stats._arguments import Floats
from lightning_audit.stats.membership.loss_attack import normal_ratio_p_value

__all__ = [
    "log_probability",
    "normal_ratio",
    "out_quantile",
    "score_difference",
    "score_threshold",
]


def log_probability(margins: ArrayLike) -> Floats:
    """Return the log probability of a record's class from its logit margin, of any shape.

    Args:
        margins: ``log p / (1 - p)``, as `LogitMargin` returns.

    Returns:
        log p, at most 0, in the shape of the argument; minus the cross-entropy loss.

    Example:
        >>> log_probability([0.0, 40.0]).round(3).tolist()
        [-0.693, -0.0]
    """
    return -np.logaddexp(0.0, -np.asarray(margins, dtype=np.float64))


def score_threshold(scores: ArrayLike, membership: ArrayLike, targets: ArrayLike) -> Floats:
    """Return the scores under the attacked models themselves: one threshold for all records.

    With the logit margin this is the attack by a threshold of the loss, because the loss is a
    decreasing function of the margin.

    Args:
        scores: As in `score_difference`; validated, not used.
        membership: As in `score_difference`; validated, not used.
        targets: As in `score_difference`.

    Returns:
        The scores, ``[targets, records]``, larger if the record seems to be a member.

    Raises:
        ValueError: If an argument has another form or a score is not finite.

    References:
        Yeom, Giacomelli, Fredrikson and Jha, "Privacy risk in machine learning: analyzing the
        connection to overfitting", CSF 2018, arXiv:1709.01604.
    """
    return ShadowScores.of(scores, membership).targets(targets).copy()


def score_difference(scores: ArrayLike, membership: ArrayLike, targets: ArrayLike) -> Floats:
    """Return how far scores under the attacked models exceed the mean without the record.

    Args:
        scores: Scores of the records under the shadow models, finite, ``[models, records]``.
        membership: Whether the shadow model was trained with the record, bool,
            ``[models, records]``.
        targets: Scores of the same records under the attacked models, which are not among the
            shadow models, finite, ``[targets, records]``.

    Returns:
        The differences, ``[targets, records]``, in the unit of the scores, larger if the record
        seems to be a member.

    Raises:
        ValueError: If an argument has another form, a score is not finite, or a record is in all
            models.

    References:
        Watson, Guo, Cormode and Sablayrolles, "On the importance of difficulty calibration in
        membership inference attacks", ICLR 2022, arXiv:2111.08440.
    """
    shadows = ShadowScores.of(scores, membership, least_out=1)
    return shadows.targets(targets) - shadows.mean("out")


def out_quantile(
    scores: ArrayLike, membership: ArrayLike, targets: ArrayLike, *, level: float = 0.9
) -> Floats:
    """Return how far scores under the attacked models exceed a quantile without the record.

    A record with a result above 0 is guessed to be a member. About ``1 - level`` of the records
    that are not members pass. The published attack predicts the quantile by a regression on the
    record's features, trained on records that are not members of the one attacked model. Here it is
    the empirical quantile of the record's own scores under the models without it, with linear
    interpolation between them: no model of quantiles is trained.

    Args:
        scores: As in `score_difference`.
        membership: As in `score_difference`.
        targets: As in `score_difference`.
        level: Level of the quantile in (0, 1), one minus the false positive rate aimed at.

    Returns:
        The differences, ``[targets, records]``, in the unit of the scores.

    Raises:
        ValueError: As in `score_difference`, or if a record is out of fewer than
            ``1 / min(level, 1 - level)`` models: their most extreme scores determine the quantile.

    References:
        Bertran, Tang, Roth, Kearns, Morgenstern and Wu, "Scalable membership inference attacks via
        quantile regression", NeurIPS 2023, arXiv:2307.03694.
    """
    at = _validate.open_unit("level", level, "such as 0.99 for a false positive rate of 0.01")
    # Rounding must not ask for one model more, as 1 / (1 - .9) would.
    least = int(np.ceil(1.0 / min(at, 1.0 - at) - 1e-9))
    shadows = ShadowScores.of(scores, membership, least_out=least)
    ordered = np.sort(np.where(shadows.membership, np.inf, shadows.scores), axis=0)
    place = at * (np.sum(~shadows.membership, axis=0) - 1)
    below = np.floor(place).astype(np.int64)
    records = np.arange(place.size)
    low, high = ordered[below, records], ordered[np.ceil(place).astype(np.int64), records]
    return np.asarray(shadows.targets(targets) - (low + (place - below) * (high - low)))


def normal_ratio(scores: ArrayLike, membership: ArrayLike, targets: ArrayLike) -> Floats:
    """Return minus the p-value of the likelihood-ratio test of two normal distributions.

    A record with a result of at least ``-alpha`` is guessed to be a member, at a false positive
    rate of alpha under the fitted distributions. The test is that of `lira` online with
    ``variance="own"``; p-values make records comparable by their false positive rate.

    Args:
        scores: As in `score_difference`, or losses: the test has no direction.
        membership: As in `score_difference`.
        targets: As in `score_difference`, likewise.

    Returns:
        Minus the p-values, ``[targets, records]``, in [-1, 0].

    Raises:
        ValueError: As in `score_difference`; if a record is in or out of fewer than 2 models, or
            its scores on a side are equal.

    References:
        Yıldırım, Kaya, Yıldırım and Savaş, "MCMC for Bayesian estimation of differential privacy
        from membership inference attacks", 2025, arXiv:2504.16683, algorithm 3 as
        `stats.membership.loss_attack` states it.
    """
    shadows = ShadowScores.of(scores, membership, least_in=2, least_out=2)
    fits = [
        f(side)
        for side in ("out", "in")
        for f in (shadows.mean, lambda s: shadows.spread(s, pooled=False))
    ]
    return -normal_ratio_p_value(shadows.targets(targets), *fits)
