r"""How the threshold of an attack is chosen, and what the choice costs.

An attack guesses "in" where the score exceeds a threshold. A bound from the counts at one threshold
has its level for a threshold fixed beforehand. Taking the threshold with the largest bound on the
same data does not: at a nominal 5 % it misses in 4-17 % of the cases with Clopper-Pearson limits,
and in more than half of them with Bayesian bounds. Here every way to choose is a small class that
says whether its result is a valid bound, and `threshold_bound` carries it out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lightning_audit import _validate
from lightning_audit.stats.bands import Band, simultaneous_upper_limits
from lightning_audit.stats.counts import ConfusionCounts

__all__ = [
    "Fixed",
    "FromCounts",
    "FromRates",
    "Grid",
    "Maximum",
    "Simultaneous",
    "Split",
    "ThresholdBound",
    "ThresholdChoice",
    "candidate_thresholds",
    "threshold_bound",
]

Floats = NDArray[np.float64]
Label = Literal["fixed", "searched"]

#: From counts at many thresholds and a significance to a lower bound at each.
FromCounts = Callable[[ConfusionCounts, float], Any]
#: From upper limits of type II and type I error rates to the bound that they imply at each.
FromRates = Callable[[Floats, Floats], Any]


@dataclass(frozen=True)
class Fixed:
    """One threshold, fixed before the scores are seen: nothing is paid for.

    Args:
        threshold: The threshold, a number that is not nan.

    Raises:
        ValueError: If ``threshold`` is nan.
    """

    threshold: float
    label: ClassVar[Label] = "fixed"
    valid: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _numbers("threshold", self.threshold)


@dataclass(frozen=True)
class Grid:
    """The best of m thresholds fixed before the scores are seen, each at significance / m.

    Args:
        thresholds: The thresholds, at least one; repeated ones count once.

    Raises:
        ValueError: If there is no threshold, or one is nan.

    References:
        Bonferroni's inequality.
    """

    thresholds: tuple[float, ...]
    label: ClassVar[Label] = "searched"
    valid: ClassVar[bool] = True

    def __init__(self, thresholds: ArrayLike) -> None:
        distinct = np.unique(_numbers("thresholds", thresholds))
        if not distinct.size:
            raise ValueError("thresholds=() must hold at least one number; or use Maximum().")
        object.__setattr__(self, "thresholds", tuple(distinct.tolist()))


@dataclass(frozen=True)
class Split:
    """The best threshold of one part of the scores, with the bound from the other part.

    Args:
        fraction: Share in (0, 1) of either group's scores by which the threshold is chosen.
        seed: Seed of the random split, to be fixed beforehand like the rest: trying several seeds
            is another search.

    Raises:
        ValueError: If ``fraction`` is not in (0, 1) or ``seed`` is no whole number >= 0.
    """

    fraction: float = 0.5
    seed: int = 0
    label: ClassVar[Label] = "searched"
    valid: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _validate.open_unit("fraction", self.fraction, "half and half is usual")
        if self.seed != 0:
            _validate.positive_int("seed", self.seed, "or 0")


@dataclass(frozen=True)
class Simultaneous:
    """The best of all thresholds, with bands that hold for both error rates everywhere.

    Half of the significance goes to each error rate. No threshold needs to be named beforehand.

    Args:
        band: "berk_jones", narrow where an error rate is small, or "dkw", of one width everywhere.

    Raises:
        ValueError: If ``band`` is another one.
    """

    band: Band = "berk_jones"
    label: ClassVar[Label] = "searched"
    valid: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _validate.one_of("band", self.band, ("berk_jones", "dkw"))


@dataclass(frozen=True)
class Maximum:
    """The best of all thresholds on the same scores, unpaid for: usual in papers, and not valid.

    The true value lies below the result more often than the significance says, and the more so the
    more scores there are. For comparison with published numbers only.

    References:
        Zanella-Béguelin et al., "Bayesian estimation of differential privacy", ICML 2023. Nasr
        et al., "Tight auditing of differentially private machine learning", USENIX Security 2023.
    """

    label: ClassVar[Label] = "searched"
    valid: ClassVar[bool] = False


ThresholdChoice = Fixed | Grid | Split | Simultaneous | Maximum


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
        >>> from lightning_audit.stats.intervals import clopper_pearson_upper
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
    inside, outside = _scores("scores_in", scores_in), _scores("scores_out", scores_out)
    level = _validate.open_unit(
        "significance", significance, "it is the probability with which the bound may fail"
    )
    groups = inside, outside
    match choice:
        case Fixed():
            thresholds = np.array([choice.threshold], dtype=np.float64)
        case Grid():
            thresholds = np.array(choice.thresholds)
            level /= len(thresholds)
        case Split():
            chosen, groups = _split(inside, outside, choice)
            best = _best(_candidates(*chosen), *chosen, from_counts, level, choice)
            thresholds = np.array([best.threshold])
        case Simultaneous():
            if from_rates is None:
                raise ValueError(
                    "from_rates=None must be a function for Simultaneous(): the bands limit error "
                    "rates, not counts; take Fixed, Grid or Split for a method without one."
                )
            from_counts = _from_bands(from_rates, choice.band)
            thresholds = _candidates(inside, outside)
        case Maximum():
            thresholds = _candidates(inside, outside)
        case _:
            raise TypeError(
                f"choice={choice!r} must be Fixed, Grid, Split, Simultaneous or Maximum."
            )
    return _best(thresholds, *groups, from_counts, level, choice)


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
    return _candidates(_scores("scores_in", scores_in), _scores("scores_out", scores_out))


def _candidates(inside: Floats, outside: Floats) -> Floats:
    values = np.unique(np.concatenate([inside, outside]))
    if not values.size:
        return np.zeros(1)
    low, high = values[:-1], values[1:]
    with np.errstate(invalid="ignore", over="ignore"):
        below = np.nextafter(values[0], -np.inf)
        middle = 0.5 * low + 0.5 * high
        # Between neighbouring floats or infinities there is no number halfway; the lower score
        # itself separates them, because "in" means strictly above.
        middle = np.where((low < middle) & (middle < high), middle, low)
    # Below minus infinity there is nothing: then two of these are the same.
    return np.unique(np.concatenate([[below], middle, values[-1:]]))


def _best(
    thresholds: Floats,
    inside: Floats,
    outside: Floats,
    from_counts: FromCounts,
    significance: float,
    choice: ThresholdChoice,
) -> ThresholdBound:
    counts = ConfusionCounts.from_scores(inside, outside, thresholds)
    values = np.asarray(from_counts(counts, significance), dtype=np.float64)
    if values.shape != thresholds.shape or np.any(np.isnan(values)):
        raise ValueError(
            f"the method gave {values!r} for {len(thresholds)} thresholds, must give one number "
            "each; let it map counts of shape [m] to bounds of shape [m]."
        )
    i = int(np.argmax(values))
    there = ConfusionCounts(counts.fn[i], counts.tp[i], counts.fp[i], counts.tn[i])
    return ThresholdBound(float(values[i]), float(thresholds[i]), there, choice.valid)


def _from_bands(from_rates: FromRates, band: Band) -> FromCounts:
    def bound(counts: ConfusionCounts, significance: float) -> Any:
        fnr, fpr = (
            simultaneous_upper_limits(int(n.flat[0]), significance / 2, band)[errors]
            for n, errors in ((counts.n_in, counts.fn), (counts.n_out, counts.fp))
        )
        return from_rates(fnr, fpr)

    return bound


def _split(
    inside: Floats, outside: Floats, choice: Split
) -> tuple[tuple[Floats, Floats], tuple[Floats, Floats]]:
    rng = np.random.default_rng(choice.seed)
    (first, rest), (other_first, other_rest) = (
        np.split(rng.permutation(scores), [round(choice.fraction * len(scores))])
        for scores in (inside, outside)
    )
    return (first, other_first), (rest, other_rest)


def _scores(name: str, scores: ArrayLike) -> Floats:
    array = _numbers(name, scores)
    if array.ndim != 1:
        raise ValueError(f"{name} has shape {array.shape}, must be [n]; ravel it.")
    return array


def _numbers(name: str, values: ArrayLike) -> Floats:
    array = np.asarray(values, dtype=np.float64)
    if np.any(np.isnan(array)):
        raise ValueError(f"{name} holds nan, must hold numbers; a missing score is no score.")
    return array
