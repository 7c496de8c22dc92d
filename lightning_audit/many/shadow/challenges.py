"""Attacks on challenge points of target models, and audits of a claim by them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lightning_audit import _validate
from lightning_audit._validate import BadArgument
from lightning_audit.attacks.lira_attack import lira
from lightning_audit.many.least_error import Claim, promise_of
from lightning_audit.many.looks import guess_coins, look_of
from lightning_audit.many.shadow.challenge_selection import Attack
from lightning_audit.many.shadow.selection_price import paid_significance
from lightning_audit.many.shadow.shadows import Shadows
from lightning_audit.many.training_audit import TrainingAudit, conclude
from lightning_audit.stats._arguments import Floats
from lightning_audit.stats._confusion import ConfusionCounts

__all__ = ["Challenges", "challenge_audit", "challenges_of"]


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
    scores = np.full((len(targets), len(chosen)), np.nan)
    begun = len(targets)
    for first, last in _groups(targets, fitted, refit_every):
        rows = np.arange(first, last)[~targets.failed[first:last]]
        known = _known(fitted, targets, 0 if refit_every is None else first)
        if refit_every is not None and _are_few(known):
            continue
        begun = min(begun, first)
        scores[rows] = _scored(attack, known, targets.scores[rows])[:, chosen]
    _refuse_scores(scores[begun:][~targets.failed[begun:]])
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


def _refuse_scores(scores: Floats) -> None:
    """Refuse what an attack returned for the targets that are left, ``[targets, points]``."""
    if not len(scores):
        raise BadArgument(
            "no target has two earlier models with and two without each record; give fitted= "
            "models, or more targets."
        )
    if not np.isfinite(scores).all():
        raise BadArgument(
            "attack returns scores that are not finite; fit it on models with and without each "
            "point."
        )


def _groups(
    targets: Shadows, fitted: Shadows | None, refit_every: int | None
) -> list[tuple[int, int]]:
    """Return first and last target of each group that one fit scores."""
    if refit_every is None:
        if fitted is None:
            raise BadArgument("fitted=None needs refit_every, such as refit_every=8.")
        return [(0, len(targets))]
    size = _validate.positive_int("refit_every", refit_every)
    if targets.pairs and size % 2:
        raise BadArgument(f"refit_every={size} must be even for complementary pairs.")
    return [(first, min(first + size, len(targets))) for first in range(0, len(targets), size)]


def _known(fitted: Shadows | None, targets: Shadows, before: int) -> Shadows:
    """Return the finished models that an attack may be fitted on."""
    earlier = targets.chosen(np.arange(before))
    known = earlier if fitted is None else fitted.joined(earlier)
    return known.finished()


def _are_few(known: Shadows) -> bool:
    """Return whether a record was in fewer than two models, or out of fewer than two."""
    inside = known.membership.sum(axis=0)
    return bool((np.minimum(inside, len(known) - inside) < 2).any())


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
