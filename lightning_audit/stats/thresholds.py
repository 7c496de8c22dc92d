"""Thresholds of an attack: its errors at all of them, and the price of the choice.

**Choice of an attack's threshold, and what the choice costs.** An attack guesses "in" if the score
exceeds a threshold. A bound from the counts at one threshold has its level for a threshold fixed
beforehand. The threshold with the largest bound on the same data does not give this level: at a
nominal 5 % the bound misses in 4-17 % of the cases with Clopper-Pearson limits, and in more than
half of them with Bayesian bounds (by simulation). Each choice is a small class that states whether
its result is a valid bound, and `threshold_bound` carries it out.

References:
    Zanella-Béguelin et al., "Bayesian estimation of differential privacy", ICML 2023,
    arXiv:2206.05199, and Nasr et al., "Tight auditing of differentially private machine learning",
    USENIX Security 2023, arXiv:2302.07956, take the maximum. Sources of the valid choices are with
    their classes.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, ClassVar, Literal

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray
from scipy import special

from lightning_audit import _validate
from lightning_audit.stats._arguments import (
    ConfusionCounts,
    Floats,
    numbers,
    score_vector,
    significance_level,
)
from lightning_audit.stats.binomial import clopper_pearson_upper, stirling_error

# --- Error counts at every threshold, and the search for the threshold with the largest bound.

Whole = NDArray[np.int64]
#: Function from counts to a bound for each.
Values = Callable[[ConfusionCounts], Any]

# Up to this number of thresholds, evaluating all is cheaper than pruning; number of blocks with
# which the search begins.
_FEW, _BLOCKS = 1024, 256


@dataclass(frozen=True)
class Stairs:
    """Error counts at increasing thresholds.

    Args:
        thresholds: The thresholds, ``[k]``.
        fn: Scores "in" up to each, ``[k]``, non-decreasing.
        tn: Scores "out" up to each, ``[k]``, non-decreasing.
        n_in: Number of scores "in".
        n_out: Number of scores "out".
        chosen: For the scores "in" and for those "out": how many of the first k, for each k, are in
            the counted part, ``[n + 1]``; None if all are.
    """

    thresholds: Floats
    fn: Whole
    tn: Whole
    n_in: int
    n_out: int
    chosen: tuple[Whole, Whole] | None = None

    @classmethod
    def of(cls, inside: Floats, outside: Floats, thresholds: Floats) -> Stairs:
        """Count scores at thresholds."""
        fn, tn = (np.searchsorted(np.sort(s), thresholds, "right") for s in (inside, outside))
        return cls(thresholds, fn, tn, len(inside), len(outside))

    def counts(self, low: Any, high: Any) -> ConfusionCounts:
        """Return type II errors at index ``low`` with type I errors at index ``high``."""
        fn, tn = self._up_to(low)[0], self._up_to(high)[1]
        return ConfusionCounts(fn=fn, tp=self.n_in - fn, fp=self.n_out - tn, tn=tn)

    def _up_to(self, index: Any) -> tuple[Any, Any]:
        fn, tn = self.fn[index], self.tn[index]
        return (fn, tn) if self.chosen is None else (self.chosen[0][fn], self.chosen[1][tn])

    def part(self, rng: np.random.Generator, fraction: float) -> Stairs:
        """Return the counts of a random fraction of the scores of each group."""
        sizes, chosen = [], []
        for n in (self.n_in, self.n_out):
            sizes.append(round(fraction * n))
            among = np.zeros(n + 1, dtype=np.int64)
            if n:
                among[1 + rng.choice(n, sizes[-1], replace=False, shuffle=False)] = 1
            chosen.append(among.cumsum())
        return replace(self, n_in=sizes[0], n_out=sizes[1], chosen=(chosen[0], chosen[1]))

    def without(self, part: Stairs, index: int) -> ConfusionCounts:
        """Return the counts at one threshold of the scores outside the part, ``[1]``."""
        every, some = (stairs.counts([index], [index]).cells for stairs in (self, part))
        return ConfusionCounts(*map(np.subtract, every, some))

    def first_like(self, index: int) -> int:
        """Return the smallest index with the same counts."""

        def below(i: int) -> int:
            return int(sum(self._up_to(i)))

        return bisect.bisect_left(range(len(self.thresholds)), below(index), key=below)


def largest(stairs: Stairs, values: Values, *, monotone: bool) -> tuple[float, int]:
    """Return the largest bound and the first index that has it.

    If fewer errors never lower the bound, no threshold of a block exceeds the bound of the block's
    fewest errors of either kind: blocks below the best so far are pruned.
    """
    k = len(stairs.thresholds)
    if not monotone or k <= _FEW:
        found = _evaluated(values, stairs, np.arange(k), np.arange(k))
        best = int(np.argmax(found))
        return float(found[best]), best
    tried = np.unique(np.linspace(0, k - 1, _BLOCKS + 1).astype(np.int64))
    found = _evaluated(values, stairs, tried, tried)
    best, value = int(tried[np.argmax(found)]), float(np.max(found))
    low, high = tried[:-1] + 1, tried[1:] - 1  # first and last index of each block
    while np.any(some := low <= high):
        low, high = low[some], high[some]
        limit = _evaluated(values, stairs, low, high)
        alive = (limit > value) | ((limit == value) & (low < best))
        low, high = low[alive], high[alive]
        if not len(low):
            break
        middle = (low + high) // 2
        found = _evaluated(values, stairs, middle, middle)
        i = int(np.argmax(found))
        if found[i] > value or (found[i] == value and middle[i] < best):
            value, best = float(found[i]), int(middle[i])
        low, high = np.concatenate([low, middle + 1]), np.concatenate([middle - 1, high])
        order = np.argsort(low)
        low, high = low[order], high[order]
    return value, best


def _evaluated(values: Values, stairs: Stairs, low: Whole, high: Whole) -> Floats:
    found = np.asarray(values(stairs.counts(low, high)), dtype=np.float64)
    if found.shape != low.shape or np.any(np.isnan(found)):
        raise ValueError(
            f"the method gave {found!r} for {len(low)} thresholds, must give one number "
            "each; let it map counts of shape [m] to bounds of shape [m]."
        )
    return found


# --- Simultaneous confidence bands: upper limits of an error rate at all thresholds at once.

Band = Literal["berk_jones", "dkw"]

_ADVICE = "it is the probability with which the band may fail anywhere"
# Poisson counts are followed within this many standard deviations, and a few more for small means:
# the truncated probability is below 1e-20.
_REACH, _EXTRA = 10.0, 30
# The crossing probability is one minus a probability with an error of at most 1e-12.
_SMALLEST = 1e-8
# Observations up to which the Berk-Jones level is computed (one second), and the spacing of the
# ranks that are compared for more observations, in standard deviations of a rank.
_LARGEST, _SPACING = 10_000, 0.5


@lru_cache(maxsize=256)
def berk_jones_level(n: int, significance: float) -> float:
    r"""Return the level at which Clopper-Pearson upper limits hold at all thresholds at once.

    For n independent observations of any distribution F, with probability at least ``1 -
    significance`` (exactly that if F is continuous), F is at no threshold above the Clopper-Pearson
    upper limit of its count at the returned level. This inverts the one-sided Berk-Jones test.

    .. math:: \gamma_n = \sup\{\gamma : \Pr[U_{(i)} \le b_i(\gamma),\ i = 1 \dots n]
        \ge 1 - \text{significance}\}, \qquad b_i = I^{-1}_{1 - \gamma}(i,\, n - i + 1)

    with U_(i) the order statistics of n uniform numbers. The probability is that of a Poisson
    process staying above a staircase, given its total, computed step by step in O(n^1.5). It takes
    about 0.02 s for n = 500 and 0.4 s for n = 5000; results are cached.

    Args:
        n: Number of observations, >= 1.
        significance: Probability in [1e-8, 1) with which the band may fail.

    Returns:
        The level in (0, significance], to a relative error of 1e-8 or 1e-12 / significance,
        whichever is larger.

    Raises:
        ValueError: If ``n`` is not a whole number >= 1 or ``significance`` is not in [1e-8, 1).

    Example:
        >>> f"{berk_jones_level(100, 0.025):.3e}"
        '1.094e-03'
        >>> round(berk_jones_level(1, 0.05), 10)
        0.05

    References:
        Berk and Jones, "Goodness-of-fit test statistics that dominate the Kolmogorov statistics",
        Z. Wahrscheinlichkeitstheorie 47, 1979, doi:10.1007/BF00533250. Moscovich and Nadler, "Fast
        calculation of boundary crossing probabilities for Poisson processes", Statistics and
        Probability Letters 123, 2017, arXiv:1503.04363.
    """
    n = _validate.positive_int("n", n)
    significance = _validate.open_unit("significance", significance, _ADVICE)
    if significance < _SMALLEST:
        raise ValueError(
            f"significance={significance!r} must be in [{_SMALLEST}, 1) for a Berk-Jones band; "
            "use the DKW band for smaller ones."
        )
    if n == 1:
        return significance

    def excess(log_level: float) -> float:
        return float(np.log(_crossing(n, np.exp(log_level)) / significance))

    # Crossing somewhere is at least as likely as at one rank, and at most n times as likely.
    low, high = np.log(significance / n), np.log(significance)
    return float(np.exp(scipy.optimize.brentq(excess, low, high, xtol=1e-9, rtol=1e-12)))


def dkw_half_width(n: int, significance: float) -> float:
    r"""Return the half width of the one-sided Dvoretzky-Kiefer-Wolfowitz band.

    For n independent observations of any distribution F, with probability at least ``1 -
    significance``, F exceeds its empirical value at no threshold by more than the half width.

    .. math:: w = \sqrt{\ln(1 / \text{significance}) / (2 n)}

    Args:
        n: Number of observations, >= 1.
        significance: Probability in (0, 1/2] with which the band may fail; above 1/2 the
            inequality with constant one is false.

    Returns:
        The half width > 0, in units of probability.

    Raises:
        ValueError: If ``n`` is not a whole number >= 1 or ``significance`` is not in (0, 1/2].

    Example:
        >>> round(dkw_half_width(1000, 0.025), 6)
        0.042947

    References:
        Massart, "The tight constant in the Dvoretzky-Kiefer-Wolfowitz inequality", Annals of
        Probability 18, 1990, doi:10.1214/aop/1176990746.
    """
    n = _validate.positive_int("n", n)
    if _validate.open_unit("significance", significance, _ADVICE) > 0.5:
        raise ValueError(
            f"significance={significance!r} must be in (0, 1/2] for a one-sided DKW band; "
            "use the Berk-Jones band for larger ones."
        )
    return float(np.sqrt(-np.log(significance) / (2 * n)))


@lru_cache(maxsize=64)
def simultaneous_upper_limits(n: int, significance: float, band: Band) -> Floats:
    """Return upper limits of an error rate by its count, valid at all thresholds at once.

    With probability at least ``1 - significance`` the error rate at *every* threshold is at most
    the limit for its number of errors, so the threshold may be chosen afterwards.

    Args:
        n: Number of observations, >= 0.
        significance: Probability with which the band may fail; see `berk_jones_level` and
            `dkw_half_width`.
        band: "berk_jones" is narrow for small rates, "dkw" has the same width everywhere. With
            more than 10,000 observations "berk_jones" takes Clopper-Pearson limits at every half
            standard deviation of the counts, by Bonferroni's inequality: this is fast, and wider
            by a quarter of a width that is small by then.

    Returns:
        The limits for 0, ..., n errors in [0, 1], ``[n + 1]``, read-only.

    Raises:
        ValueError: If an argument is out of its range.

    Example:
        >>> simultaneous_upper_limits(5, 0.05, "berk_jones").round(3)
        array([0.581, 0.762, 0.884, 0.963, 0.997, 1.   ])
        >>> simultaneous_upper_limits(5, 0.05, "dkw").round(3)
        array([0.547, 0.747, 0.947, 1.   , 1.   , 1.   ])
    """
    _validate.one_of("band", band, ("berk_jones", "dkw"))
    counts = np.arange(n + 1)
    if n == 0:
        limits = np.ones(1)
    elif band == "dkw":
        limits = np.minimum(counts / n + dkw_half_width(n, significance), 1.0)
    elif n > _LARGEST:
        limits = _limits_at_some(n, significance)
    else:
        limits = np.asarray(clopper_pearson_upper(counts, n, berk_jones_level(n, significance)))
    # The cache returns the same array again.
    limits.flags.writeable = False
    return limits


def _limits_at_some(n: int, significance: float) -> Floats:
    """Return upper limits for all counts from those of some, each at its share of significance."""
    _validate.open_unit("significance", significance, _ADVICE)
    # On this scale a count's standard deviation is constant, half of 1/sqrt(n).
    turns = math.ceil(np.pi * math.sqrt(n) / _SPACING)
    some = np.unique(np.floor(n * np.sin(np.linspace(0.0, np.pi / 2, turns + 1)) ** 2))
    some = some[some < n]
    limits = np.append(clopper_pearson_upper(some, n, significance / len(some)), 1.0)
    # The limit for a larger count is valid for a smaller one: true rates rise with the threshold.
    return limits[np.searchsorted(some, np.arange(n + 1))]


def _crossing(n: int, level: float) -> float:
    """Return the probability that some uniform order statistic exceeds its upper quantile.

    A Poisson process of rate n on [0, 1], given its total n, is a uniform sample: all order
    statistics are within their bounds if the count at b_i is at least i, for every i. The
    distribution of the count is propagated from bound to bound, without counts that fell below.
    """
    i = np.arange(1, n + 1)
    bounds = special.betainccinv(i, n - i + 1.0, level)
    means = n * np.diff(bounds, prepend=0.0, append=1.0)
    log_factorial = special.gammaln(np.arange(n + 2) + 1.0)
    # mass[j] is the probability of a count of first + j with no crossing so far.
    mass, first = np.ones(1), 0
    for step, mean in enumerate(means):
        reach = int(mean + _REACH * np.sqrt(mean)) + _EXTRA
        k = np.arange(min(reach, n - first) + 1)
        arrivals = np.exp(special.xlogy(k, mean) - mean - log_factorial[k])
        mass = np.convolve(mass, arrivals)
        if step == n:
            break
        mass, first = mass[step + 1 - first :], step + 1
        expected = n * bounds[step]
        last = min(n, int(expected + _REACH * np.sqrt(expected)) + _EXTRA)
        mass = mass[: max(last - first, 0) + 1]
    # The Poisson probability of the mean, without a logarithm that loses digits.
    at_mean = np.exp(-stirling_error(np.asarray(n))) / np.sqrt(2 * np.pi * n)
    return float(1.0 - mass[n - first] / at_mean)


# --- The ways to choose an attack's threshold, and whether each gives a valid bound.

Label = Literal["fixed", "searched"]


class _Choice:
    """How a threshold is chosen: by a search with a valid bound, if a class states no other."""

    label: ClassVar[Label] = "searched"
    valid: ClassVar[bool] = True


@dataclass(frozen=True)
class Fixed(_Choice):
    """One threshold, fixed before the scores are seen: it costs nothing.

    Args:
        threshold: The threshold, a number that is not nan.
        given: Whether a caller chose it, so that the bound assumes that this was before the scores
            were seen; if not, the construction of the scores determines it.

    Raises:
        ValueError: If ``threshold`` is nan.
    """

    threshold: float
    given: bool = field(default=True, repr=False)
    label: ClassVar[Label] = "fixed"

    def __post_init__(self) -> None:
        numbers("threshold", self.threshold)


@dataclass(frozen=True)
class Grid(_Choice):
    """The best of m thresholds fixed before the scores are seen, each at significance / m.

    Args:
        thresholds: The thresholds, at least one; repeated ones count once.

    Raises:
        ValueError: If there is no threshold, or one is nan.

    References:
        Bonferroni's inequality.
    """

    thresholds: tuple[float, ...]

    def __init__(self, thresholds: ArrayLike) -> None:
        distinct = np.unique(numbers("thresholds", thresholds))
        if not distinct.size:
            raise ValueError("thresholds=() must hold at least one number; or use Maximum().")
        object.__setattr__(self, "thresholds", tuple(distinct.tolist()))


@dataclass(frozen=True)
class Split(_Choice):
    """The best threshold on one part of the scores, with the bound from the other part.

    Args:
        fraction: Fraction in (0, 1) of the scores of each group that choose the threshold.
        seed: Seed of the random split, to be fixed beforehand like the rest: trying several seeds
            is another search.

    Raises:
        ValueError: If ``fraction`` is not in (0, 1) or ``seed`` is not a whole number >= 0.
    """

    fraction: float = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
        _validate.open_unit("fraction", self.fraction, "0.5 is usual")
        if self.seed != 0:
            _validate.positive_int("seed", self.seed, "or 0")


@dataclass(frozen=True)
class MultiSplit(_Choice):
    r"""The bound that half of several random splits reach, each at half of the significance.

    The bound of one split depends on its seed; this one hardly does. The bound L_k of every split
    at significance s / 2 exceeds the true value with probability at most s / 2. If the middle one
    does, at least half of them do, and by Markov's inequality

    .. math:: \Pr\Bigl[\#\{k : L_k > \text{truth}\} \ge \lceil K/2 \rceil\Bigr]
        \le \frac{K \, s/2}{\lceil K/2 \rceil} \le s,

    however the splits depend on each other.

    Args:
        splits: Number K >= 2 of splits, fixed beforehand.
        fraction: Fraction in (0, 1) of the scores of each group that choose a threshold.
        seed: Seed of the random splits, to be fixed beforehand.

    Raises:
        ValueError: If ``splits`` is not a whole number >= 2, ``fraction`` is not in (0, 1), or
            ``seed`` is not a whole number >= 0.

    References:
        Meinshausen, Meier and Bühlmann, "p-values for high-dimensional regression", JASA 104, 2009,
        arXiv:0811.2177: twice the median of p-values is a p-value.
    """

    splits: int = 10
    fraction: float = 0.5
    seed: int = 0

    def __post_init__(self) -> None:
        if _validate.positive_int("splits", self.splits) < 2:
            raise ValueError("splits=1 must be a whole number >= 2; use Split for a single one.")
        Split(self.fraction, self.seed)  # raises if one of them is out of its range


@dataclass(frozen=True)
class Simultaneous(_Choice):
    """The best of all thresholds, with bands that hold for both error rates everywhere.

    Each error rate gets half of the significance. No threshold needs to be named beforehand.

    Args:
        band: "berk_jones", narrow for small error rates, or "dkw", of the same width everywhere.

    Raises:
        ValueError: If ``band`` is unknown.
    """

    band: Band = "berk_jones"

    def __post_init__(self) -> None:
        _validate.one_of("band", self.band, ("berk_jones", "dkw"))


@dataclass(frozen=True)
class Maximum(_Choice):
    """The best of all thresholds on the same scores, uncorrected: common in papers, and not valid.

    The true value is below the result more often than the significance, and the more scores, the
    more often. For comparison with published numbers only.

    References:
        Zanella-Béguelin et al., "Bayesian estimation of differential privacy", ICML 2023,
        arXiv:2206.05199. Nasr et al., "Tight auditing of differentially private machine learning",
        USENIX Security 2023, arXiv:2302.07956.
    """

    valid: ClassVar[bool] = False


ThresholdChoice = Fixed | Grid | Split | MultiSplit | Simultaneous | Maximum

_GIVEN = (
    "thresholds that the caller gives were chosen before the scores were seen, which cannot be "
    "checked here"
)
_BANDS = {"berk_jones": "Berk-Jones", "dkw": "Dvoretzky-Kiefer-Wolfowitz"}


def assumptions_of(choice: ThresholdChoice) -> tuple[str, ...]:
    """Return what a bound assumes because of its threshold choice.

    Args:
        choice: The threshold choice.

    Returns:
        The assumptions as text; empty if there are none.
    """
    given = isinstance(choice, Grid) or (isinstance(choice, Fixed) and choice.given)
    return (_GIVEN,) if given else ()


def words_of(choice: ThresholdChoice) -> str:
    """Describe how the threshold is chosen, as text for the reader of a bound.

    Args:
        choice: The threshold choice.

    Returns:
        The description.

    Raises:
        TypeError: If ``choice`` is not one of the classes of this module.

    Example:
        >>> words_of(Split()), words_of(Maximum())
        ('chosen on a random 50 % of the scores; the bound is from the rest', \
'the best of all on the same scores, NOT valid')
    """
    match choice:
        case Fixed():
            return "given by the caller" if choice.given else "half way between out and in"
        case Grid():
            given = f"{len(choice.thresholds)} given by the caller"
            return f"the best of {given}, each at its share of the significance"
        case Split():
            part = f"a random {100 * choice.fraction:g} % of the scores"
            return f"chosen on {part}; the bound is from the rest"
        case MultiSplit():
            part = f"a random {100 * choice.fraction:g} % of the scores"
            return (
                f"chosen on {part}, {choice.splits} times; the bound is one that half of these "
                "splits reach, each at half of the significance"
            )
        case Simultaneous():
            return f"the best of all, valid for all at once ({_BANDS[choice.band]} band)"
        case Maximum():
            return "the best of all on the same scores, NOT valid"
    raise _not_a_choice(choice)


def _not_a_choice(choice: Any) -> TypeError:
    return TypeError(
        f"threshold choice {choice!r} must be Fixed, Grid, Split, Simultaneous, MultiSplit or "
        "Maximum."
    )


# --- Choice of an attack's threshold, and what the choice costs.

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
        TypeError: If ``choice`` is not one of the classes of this module.

    Example:
        >>> from lightning_audit.stats.counts import mu_clopper_pearson
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
            return Stairs.of(*groups, np.array([choice.threshold], dtype=np.float64))
        case Grid():
            return Stairs.of(*groups, np.array(choice.thresholds))
        case Split():
            first, rest = _split(groups, choice)
            every = _every(first)
            _, best = largest(every, values, monotone=monotone)
            return Stairs.of(*rest, every.thresholds[best : best + 1])
        case Simultaneous() | Maximum():
            return _every(groups)
    raise _not_a_choice(choice)


def _every(groups: tuple[Floats, Floats]) -> Stairs:
    """Return counts at all thresholds that differ in them."""
    return Stairs.of(*groups, _candidates(*groups))


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
    values = np.sort(np.concatenate([inside, outside]))
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
    counts = ConfusionCounts(*(count[0] for count in rest.cells))
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
