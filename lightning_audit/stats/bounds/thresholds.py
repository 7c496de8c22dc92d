r"""How the threshold of an attack is chosen, and what the choice costs.

An attack guesses "in" where the score exceeds a threshold. A bound from the counts at one threshold
has its level for a threshold fixed beforehand. Taking the threshold with the largest bound on the
same data does not: at a nominal 5 % it misses in 4-17 % of the cases with Clopper-Pearson limits,
and in more than half of them with Bayesian bounds. Here every way to choose is a small class that
says whether its result is a valid bound, and `threshold_bound` carries it out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
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
    "candidate_thresholds",
    "threshold_bound",
    "words_of",
]


#: From counts at many thresholds and a significance to a lower bound at each.
FromCounts = Callable[[ConfusionCounts, float], Any]
#: From upper limits of type II and type I error rates to the bound that they imply at each.
FromRates = Callable[[Floats, Floats], Any]


@dataclass(frozen=True)
class ThresholdBound:
    """A lower bound, the threshold that it was read at, and the counts there.

    Args:
        value: The lower bound.
        threshold: Threshold of the guess "in if the score exceeds it".
        counts: Error counts there, of the scores that the bound was computed from.
        valid: Whether the significance holds with the way in which the threshold was chosen.
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
    r"""Lower bound from scores, with the threshold chosen in a stated way.

    If ``from_counts`` gives at each single threshold a bound that fails with probability at most
    its significance, so does the result of every choice but `Maximum`, provided that the choice
    (thresholds, grid, fraction, seed) was made without a look at the scores. `Simultaneous` needs
    ``from_rates`` instead, and only that: a bound that holds whenever both error rates are at most
    the given limits.

    .. math:: \text{Grid: } \max_{t \in \mathcal{T}} L(\text{counts}(t), \tfrac{s}{|\mathcal{T}|}),
        \qquad \text{Simultaneous: } \max_t L\big(\beta^+_{s/2}(t),\, \alpha^+_{s/2}(t)\big)

    Args:
        scores_in: Scores with the canary in, ``[n_in]``; infinite ones are allowed.
        scores_out: Scores with the canary out, ``[n_out]``; the numbers may differ.
        choice: How the threshold is chosen.
        from_counts: From `ConfusionCounts` of shape ``[m]`` and a significance to lower bounds
            ``[m]``; each is for its own threshold alone.
        significance: Probability in (0, 1) with which the bound may fail.
        from_rates: From upper limits of the type II error rates (fnr) and the type I error rates
            (fpr), each ``[m]``, to lower bounds ``[m]``.
        monotone: Whether fewer errors of either kind never make the method's bound smaller. Then
            thresholds that cannot win are left out, and the result is the same.

    Returns:
        The largest bound of the thresholds that the choice admits; of equal ones, that of the
        smallest threshold.

    Raises:
        ValueError: If scores are not one-dimensional or hold nan, ``significance`` is not in
            (0, 1), ``from_rates`` is missing for `Simultaneous`, or a method does not give one
            bound a threshold.
        TypeError: If ``choice`` is none of the classes of this module.

    Example:
        >>> from scipy import special
        >>> from lightning_audit.stats.bounds.intervals import clopper_pearson_upper
        >>> def mu_of_rates(fnr_upper, fpr_upper):
        ...     return np.maximum(-special.ndtri(fnr_upper) - special.ndtri(fpr_upper), 0)
        >>> def mu_of_counts(counts, significance):
        ...     fnr = clopper_pearson_upper(counts.fn, counts.n_in, significance / 2)
        ...     return mu_of_rates(fnr, clopper_pearson_upper(counts.fp, counts.n_out,
        ...                                                   significance / 2))
        >>> rng = np.random.default_rng(0)
        >>> scores = 2 + rng.standard_normal(500), rng.standard_normal(500)
        >>> bound = threshold_bound(*scores, Fixed(1.0), mu_of_counts, 0.05)
        >>> round(bound.value, 2), int(bound.counts.fn), bound.valid
        (1.81, 85, True)
        >>> bound = threshold_bound(*scores, Simultaneous(), mu_of_counts, 0.05,
        ...                         from_rates=mu_of_rates)
        >>> 1.4 < bound.value < 2, bound.valid
        (True, True)

    References:
        Massart, "The tight constant in the Dvoretzky-Kiefer-Wolfowitz inequality", Annals of
        Probability 18, 1990. Berk and Jones, "Goodness-of-fit test statistics that dominate the
        Kolmogorov statistics", Z. Wahrscheinlichkeitstheorie 47, 1979.
    """
    inside = np.sort(score_vector("scores_in", scores_in))
    outside = np.sort(score_vector("scores_out", scores_out))
    level = significance_level(significance)
    search = partial(largest, monotone=monotone)
    match choice:
        case Fixed():
            stairs = Stairs.of(inside, outside, np.array([choice.threshold], dtype=np.float64))
        case Grid():
            stairs = Stairs.of(inside, outside, np.array(choice.thresholds))
            level /= len(choice.thresholds)
        case Split():
            # The order of the scores is part of the draw.
            first, rest = _split(scores_in, scores_out, choice)
            every = Stairs.of(*first, _candidates(*first))
            _, best = search(every, lambda counts: from_counts(counts, level))
            stairs = Stairs.of(*rest, every.thresholds[best : best + 1])
        case MultiSplit():
            stairs = Stairs.of(inside, outside, _candidates(inside, outside))
            return _middle(stairs, choice, lambda counts: from_counts(counts, level / 2))
        case Simultaneous():
            if from_rates is None:
                raise ValueError(
                    "from_rates=None must be a function for Simultaneous(): the bands limit error "
                    "rates, not counts; take Fixed, Grid or Split for a method without one."
                )
            from_counts = _from_bands(from_rates, choice.band)
            stairs = Stairs.of(inside, outside, _candidates(inside, outside))
        case Maximum():
            stairs = Stairs.of(inside, outside, _candidates(inside, outside))
        case _:
            raise TypeError(
                f"threshold choice {choice!r} must be Fixed, Grid, Split, Simultaneous, MultiSplit "
                "or Maximum."
            )
    value, best = search(stairs, lambda counts: from_counts(counts, level))
    counts = stairs.counts(best, best)
    return ThresholdBound(value, float(stairs.thresholds[best]), counts, choice.valid)


