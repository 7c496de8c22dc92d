r"""Choice of an attack's threshold, and what the choice costs.

An attack guesses "in" if the score exceeds a threshold. A bound from the counts at one threshold
has its level for a threshold fixed beforehand. The threshold with the largest bound on the same
data does not give this level: at a nominal 5 % the bound misses in 4-17 % of the cases with
Clopper-Pearson limits, and in more than half of them with Bayesian bounds (by simulation). Each
choice is a small class that states whether its result is a valid bound, and `threshold_bound`
carries it out.

References:
    Zanella-Béguelin et al., "Bayesian estimation of differential privacy", ICML 2023,
    arXiv:2206.05199, and Nasr et al., "Tight auditing of differentially private machine learning",
    USENIX Security 2023, arXiv:2302.07956, take the maximum. Sources of the valid choices are with
    their classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from lightning_audit.stats._arguments import Floats, significance_level
from lightning_audit.stats._confusion import score_vector
from lightning_audit.stats.bounds._stairs import Stairs, Values, largest
from lightning_audit.stats.bounds.bands import Band, simultaneous_upper_limits
from lightning_audit.stats.bounds.counts import ConfusionCounts
from lightning_audit.stats.bounds.threshold_choices import Fixed as Fixed
from lightning_audit.stats.bounds.threshold_choices import Grid as Grid
from lightning_audit.stats.bounds.threshold_choices import Label as Label
from lightning_audit.stats.bounds.threshold_choices import Maximum as Maximum
from lightning_audit.stats.bounds.threshold_choices import MultiSplit as MultiSplit
from lightning_audit.stats.bounds.threshold_choices import Simultaneous as Simultaneous
from lightning_audit.stats.bounds.threshold_choices import Split as Split
from lightning_audit.stats.bounds.threshold_choices import ThresholdChoice as ThresholdChoice
from lightning_audit.stats.bounds.threshold_choices import assumptions_of as assumptions_of
from lightning_audit.stats.bounds.threshold_choices import words_of as words_of

__all__ = [
    "Fixed",
    "FromCounts",
    "FromRates",
    "Grid",
    "Maximum",
    "MultiSplit",
    "Simultaneous",
    "Split",
    "ThresholdBound",
    "ThresholdChoice",
    "assumptions_of",
    "candidate_thresholds",
    "threshold_bound",
    "words_of",
]

#: Function of counts at many thresholds and a significance that returns a lower bound at each.
FromCounts = Callable[[ConfusionCounts, float], Any]
#: Function of upper limits of type II and type I error rates that returns a bound at each, valid if
#: both rates are at most their limits.
FromRates = Callable[[Floats, Floats], Any]


@dataclass(frozen=True)
class ThresholdBound:
    """A lower bound, the threshold at which it was computed, and the counts there.

    Args:
        value: The lower bound.
        threshold: Threshold of the guess "in if the score exceeds it".
        counts: Error counts there, of the scores from which the bound was computed.
        valid: Whether the bound has its significance with this threshold choice.
    """

    value: float
    threshold: float
    counts: ConfusionCounts
    valid: bool


def threshold_bound(
    scores_in: ArrayLike,
    scores_out: ArrayLike,
    choice: ThresholdChoice,
    from_counts: FromCounts,
    significance: float,
    *,
    from_rates: FromRates | None = None,
    monotone: bool = False,
) -> ThresholdBound:
    r"""Return a lower bound from scores, with the threshold chosen as stated.

    If the bound of each single threshold fails with probability at most its significance, so does
    the result of every choice but `Maximum`, provided that the choice (thresholds, grid, fraction,
    seed) was made without looking at the scores. `Simultaneous` needs ``from_rates`` instead.

    .. math:: \text{Grid: } \max_{t \in \mathcal{T}} L(\text{counts}(t), \tfrac{s}{|\mathcal{T}|}),
        \qquad \text{Simultaneous: } \max_t L\big(\beta^+_{s/2}(t),\, \alpha^+_{s/2}(t)\big)

    Args:
        scores_in: Scores with the canary in, ``[n_in]``; infinite ones are allowed.
        scores_out: Scores with the canary out, ``[n_out]``, in the same unit.
        choice: The threshold choice.
        from_counts: Function of counts ``[m]`` and a significance; returns bounds, ``[m]``.
        significance: Probability in (0, 1) with which the bound may fail.
        from_rates: Function of upper limits of type II and type I rates, each ``[m]``; returns
            bounds, ``[m]``.
        monotone: Whether fewer errors of either kind never lower the method's bound. Then
            thresholds that cannot win are skipped, with the same result.

    Returns:
        The largest bound over the thresholds that the choice admits, at the smallest of them.

    Raises:
        ValueError: If scores are not vectors or hold nan, ``significance`` is not in (0, 1),
            ``from_rates`` is missing, or a method does not return one bound per threshold.
        TypeError: If ``choice`` is not one of the classes of `threshold_choices`.

    Example:
        >>> from lightning_audit.stats.bounds.gdp_counts import mu_clopper_pearson
        >>> scores = np.random.default_rng(0).standard_normal((2, 500)) + [[2], [0]]
        >>> bound = threshold_bound(*scores, Fixed(1.0), mu_clopper_pearson, 0.05)
        >>> round(bound.value, 2), int(bound.counts.fn), bound.valid
        (1.81, 85, True)
    """
    groups = score_vector("scores_in", scores_in), score_vector("scores_out", scores_out)
    level = significance_level(significance)
    match choice:
        case MultiSplit():
            return _middle(_every(groups), choice, lambda counts: from_counts(counts, level / 2))
        case Simultaneous():
            from_counts = _from_bands(from_rates, choice.band)
        case Grid():
            level /= len(choice.thresholds)
    stairs = _admitted(groups, choice, lambda counts: from_counts(counts, level), monotone)
    value, best = largest(stairs, lambda counts: from_counts(counts, level), monotone=monotone)
    counts = stairs.counts(best, best)
    return ThresholdBound(value, float(stairs.thresholds[best]), counts, choice.valid)


def _admitted(
    groups: tuple[Floats, Floats], choice: ThresholdChoice, values: Values, monotone: bool
) -> Stairs:
    """Return counts at the admitted thresholds, of the scores from which the bound is computed."""
    match choice:
        case Fixed():
            thresholds = np.array([choice.threshold], dtype=np.float64)
            return Stairs.of(*_sorted(groups), thresholds)
        case Grid():
            return Stairs.of(*_sorted(groups), np.array(choice.thresholds))
        case Split():
            first, rest = _split(groups, choice)
            every = _every(first)
            _, best = largest(every, values, monotone=monotone)
            return Stairs.of(*_sorted(rest), every.thresholds[best : best + 1])
        case Simultaneous() | Maximum():
            return _every(groups)
    raise TypeError(
        f"threshold choice {choice!r} must be Fixed, Grid, Split, Simultaneous, MultiSplit or "
        "Maximum."
    )


def _sorted(groups: tuple[Floats, Floats]) -> tuple[Floats, Floats]:
    return np.sort(groups[0]), np.sort(groups[1])


def _every(groups: tuple[Floats, Floats]) -> Stairs:
    """Return counts at all thresholds that differ in them."""
    inside, outside = _sorted(groups)
    return Stairs.of(inside, outside, _candidates(inside, outside))


def candidate_thresholds(scores_in: ArrayLike, scores_out: ArrayLike) -> Floats:
    """Return thresholds that give every possible pair of error counts of "in if above" once.

    They are midway between adjacent distinct scores of both groups together, with one below all of
    them and the largest score itself, above which there is none.

    Args:
        scores_in: Scores with the canary in, ``[n_in]``.
        scores_out: Scores with the canary out, ``[n_out]``.

    Returns:
        The thresholds in increasing order, one more than there are distinct scores; 0 if there is
        no score.

    Raises:
        ValueError: If scores are not vectors or hold nan.

    Example:
        >>> candidate_thresholds([1.0, 2.0, 2.0], [2.0, 4.0])[1:]
        array([1.5, 3. , 4. ])
    """
    return _candidates(score_vector("scores_in", scores_in), score_vector("scores_out", scores_out))


def _candidates(inside: Floats, outside: Floats) -> Floats:
    # A stable sort merges two sorted groups in one pass.
    values = np.sort(np.concatenate([inside, outside]), kind="stable")
    if not values.size:
        return np.zeros(1)
    values = values[np.append(True, values[1:] != values[:-1])]
    low, high = values[:-1], values[1:]
    with np.errstate(invalid="ignore", over="ignore"):
        below = np.nextafter(values[0], -np.inf)
        middle = 0.5 * low + 0.5 * high
        # Between adjacent floats or infinities there is no midpoint; the lower score itself
        # separates them, because "in" means strictly above.
        middle = np.where((low < middle) & (middle < high), middle, low)
    thresholds = np.concatenate([[below], middle, values[-1:]])
    # Nothing is below minus infinity: then the first two are equal.
    same = len(thresholds) > 1 and thresholds[0] == thresholds[1]
    return thresholds[1:] if same else thresholds


def _middle(stairs: Stairs, choice: MultiSplit, values: Values) -> ThresholdBound:
    """Return the bound that half of the splits reach."""
    rng = np.random.default_rng(choice.seed)
    found = []
    for _ in range(choice.splits):
        first = stairs.part(rng, choice.fraction)
        # The first part may choose in any way, so use the fast search even if not monotone.
        _, best = largest(first, values, monotone=True)
        # Of the thresholds with these counts, only the lowest does not depend on the other part.
        at = first.first_like(best)
        rest = stairs.without(first, at)
        found.append((float(values(rest)[0]), at, rest))
    found.sort(key=lambda split: split[0], reverse=True)
    value, at, rest = found[math.ceil(choice.splits / 2) - 1]
    counts = ConfusionCounts(rest.fn[0], rest.tp[0], rest.fp[0], rest.tn[0])
    return ThresholdBound(value, float(stairs.thresholds[at]), counts, choice.valid)


def _from_bands(from_rates: FromRates | None, band: Band) -> FromCounts:
    if from_rates is None:
        raise ValueError(
            "from_rates=None must be a function for Simultaneous(): the bands limit error "
            "rates, not counts; take Fixed, Grid or Split for a method without one."
        )

    def bound(counts: ConfusionCounts, significance: float) -> Any:
        fnr, fpr = (
            simultaneous_upper_limits(int(n.flat[0]), significance / 2, band)[errors]
            for n, errors in ((counts.n_in, counts.fn), (counts.n_out, counts.fp))
        )
        return from_rates(fnr, fpr)

    return bound


def _split(
    groups: tuple[Floats, Floats], choice: Split
) -> tuple[tuple[Floats, Floats], tuple[Floats, Floats]]:
    """Return the part that chooses the threshold, and the rest; the order of scores matters."""
    rng = np.random.default_rng(choice.seed)
    (first, rest), (other_first, other_rest) = (
        # A copy: numpy would shuffle an empty group in place, and scores are read-only.
        np.split(rng.permutation(scores.copy()), [round(choice.fraction * len(scores))])
        for scores in groups
    )
    return (first, other_first), (rest, other_rest)
