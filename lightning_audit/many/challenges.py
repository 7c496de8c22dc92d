r"""Challenge points: records that an attack distinguishes best, and audits of a claim by them.

**What it costs to report the worst of several challenge points, or of several folds.** The point
with the largest bound of n points is selected by what the bound uses. Each of these is valid; using
one set of trainings for both without paying is not, see docs/challenge-points.md.

- Apart: select by trainings that the bound does not use.
- Paid: bound each point with significance / n. A flawless attack then needs about
  :math:`\ln n / e` more trainings, where e is the least mean error rate of the claim.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import nn

from lightning_audit import _validate
from lightning_audit._validate import BadArgument
from lightning_audit.attacks import lira
from lightning_audit.many.looks import guess_coins, look_of
from lightning_audit.many.records import Loss, Records
from lightning_audit.many.shadows import Shadows
from lightning_audit.many.training_audit import TrainingAudit, conclude
from lightning_audit.many.vectorised import DPSGDMany
from lightning_audit.many.verdict import Claim, promise_of
from lightning_audit.stats._arguments import (
    ConfusionCounts,
    Floats,
    closed_unit,
    each,
    significance_level,
)
from lightning_audit.stats.power import flawless_guesses_at_end

# --- Selection of the records that an attack distinguishes best: challenge points.

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
    (`many.challenges`).

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


# --- What it costs to report the worst of several challenge points, or of several folds.


def paid_significance(significance: float, points: int) -> float:
    """Return the significance of each point's bound, if the largest of them is reported.

    The bounds of all points then hold together with probability ``1 - significance``, for any
    dependence between points (Bonferroni).

    Args:
        significance: Probability in (0, 1) with which the reported bound may fail.
        points: Number of points that the largest bound is selected from.

    Raises:
        ValueError: If an argument is out of its range.
    """
    level = significance_level(significance)
    return level / _validate.positive_int("points", points, "all that were looked at")


def worst_of(p_values: ArrayLike, points: int | None = None) -> float:
    """Return a p-value of the worst of several points: the smallest times their number.

    Args:
        p_values: P-value in [0, 1] of each point, ``[n]``; they may depend on each other.
        points: Number of points that were looked at, if some p-values are not given; None for n.

    Returns:
        The p-value, in [0, 1].

    Raises:
        ValueError: If there is no p-value, one is out of range, or ``points`` is smaller than n.

    Example:
        >>> worst_of([0.2, 0.001, 0.7]), worst_of([0.001], points=100)
        (0.003, 0.1)
    """
    values = _p_values(p_values)
    count = len(values) if points is None else _validate.positive_int("points", points)
    if count < len(values):
        raise ValueError(
            f"points={count} is smaller than the number of p_values, {len(values)}; give the "
            "number of all points that were looked at."
        )
    return min(1.0, count * float(values.min()))


def folds_p_value(p_values: ArrayLike) -> float:
    r"""Return a p-value of several folds, each with a p-value: at most twice their median.

    If the models of each fold are scored by an attack that was fitted on the other folds, the
    folds' p-values depend on each other. For any dependence

    .. math:: p = \min\Big(1, \frac{n}{k}\, p_{(k)}\Big), \qquad k = \lceil n / 2 \rceil

    is a p-value (Rüger's inequality).

    Args:
        p_values: P-value in [0, 1] of each fold by itself, ``[n]``.

    Returns:
        The p-value, in [0, 1].

    Raises:
        ValueError: If there is no p-value, or one is out of range.

    Example:
        >>> folds_p_value([0.01, 0.02, 0.04, 0.9])
        0.04

    References:
        Rüger, "Das maximale Signifikanzniveau des Tests: Lehne H0 ab, wenn k unter n gegebenen
        Tests zur Ablehnung führen", Metrika 25, 1978, doi:10.1007/BF02204362. Vovk and Wang,
        "Combining p-values via averaging", Biometrika 107, 2020, arXiv:1212.4966.
    """
    values = np.sort(_p_values(p_values))
    place = (len(values) + 1) // 2
    return min(1.0, len(values) / place * float(values[place - 1]))


def trainings_for_worst_of(least_error: float, significance: float, points: int) -> int:
    """Return how many guessed trainings a flawless attack needs at the worst of several points.

    The number of one look, fixed beforehand. Split trainings need twice that of one point: half of
    them select it. So paying is cheaper up to some number of points.

    Args:
        least_error: Least mean error rate that the claim allows, in (0, 1/2], see
            `many.verdict.promise_of`.
        significance: Probability in (0, 1) with which a true claim may be refuted.
        points: Number of points, paid for by `paid_significance`.

    Raises:
        ValueError: If an argument is out of its range.

    Example:
        Gaussian DP with the mu of (8, 1e-5)-DP, 1.666:

        >>> [trainings_for_worst_of(0.2024, 0.05, n) for n in (1, 10, 100, 1000)]
        [14, 24, 34, 44]
    """
    return flawless_guesses_at_end(least_error, paid_significance(significance, points))


def _p_values(p_values: ArrayLike) -> Floats:
    values = np.asarray(p_values, dtype=np.float64).ravel()
    if not values.size:
        raise ValueError("p_values is empty; give at least one.")
    return each(closed_unit, "p_values", values)


# --- Attacks on challenge points of target models, and audits of a claim by them.


@dataclass(frozen=True, eq=False)
class Challenges:
    """Attack scores of challenge points in target models.

    Args:
        scores: ``[models, points]``, above 0 if the attack guesses "in"; NaN in the rows of models
            whose training failed.
        membership: whether each point was in each model's data, ``[models, points]``.
        pairs: whether models 2i and 2i + 1 have complementary data.
    """

    scores: Floats
    membership: NDArray[np.bool_]
    pairs: bool = False

    def counts(self, *, by_point: bool = False) -> ConfusionCounts:
        """Return the outcomes of the guesses; all guesses in a failed training are wrong.

        Points of one model depend on each other, so the sum over models and points is not binomial:
        intervals of it assume independence. Use `one_a_model`; or give the counts of each point to
        `correlated_attack_posterior`, with the models a side as its cluster.

        Args:
            by_point: whether to return vectors, ``[points]``, instead of sums.
        """
        wrong = np.isnan(self.scores) | ((self.scores > 0) != self.membership)
        outcomes = (
            np.count_nonzero(side & kind, axis=0 if by_point else None)
            for side, kind in (
                (self.membership, wrong),
                (self.membership, ~wrong),
                (~self.membership, wrong),
                (~self.membership, ~wrong),
            )
        )
        return ConfusionCounts(*outcomes)

    def one_a_model(self, seed: int = 0) -> Challenges:
        """Return one challenge a model, which are independent given the points and the attack.

        Each model is challenged at a point drawn uniformly at random, and of a complementary pair
        only the first model. So experiments of the literature have independent challenges
        (Zanella-Béguelin et al., arXiv:2206.05199, section 4).

        Args:
            seed: of the points, >= 0.

        Returns:
            Challenges of one column, ``[models, 1]``.
        """
        rows = np.arange(0, len(self.scores), 2 if self.pairs else 1)
        points = np.random.default_rng(seed).integers(self.scores.shape[1], size=len(rows))
        return Challenges(self.scores[rows, points, None], self.membership[rows, points, None])


def challenges_of(
    targets: Shadows,
    points: ArrayLike,
    fitted: Shadows | None,
    attack: Attack = lira,
    *,
    refit_every: int | None = None,
) -> Challenges:
    """Attack points of target models, by an attack that was fitted on other models.

    Without ``refit_every`` the attack is fitted once, on ``fitted``. With it, the attack is fitted
    again for each group of this many targets, on ``fitted`` and on all earlier targets: each target
    is scored by what is known before it, which keeps bounds of `challenge_audit` valid. The first
    groups are left out, until each record was in two models and out of two.

    Args:
        targets: models that are attacked; not among those that selected the points.
        points: indices of records, ``[points]``.
        fitted: models to fit the attack on; None for earlier targets alone.
        attack: see `Attack`; default LiRA online with one variance for all records.
        refit_every: number of targets, even for complementary pairs; None to fit once.

    Raises:
        ValueError: if an argument is out of its range, a model is both a target and fitted on, or
            the attack returns something else than a finite score for each point.
    """
    chosen = _checked_points(targets, points, fitted)
    size = len(targets)
    if refit_every is not None:
        size = _validate.positive_int("refit_every", refit_every)
        if targets.pairs and size % 2:
            raise BadArgument(f"refit_every={size} must be even for complementary pairs.")
    elif fitted is None:
        raise BadArgument("fitted=None needs refit_every, such as refit_every=8.")
    scores = np.full((len(targets), len(chosen)), np.nan)
    begun = len(targets)
    for first in range(0, len(targets), size):
        earlier = targets.chosen(np.arange(first))
        known = (earlier if fitted is None else fitted.joined(earlier)).finished()
        inside = known.membership.sum(axis=0)
        if refit_every is not None and (np.minimum(inside, len(known) - inside) < 2).any():
            continue
        begun = min(begun, first)
        rows = first + np.flatnonzero(~targets.failed[first : first + size])
        scores[rows] = _scored(attack, known, targets.scores[rows])[:, chosen]
    if begun == len(targets):
        raise BadArgument(
            "no target has two earlier models with and two without each record; give fitted= "
            "models, or more targets."
        )
    if not np.isfinite(scores[begun:][~targets.failed[begun:]]).all():
        raise BadArgument(
            "attack returns scores that are not finite; fit it on models with and without each "
            "point."
        )
    return Challenges(scores[begun:], targets.membership[begun:, chosen], targets.pairs)


def challenge_audit(
    challenges: Challenges,
    claim: Claim,
    *,
    choose: Literal["all", "paid"] = "all",
    significance: float = 1e-3,
    bound_significance: float = 0.05,
    delta: float | None = None,
) -> TrainingAudit:
    """Return what the challenges of target models show of a claim.

    The coins are guessed as in `audit_training`, by thresholds that are learnt from earlier models.
    The points must be selected on other models (`challenge_points`) or without any; or all points
    that were looked at are given, and ``choose="paid"`` selects.

    - "all": the points are canaries of one training. They may depend on each other in any way:
      the share of right guesses of a model counts, not the number of guesses.
    - "paid": each point is audited by itself, with a significance divided by the number of points.
      The result is that of the point with the largest bound.

    Args:
        challenges: of models from ``shadow_models(..., pairs=False)``: the coins of complementary
            pairs are not independent. All models of the plan, failed ones included.
        claim: what one training claims of adding or removing a record.
        choose: see above.
        significance: probability in (0, 1) of a VIOLATION although the claim is true.
        bound_significance: probability in (0, 1) with which each bound may fail.
        delta: of the bounds; None for that of the claim, or 1e-5.

    Raises:
        ValueError: if the models are complementary pairs, or an argument is out of its range.
    """
    if challenges.pairs:
        raise BadArgument(
            "challenges are of complementary pairs: the coin of the second model is known from the "
            "first; train the targets by shadow_models(..., pairs=False), or take "
            "challenges_of(targets.firsts(), ...)."
        )
    _validate.one_of("choose", choose, ("all", "paid"))
    promise = promise_of(claim, delta=delta)
    failed = np.asarray(np.isnan(challenges.scores).any(axis=1))
    points = challenges.scores.shape[1]
    paid = points if choose == "paid" else 1
    level = paid_significance(significance, paid)
    bound_level = paid_significance(bound_significance, paid)

    column = slice(None)
    if choose == "paid":
        worst = _worst(challenges, failed, promise.least_error, level, bound_level)
        column = slice(worst, worst + 1)
    return conclude(
        challenges.scores[:, column],
        challenges.membership[:, column],
        failed,
        promise,
        planned=len(failed),
        significance=level,
        bound_significance=bound_level,
    )


def _worst(
    challenges: Challenges,
    failed: NDArray[np.bool_],
    least_error: float,
    level: float,
    bound_level: float,
) -> int:
    """Return the point that refutes the claim, or else has the least limit of its error rate."""

    def shown(point: int) -> tuple[bool, float]:
        column = slice(point, point + 1)
        scores, membership = challenges.scores[:, column], challenges.membership[:, column]
        guesses = guess_coins(scores, membership, failed)
        refuted = look_of(guesses, least_error, -math.log(level)).refuted
        return refuted, -guesses.error_upper(bound_level)

    return max(range(challenges.scores.shape[1]), key=shown)


def _checked_points(
    targets: Shadows, points: ArrayLike, fitted: Shadows | None
) -> NDArray[np.int64]:
    chosen = np.asarray(points)
    if chosen.ndim != 1 or not chosen.size or chosen.dtype.kind not in "iu":
        raise BadArgument("points must be indices of records, [points], and at least one.")
    if chosen.min() < 0 or chosen.max() >= targets.records:
        raise BadArgument(
            f"points has {chosen.min()} to {chosen.max()}, must be in [0, {targets.records})."
        )
    if fitted is not None and np.isin(targets.seeds, fitted.seeds).any():
        raise BadArgument(
            "targets and fitted share models; split the shadow models: selection, attack, targets "
            "= shadows.split(2, 4, 2)."
        )
    return chosen.astype(np.int64)


def _scored(attack: Attack, known: Shadows, scores: Floats) -> Floats:
    if not len(scores):
        return scores
    found = np.asarray(attack(known.scores, known.membership, scores), dtype=np.float64)
    if found.shape != scores.shape:
        raise BadArgument(
            f"attack returns the shape {found.shape}, must be {scores.shape}: a score for each "
            "target and record."
        )
    return found


# --- Worst-case initial parameters: a model that was trained on other records, without privacy.


def worst_case_start(
    make_model: Callable[[], nn.Module],
    auxiliary: Any,
    *,
    steps: int,
    learning_rate: float,
    batch_size: int = 64,
    loss: Loss | None = None,
    seed: int = 0,
) -> nn.Module:
    """Return a model from whose weights trainings start, so that they hide a canary less.

    After a training without privacy on other records, the gradients of ordinary records are small,
    and that of a canary is large (Annamalai and De Cristofaro, arXiv:2405.14106). The
    guarantee of DP-SGD holds for any initial parameters that do not depend on the audited records,
    so the bounds remain valid.

    Give the result as ``model`` to `DPSGDMany`, or ``lambda: start`` as ``make_model`` to
    `opacus_training`: both train copies of it.

    Args:
        make_model: function without arguments that returns a new model.
        auxiliary: records of the same distribution, none of which is in the audited data set, in
            any form that `DPSGDMany` takes.
        steps: number of steps of SGD with Poisson batches.
        learning_rate: > 0.
        batch_size: expected number of records of a batch; at most all of them.
        loss: function of (outputs, targets); None for the mean cross-entropy.
        seed: of initial weights and batches.

    Returns:
        The trained model.

    Raises:
        ValueError: if an argument is outside its range, or `DPSGDMany` refuses the model.
    """
    size = _validate.positive_int("batch_size", batch_size)
    rate = min(1.0, size / len(Records(auxiliary)))
    train = DPSGDMany(
        make_model,
        loss,
        noise_multiplier=0.0,
        max_grad_norm=math.inf,
        sample_rate=rate,
        expected_batch_size=rate * len(Records(auxiliary)),
        steps=steps,
        learning_rate=learning_rate,
    )
    return train(auxiliary, seed)
