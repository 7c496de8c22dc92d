"""The bounds of one run by name, as `stats.named_bounds` has the others.

**Lower bound on the epsilon of a pair of Gaussians, from the scores of one run.** The scores of the
canaries that were in are treated as a sample of N(m_1, s_1^2), those of the canaries that were out
as one of N(m_0, s_0^2), and epsilon is that of the pair (`stats.divergences`).
Auditing one run by such a pair is an idea of Agrawal et al. 2026 (arXiv:2606.12733). The confidence
region below is an own proof, and not taken from them.

Epsilon depends only on d = (m_1 - m_0) / s_0 and r = s_1 / s_0. With the sums of squares SS_1 and
SS_0 within the groups and the difference D of their means,

* SS_1 / (n_1 - 1) over SS_0 / (n_0 - 1) is r^2 times an F statistic;
* D over the root of (r^2 / n_1 + 1 / n_0) (SS_1 / r^2 + SS_0) / nu, nu = n_1 + n_0 - 2, is
  noncentral t with nu degrees of freedom, at the noncentrality d / sqrt(r^2 / n_1 + 1 / n_0): group
  1 over r has the variance of group 0.

At the true r the two are independent: the ratio of two chi-squares is independent of their sum, and
of the means. So the region of all (d, r) with r in the F interval of level s', and with d at least
the noncentral t's lower limit for that r at level s', contains the true pair with probability
(1 - s')^2, which is the required 1 - s. For each r, epsilon is smallest at the smallest d >= 0: two
unimodal densities have min(p, e^epsilon q) above a level on the overlap of two intervals, which
shrinks as their midpoints move apart. One dimension remains, r, in which epsilon may have several
minima. It is searched by parts (`_least`) with lower bounds that hold on the whole of each part.

References:
    Steinke, Nasr and Jagielski 2023, arXiv:2305.08846. Mahloujifar, Melis and Chaudhuri 2024,
    arXiv:2410.22235. Agrawal et al. 2026, arXiv:2606.12733. Bentkus and Dzindzalieta 2015,
    doi:10.3150/14-BEJ603.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from lightning_audit import _validate
from lightning_audit.stats._arguments import (
    Floats,
    delta_in_unit,
    delta_or_zero,
    significance_level,
)
from lightning_audit.stats.divergences import one_way_epsilon
from lightning_audit.stats.gaussian import (
    check_groups,
    finite_groups,
    mean_and_squares,
    mu_white_box_from_scores,
    noncentrality_lower,
)
from lightning_audit.stats.named_bounds import MU_TO_EPSILON, BoundMethod, NamedBound
from lightning_audit.stats.one_run import (
    SIDES,
    OneRunScores,
    Sides,
)

# --- Lower bound on the epsilon of a pair of Gaussians, from the scores of one run.

#: Number of parts of the interval of ratios at first, and of each part that may hold the minimum.
_FIRST_PARTS, _PARTS = 16, 4
# The bound may be below the least epsilon of the region by this fraction and this amount.
_SLACK, _LEAST_SLACK = 1e-4, 1e-6


def epsilon_gaussian_pair(
    n_in: int,
    n_out: int,
    difference: float,
    squares_in: float,
    squares_out: float,
    delta: float,
    significance: float,
) -> float:
    """Return a lower bound on epsilon from means and sums of squares of two Gaussian groups.

    The bound exceeds the pair's epsilon with probability at most ``significance`` if all scores are
    independent and Gaussian, with one mean and variance within each group; then it holds for any
    numbers of scores. For the scores of one training it is asymptotic: they are Gaussian only in
    the limit of a long training, and alike within a group only if the data contribute the same
    along every canary. **It is not valid if they do not**: 3 of 300 canaries with large data and no
    leakage give a positive bound in nearly every run. For one release or step,
    `lightning_audit.stats.gaussian.mu_white_box` is valid for any data. The region of the
    module's text is searched for its least epsilon, up to a relative 1e-4, on the side of the
    smaller bound. A difference of means counts as leakage only if the mean of those in is larger;
    unequal variances count in either direction.

    Args:
        n_in: Number of canaries that were in.
        n_out: Number of canaries that were out.
        difference: Mean score of those in minus that of those out, in any unit.
        squares_in: Sum of squared deviations of those in from their mean, > 0, in that unit
            squared.
        squares_out: Sum of squared deviations of those out from their mean, > 0.
        delta: Delta in (0, 1).
        significance: Probability in (0, 1) with which the bound may fail.

    Returns:
        The bound >= 0; 0 if a group has fewer than two scores.

    Raises:
        ValueError: If an argument is out of its range; a sum of squares only if both groups have
            two scores.

    Example:
        >>> round(epsilon_gaussian_pair(500, 500, 1.0, 499.0, 499.0, 1e-5, 0.05), 2)
        3.72
        >>> round(epsilon_gaussian_pair(500, 500, 0.0, 998.0, 499.0, 1e-5, 0.05), 2)
        5.37

    References:
        Agrawal, Wei, Singh, Magdon-Ismail and Zikas, "Let's Ask Gauss: Improved One-Run Privacy
        Auditing", 2026, arXiv:2606.12733, for the idea; the region is derived above.
    """
    delta_in_unit("delta", delta)
    # Each of the two independent statistics fails with this probability.
    level = -math.expm1(0.5 * math.log1p(-significance_level(significance)))
    check_groups(n_in, n_out, difference, "scores")
    if n_in < 2 or n_out < 2:
        return 0.0
    advice = "scores that do not vary are not Gaussian, and no bound follows from them"
    for name, squares in (("squares_in", squares_in), ("squares_out", squares_out)):
        _validate.positive(name, squares, advice)
    groups = _Groups(float(n_in), float(n_out), difference, squares_in, squares_out, level)
    return _least(groups, delta)


def epsilon_gaussian_pair_from_scores(
    scores_in: ArrayLike, scores_out: ArrayLike, delta: float, significance: float
) -> float:
    """Return a lower bound on epsilon from scores that are Gaussian in each group.

    Args:
        scores_in: Scores of canaries that were in, ``[n_in]``, in any unit.
        scores_out: Scores of canaries that were out, ``[n_out]``, in the same unit.
        delta: Delta in (0, 1).
        significance: Probability in (0, 1) with which the bound may fail.

    Returns:
        The bound >= 0, under the assumptions of `epsilon_gaussian_pair`.

    Raises:
        ValueError: If scores are not one-dimensional, not finite or all equal within a group, or
            ``delta`` or ``significance`` is not in (0, 1).

    Example:
        >>> rng = np.random.default_rng(0)
        >>> inside, outside = 1.0 + rng.standard_normal(500), rng.standard_normal(500)
        >>> 3.0 < epsilon_gaussian_pair_from_scores(inside, outside, 1e-5, 0.05) < 4.377
        True
    """
    groups = finite_groups(scores_in, scores_out, "scores")
    for name, scores in zip(("scores_in", "scores_out"), groups, strict=True):
        if scores.size > 1 and scores.min() == scores.max():
            raise ValueError(
                f"{name} holds {scores[0]:g} only, must hold scores that vary: Gaussian ones do; "
                "take one_run, which assumes nothing about the scores."
            )
    # The unit does not matter; in this one no square overflows.
    unit = max(float(np.abs(scores).max(initial=0.0)) for scores in groups) or 1.0
    inside, outside = (scores / unit for scores in groups)
    (mean_1, squares_1), (mean_0, squares_0) = mean_and_squares(inside), mean_and_squares(outside)
    return epsilon_gaussian_pair(
        inside.size, outside.size, mean_1 - mean_0, squares_1, squares_0, delta, significance
    )


@dataclass(frozen=True)
class _Groups:
    """Statistics of both groups, and the level of each of the two limits."""

    n1: float
    n0: float
    difference: float
    squares1: float
    squares0: float
    level: float

    def log_ratios(self) -> tuple[float, float]:
        """Return confidence limits of log r, by the F distribution."""
        f1, f0 = self.n1 - 1.0, self.n0 - 1.0
        seen = math.log(self.squares1 / f1) - math.log(self.squares0 / f0)
        # The lower quantiles of F and of 1 / F, so that 1 - level / 2 does not lose digits.
        low, high = (float(special.fdtri(*f, 0.5 * self.level)) for f in ((f0, f1), (f1, f0)))
        return 0.5 * (seen + math.log(low)), 0.5 * (seen - math.log(high))

    def noncentrality(self, r: Floats) -> Floats:
        """Return lower limits of the noncentrality, at least zero, if r is the ratio."""
        freedom = np.full(r.shape, self.n1 + self.n0 - 2.0)
        noise = self.error(r) * np.sqrt((self.squares1 / r**2 + self.squares0) / freedom)
        return noncentrality_lower(self.difference / noise, freedom, self.level)

    def error(self, r: Floats) -> Floats:
        """Return the standard deviation of the difference of means, in units of that of group 0."""
        return np.sqrt(r**2 / self.n1 + 1.0 / self.n0)


def _least(groups: _Groups, delta: float) -> float:
    """Return a lower bound on epsilon over the region, at most a slack below its least epsilon.

    On a part r_a <= r <= r_b, with rho = r_b / r_a and one d, the density of N(d, r^2) is at least
    1 / rho times that for r_a and at most rho times that for r_b. So an epsilon that suffices for
    delta at any r of the part suffices, plus log rho, for rho delta at r_a, and for delta at r_b
    with the pair swapped. The squared noise of t is convex in r^2, so t is smallest at an end of
    the part, as the error is at r_a: their limits give the part's smallest d.
    """
    low, high = groups.log_ratios()
    edges = np.linspace(low, high, _FIRST_PARTS + 1)
    if low < 0.0 < high:
        # If no leakage is visible, epsilon is zero here.
        edges = np.unique(np.append(edges, 0.0))
    start, end = edges[:-1], edges[1:]
    settled, reached = math.inf, math.inf
    while start.size:
        r_a, r_b, step = np.exp(start), np.exp(end), end - start
        limits = groups.noncentrality(np.concatenate([r_a, r_b])).reshape(2, -1)
        error = groups.error(r_a)
        here, part = limits[0] * error, limits.min(axis=0) * error
        at, raised = np.full(r_a.shape, delta), delta * np.exp(step)
        found = one_way_epsilon(
            np.concatenate([here, here / r_a, part, part / r_b]),
            np.concatenate([r_a, 1.0 / r_a, r_a, 1.0 / r_b]),
            np.concatenate([at, at, np.minimum(raised, 0.5 * (1.0 + delta)), at]),
        ).reshape(4, -1)
        reached = min(reached, float(found[:2].max(axis=0).min()))
        # Any epsilon suffices for a delta of one; halfway there is close enough.
        forward = np.where(raised < 0.5 * (1.0 + delta), found[2], 0.0)
        bound = np.maximum(np.maximum(forward, found[3]) - step, 0.0)
        enough = bound >= (1.0 - _SLACK) * reached - _LEAST_SLACK
        settled = min(settled, float(bound[enough].min(initial=math.inf)))
        cuts = np.linspace(start[~enough], end[~enough], _PARTS + 1)
        start, end = cuts[:-1].ravel(), cuts[1:].ravel()
    return min(settled, reached)


# --- The bounds of one run by name, as `stats.named_bounds` has the others.

_COINS = "every canary in by its own fair coin, unknown to anyone who scored it"
_ONE_TRAINING = "all canaries of one training; their scores may depend on each other"
_GIVEN = (
    "the numbers of guesses were chosen before the scores were seen, which cannot be checked here"
)
_ONE_RELEASE = "all readings of one release or step, along orthonormal directions"
_ONE_VARIANCE = "independent Gaussian noise of one variance along each of them"
_ASYMPTOTIC = (
    "asymptotic: independent scores, Gaussian in the limit, with one law within each group"
)
_ALIKE = "the data add equally along every canary: large data along a few make it exceed epsilon"
_PAIR_TO_EPSILON = "epsilon of the mechanism is at least that of the pair of Gaussians"


#: Every method, by name.
ONE_RUN_METHODS: Mapping[str, BoundMethod] = {
    method.name: method
    for method in (
        BoundMethod(
            "one_run",
            "epsilon",
            (_COINS, _ONE_TRAINING),
            "Steinke, Nasr and Jagielski 2023, section 5",
            from_guesses=OneRunScores.epsilon,
        ),
        BoundMethod(
            "one_run_fdp",
            "epsilon",
            (_COINS, _ONE_TRAINING),
            "Mahloujifar, Melis and Chaudhuri 2024, with the trade-off function of "
            "(epsilon, delta)",
            from_guesses=OneRunScores.epsilon_fdp,
        ),
        BoundMethod(
            "one_run_mu",
            "mu",
            (_COINS, _ONE_TRAINING, MU_TO_EPSILON),
            "Mahloujifar, Melis and Chaudhuri 2024, with the trade-off function of mu-GDP",
            from_guesses=lambda scores, delta, significance: scores.mu(significance),
        ),
        BoundMethod(
            "white_box",
            "mu",
            (_COINS, _ONE_RELEASE, _ONE_VARIANCE, MU_TO_EPSILON),
            "Bentkus and Dzindzalieta 2015; derived in `lightning_audit.stats.gaussian`",
            from_scores=lambda inside, outside, delta, significance: mu_white_box_from_scores(
                inside, outside, significance
            ),
        ),
        BoundMethod(
            "gaussian_pair",
            "epsilon",
            (_COINS, _ASYMPTOTIC, _ALIKE, _PAIR_TO_EPSILON),
            "the idea of Agrawal et al. 2026; the confidence region is ours, derived in "
            "`lightning_audit.stats.one_run_bounds`",
            from_scores=epsilon_gaussian_pair_from_scores,
            # Data that differ between the canaries look like leakage, for any number of canaries.
            valid=False,
        ),
    )
}
ONE_RUN_NAMES = tuple(ONE_RUN_METHODS)


def named_one_run_bound(
    method: str,
    scores_in: ArrayLike,
    scores_out: ArrayLike,
    delta: float,
    significance: float = 0.05,
    guesses: Sequence[int] | None = None,
    unscored: int = 0,
    sides: Sides = "both",
) -> NamedBound:
    """Return a lower bound on the epsilon of a training with many canaries, by method name.

    Args:
        method: One of `ONE_RUN_NAMES`.
        scores_in: Scores of the canaries that were in, ``[n_in]``, in any unit.
        scores_out: Scores of those that were out, ``[n_out]``, in the same unit.
        delta: Delta of the epsilon, in (0, 1), or 0 for "one_run" and "one_run_fdp".
        significance: Probability in (0, 1) with which the bound may be wrong.
        guesses: As in `OneRunScores`, like the next two. Given numbers are assumed
            to be chosen before the scores were seen, and the bound states that; those of None
            follow from the number of canaries.
        unscored: Number of canaries that had a coin, but have no score.
        sides: Which canaries are guessed. "white_box" and "gaussian_pair" accept only the defaults
            of the last three.

    Returns:
        The bound, with its assumptions.

    Raises:
        ValueError: If an argument is out of its range or does not apply to the method, or scores
            are not vectors of numbers.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> scores = 1 + rng.standard_normal(500), rng.standard_normal(500)
        >>> bound = named_one_run_bound("one_run", *scores, 1e-5, guesses=[62])
        >>> round(bound.epsilon_lower, 2), bound.rule
        (1.5, '62 guesses, half in and half out')
    """
    chosen = ONE_RUN_METHODS[_validate.one_of("method", method, ONE_RUN_METHODS)]
    level = _validate.open_unit("significance", significance, "e.g. 0.05")
    _validate.one_of("sides", sides, SIDES)
    at = _delta_of(chosen, delta)
    if chosen.from_scores is not None:
        _refuse_guesses(method, guesses, unscored, sides)
        return chosen.bound(chosen.from_scores(scores_in, scores_out, at, level), at, level)
    assert chosen.from_guesses is not None
    scores = OneRunScores(scores_in, scores_out, guesses, unscored, sides)
    found, given = chosen.from_guesses(scores, at, level), guesses is not None
    return chosen.bound(
        found.value,
        at,
        level,
        rule=_words_of(scores.numbers, sides, given),
        assumptions=(*chosen.assumptions, _GIVEN) if given else chosen.assumptions,
        guesses=found.guesses,
        correct=found.correct,
    )


def _delta_of(method: BoundMethod, delta: float) -> float:
    if method.quantity == "mu" or method.from_scores:
        return _validate.open_unit("delta", delta, "such as 1e-5; for delta = 0 take one_run")
    return delta_or_zero(delta)


def _refuse_guesses(
    method: str, guesses: Sequence[int] | None, unscored: int, sides: Sides
) -> None:
    """Raise a ValueError for arguments of guesses if the method uses the scores themselves."""
    for name, value, given in (
        ("sides", sides, sides != "both"),
        ("guesses", guesses, guesses is not None),
    ):
        if given:
            raise ValueError(
                f"{name}={value!r} is not for method={method!r}, which guesses nothing; leave it "
                "out, or take one_run."
            )
    if unscored:
        raise ValueError(
            f"unscored={unscored!r} must be 0 for method={method!r}, which needs a reading of "
            "every canary; take one_run."
        )


def _words_of(guesses: Sequence[int], sides: Sides, given: bool) -> str:
    way = "all in" if sides == "in" else "half in and half out"
    if not given:
        way += ", set by the number of canaries"
    numbers = [str(number) for number in sorted(guesses, reverse=True)]
    if len(numbers) < 2:
        (number,) = numbers or ["no"]
        return {"no": "no guesses", "1": "1 guess"}.get(number, f"{number} guesses, {way}")
    told = f"{', '.join(numbers[:-1])} and {numbers[-1]}"
    return f"the best of {told} guesses, {way}, each at its share of the significance"