def candidate_thresholds(scores_in: ArrayLike, scores_out: ArrayLike) -> Floats:
    """Thresholds that give every pair of error counts which "in if above" can give, each once.

    They lie halfway between neighbouring distinct scores of both groups together, with one below
    all of them and the largest score itself, above which there is none.

    Args:
        scores_in: Scores with the canary in, ``[n_in]``.
        scores_out: Scores with the canary out, ``[n_out]``.

    Returns:
        The thresholds in increasing order, one more than there are distinct scores; 0 if there is
        no score.

    Raises:
        ValueError: If scores are not one-dimensional or hold nan.

    Example:
        >>> candidate_thresholds([1.0, 2.0, 2.0], [2.0, 4.0])[1:]
        array([1.5, 3. , 4. ])
    """
    return _candidates(score_vector("scores_in", scores_in), score_vector("scores_out", scores_out))


def _candidates(inside: Floats, outside: Floats) -> Floats:
    # Stable, which merges two sorted groups in one pass.
    values = np.sort(np.concatenate([inside, outside]), kind="stable")
    if not values.size:
        return np.zeros(1)
    values = values[np.append(True, values[1:] != values[:-1])]
    low, high = values[:-1], values[1:]
    with np.errstate(invalid="ignore", over="ignore"):
        below = np.nextafter(values[0], -np.inf)
        middle = 0.5 * low + 0.5 * high
        # Between neighbouring floats or infinities there is no number halfway; the lower score
        # itself separates them, because "in" means strictly above.
        middle = np.where((low < middle) & (middle < high), middle, low)
    thresholds = np.concatenate([[below], middle, values[-1:]])
    # Below minus infinity there is nothing: then the first two are the same.
    same = len(thresholds) > 1 and thresholds[0] == thresholds[1]
    return thresholds[1:] if same else thresholds


def _middle(stairs: Stairs, choice: MultiSplit, values: Values) -> ThresholdBound:
    """The bound that half of the splits reach."""
    rng = np.random.default_rng(choice.seed)
    found = []
    for _ in range(choice.splits):
        first = stairs.part(rng, choice.fraction)
        # The first part may choose in any way: one that is quick where the method is not monotone.
        _, best = largest(first, values, monotone=True)
        # Of the thresholds with its counts, only the lowest does not depend on the other part.
        at = first.first_like(best)
        rest = stairs.without(first, at)
        found.append((float(values(rest)[0]), at, rest))
    found.sort(key=lambda split: split[0], reverse=True)
    value, at, rest = found[math.ceil(choice.splits / 2) - 1]
    return ThresholdBound(value, float(stairs.thresholds[at]), _single(rest), choice.valid)


def _single(counts: ConfusionCounts) -> ConfusionCounts:
    return ConfusionCounts(counts.fn[0], counts.tp[0], counts.fp[0], counts.tn[0])


def _from_bands(from_rates: FromRates, band: Band) -> FromCounts:
    def bound(counts: ConfusionCounts, significance: float) -> Any:
        fnr, fpr = (
            simultaneous_upper_limits(int(n.flat[0]), significance / 2, band)[errors]
            for n, errors in ((counts.n_in, counts.fn), (counts.n_out, counts.fp))
        )
        return from_rates(fnr, fpr)

    return bound


def _split(
    scores_in: ArrayLike, scores_out: ArrayLike, choice: Split
) -> tuple[tuple[Floats, Floats], tuple[Floats, Floats]]:
    rng = np.random.default_rng(choice.seed)
    (first, rest), (other_first, other_rest) = (
        map(
            np.sort,
            np.split(rng.permutation(np.array(scores)), [round(choice.fraction * len(scores))]),
        )
        for scores in (
            score_vector("scores_in", scores_in),
            score_vector("scores_out", scores_out),
        )
    )
    return (first, other_first), (rest, other_rest)
