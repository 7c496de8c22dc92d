r"""Lower bounds on epsilon from guesses of the coins of many canaries in one training.

**Lower bounds on epsilon from guesses of many canaries, each included by its own fair coin.** The
number of correct guesses is compared with one binomial law. An upper limit for each of two error
rates wastes most of its significance, because both must fail at once. This bound does not: it is
tighter at few false positives. Nothing is assumed about the scores: they may depend on each other,
as those of canaries in one training do.

**Lower bounds from guesses of canaries' coins under f-DP: one run, any trade-off function.** Each
of m canaries is included by its own fair coin; r coins are guessed, with r chosen before the scores
are seen. Let p_j be the probability that j guesses are correct. Take a canary i and the event that
its guess is correct and c guesses are correct in all. Flipping its coin gives the event that its
guess is wrong and c - 1 are correct. If the mechanism is f-DP for every coin, averaging both
probabilities over the canaries gives, as f is convex,

.. math:: H_{c-1} \ge f(1 - R_c), \qquad R_c = \sum_{j \ge c} \tfrac jm p_j, \quad
    H_c = \sum_{j \ge c} \tfrac{r-j}m p_j, \qquad c = 1, \dots, r .

How likely can v correct guesses or more be? Moving probability from above v to v, and from below
v to the next smaller count as long as a condition leaves room, breaks no condition. So a law with
Pr[W >= v] = tau exists only if the law that starts with p_v = tau, and gives each smaller count the
least probability that its condition requires, in decreasing order, needs at most one in total:

.. math:: H_{c-1} = \max\{H_c, f(1 - R_c)\}, \qquad
    R_{c-1} = R_c + \tfrac{c-1}{r-c+1} (H_{c-1} - H_c), \qquad R_0 + H_0 \le \tfrac rm .

The conditions are convex and hold for zero probability, so the feasible tau form an interval from
0. Nothing is assumed about the scores. Flipping a coin removes the canary if its guess was "in" and
adds it if that was "out": guesses of both kinds may be mixed, and f need not be symmetric if it
holds for adding and for removing a canary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray
from scipy import special
from scipy.special import cython_special

from lightning_audit import _validate
from lightning_audit.stats._arguments import delta_or_zero, score_vector, significance_level
from lightning_audit.stats.tradeoff import GaussianTradeoff, TradeoffFunction

# --- Counts of guesses of canaries' coins, and the choice of the canaries to guess.

#: Function of numbers of correct guesses, of guesses and of canaries, and a significance, that
#: returns a bound.
FromGuesses = Callable[[int, int, int, float], float]

#: Which canaries are guessed: half of them in and half of them out, or all of them in.
Sides = Literal["both", "in"]
SIDES: tuple[Sides, ...] = ("both", "in")
# A further number of guesses below this does not pay for its share of the significance.
_LEAST = 60


@dataclass(frozen=True)
class OneRunBound:
    """A lower bound, and the guesses from which it was computed.

    Args:
        value: The lower bound, on epsilon or on mu, as the function states.
        guesses: Number of canaries that were guessed.
        correct: Number of those that were guessed correctly.
    """

    value: float
    guesses: int
    correct: int


def default_guesses(canaries: int, sides: Sides = "both") -> tuple[int, ...]:
    """Return the numbers of guesses that `OneRunScores` tries by default.

    Few guesses select the canaries with the clearest scores, but r guesses prove at most an epsilon
    of about ln(r / 3) at a significance of .05, and every further number costs significance. With
    both sides, the best fraction is between all and a 128th in simulations (Gaussian scores with a
    mu of .5 to 3, randomized response of epsilon 1 and 2, 100 to 100,000 canaries). There the
    median bound of these numbers is .93 of that at the best single number for Steinke's bound
    (arXiv:2305.08846), .89 for that on mu, and never below .76; a quarter, a 16th and a 64th have
    .81, .73 and 0.

    Args:
        canaries: Number of canaries, >= 0.
        sides: Which canaries are guessed, as in `OneRunScores`.

    Returns:
        Half of the canaries, an eighth and a 32nd, the latter two only if they are 60 or more. For
        "in" a quarter, a 16th and a 64th, without those that are 0.

    Example:
        >>> default_guesses(10_000), default_guesses(1000), default_guesses(1000, "in")
        ((5000, 1250, 312), (500, 125), (250, 62, 15))
    """
    if sides == "in":
        return tuple(canaries // part for part in (4, 16, 64) if canaries >= part)
    fewer = (canaries // part for part in (8, 32))
    return (*((canaries // 2,) if canaries >= 2 else ()), *(r for r in fewer if r >= _LEAST))


def whole_guesses(correct: int, guesses: int, canaries: int) -> tuple[int, int, int]:
    """Return the three numbers, after checking that they are whole and in increasing order."""
    whole = all(
        isinstance(k, (int, np.integer)) and not isinstance(k, bool)
        for k in (correct, guesses, canaries)
    )
    if not (whole and 0 <= correct <= guesses <= canaries):
        raise ValueError(
            f"correct={correct!r}, guesses={guesses!r} and canaries={canaries!r} must be "
            "whole numbers with 0 <= correct <= guesses <= canaries; guess each canary once."
        )
    return int(correct), int(guesses), int(canaries)


@dataclass(frozen=True, eq=False)
class OneRunScores:
    """Scores of the canaries of one training, each of which was in by its own fair coin.

    With r guesses the (r + 1) // 2 largest scores are guessed in, and the r // 2 smallest out.
    Ranks of all scores together need no threshold, and do not use the coins. The best of k numbers
    of guesses is taken, each at significance / k, which is valid if k and the numbers were chosen
    before the scores were seen. This cannot be checked here.

    Canaries that tie with one that is not guessed, or guessed differently, are not guessed. These
    guesses count as made and wrong, as do those for which no score is left.

    Args:
        scores_in: Scores of the canaries that were in, ``[n_in]``, in any unit.
        scores_out: Scores of those that were out, ``[n_out]``, in the same unit.
        guesses: Numbers of guesses, chosen before the scores were seen; None for
            `default_guesses`, which depend only on the number of canaries.
        unscored: Number of canaries that had a coin, but have no score.
        sides: "both": the largest scores are guessed in and the smallest out, half of the guesses
            each. "in": all guesses are that the largest scores are in, for an attack that
            identifies only members.

    Raises:
        ValueError: If scores are not one-dimensional or hold nan, a number of guesses is not a
            whole number from 1 to that of canaries, or another argument is out of its range.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> scores = OneRunScores(1 + rng.standard_normal(500), rng.standard_normal(500))
        >>> bound = scores.epsilon(delta=1e-5)
        >>> round(bound.value, 2), bound.guesses, bound.correct
        (1.33, 125, 108)
        >>> bound = scores.mu()
        >>> round(bound.value, 2), bound.guesses, bound.correct
        (0.5, 500, 406)
    """

    scores_in: ArrayLike
    scores_out: ArrayLike
    guesses: Sequence[int] | None = None
    unscored: int = 0
    sides: Sides = "both"

    def __post_init__(self) -> None:
        _validate.one_of("sides", self.sides, SIDES)
        if self.unscored:
            advice = "or 0: the number of canaries without a score"
            _validate.positive_int("unscored", self.unscored, advice)
        for name in ("scores_in", "scores_out"):
            object.__setattr__(self, name, np.sort(score_vector(name, getattr(self, name))))
        for number in self.numbers:
            if _validate.positive_int("guesses", number) > self.canaries:
                raise ValueError(
                    f"guesses={number!r} must be at most the number of canaries, {self.canaries}; "
                    "guess fewer."
                )

    @property
    def canaries(self) -> int:
        """Number of canaries. Those without a score are never guessed, but their coins count."""
        return np.size(self.scores_in) + np.size(self.scores_out) + self.unscored

    @property
    def numbers(self) -> tuple[int, ...]:
        """Numbers of guesses that are tried."""
        if self.guesses is None:
            return default_guesses(self.canaries, self.sides)
        return tuple(sorted(set(self.guesses)))

    def epsilon(self, delta: float, significance: float = 0.05) -> OneRunBound:
        """Return a lower bound on epsilon at a delta in [0, 1): `epsilon_one_run`."""
        d = delta_or_zero(delta)
        return self.best(lambda v, r, m, share: epsilon_one_run(v, r, m, d, share), significance)

    def epsilon_fdp(self, delta: float, significance: float = 0.05) -> OneRunBound:
        """Return the same for many canaries: `epsilon_one_run_fdp`."""
        d = delta_or_zero(delta)
        return self.best(
            lambda v, r, m, share: epsilon_one_run_fdp(v, r, m, d, share), significance
        )

    def mu(self, significance: float = 0.05) -> OneRunBound:
        """Return a lower bound on mu of Gaussian DP: `mu_one_run`."""
        return self.best(mu_one_run, significance)

    def best(self, bound: FromGuesses, significance: float) -> OneRunBound:
        """Return the largest bound of the numbers of guesses, each at its share.

        Args:
            bound: Function of numbers of correct guesses, of guesses and of canaries, and a
                significance, that returns a bound.
            significance: Probability in (0, 1) with which the result may fail.
        """
        level = significance_level(significance)
        inside, outside = np.asarray(self.scores_in), np.asarray(self.scores_out)
        numbers = np.array(self.numbers, dtype=np.int64)
        made, right = _made_and_right(inside, outside, numbers, self.sides)
        best = OneRunBound(0.0, 0, 0)
        for number, guessed, correct in zip(numbers, made, right, strict=True):
            # Guesses that a tie or a missing score left out count as made, and as wrong: any rule
            # that does not see the coins could only add correct ones.
            value = bound(int(correct), int(number), self.canaries, level / len(numbers))
            if value > best.value or not best.guesses:
                best = OneRunBound(value, int(guessed), int(correct))
        return best


def _made_and_right(
    inside: NDArray[np.float64],
    outside: NDArray[np.float64],
    numbers: NDArray[np.int64],
    sides: Sides,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the number of guessed canaries and of correct guesses, from sorted scores."""
    scored = np.sort(np.concatenate([inside, outside]))
    n = len(scored)
    # At most the number of canaries with a score, so that none is guessed both ways.
    able = np.minimum(numbers, n)
    top, bottom = (able, 0 * able) if sides == "in" else ((able + 1) // 2, able // 2)
    # The largest score that is not guessed in, and the smallest that is not guessed out: canaries
    # that tie with one of them are not guessed.
    lowest, highest = np.append(-np.inf, scored)[n - top], np.append(scored, np.inf)[bottom]
    above = [len(group) - np.searchsorted(group, lowest, "right") for group in (inside, outside)]
    below = [np.searchsorted(group, highest, "left") for group in (inside, outside)]
    return sum(above) + sum(below), above[0] + below[1]


# --- Lower bounds on epsilon from guesses of many canaries, each included by its own fair coin.

_ADVICE = "it is the probability with which the bound may fail"
# Below the peak of the law by this many standard deviations and this many counts, its mean falls.
_REACH, _EXTRA = 12.0, 40


def one_run_p_value(
    correct: int, guesses: int, canaries: int, epsilon: float, delta: float
) -> float:
    r"""Return an upper bound on the probability of at least ``correct`` correct guesses.

    Each of m canaries is included by its own fair coin. From the output, and without the coins, r
    of the coins are guessed, each as in or out. Under (epsilon, delta)-DP for adding or removing
    one canary, at least v guesses are correct with a probability of at most

    .. math:: \Pr[W \ge v] + 2 m \delta \max_{1 \le i \le v} \tfrac1i \Pr[v - i \le W < v],
        \qquad W \sim \mathrm{Bin}\Bigl(r, \tfrac{e^\varepsilon}{1 + e^\varepsilon}\Bigr)

    Args:
        correct: Number v of correct guesses.
        guesses: Number r of guesses.
        canaries: Number m of coins, guessed or not.
        epsilon: Epsilon >= 0 of the claim.
        delta: Delta in [0, 1) of the claim.

    Returns:
        The probability, at most 1.

    Raises:
        ValueError: If the numbers are not whole with 0 <= correct <= guesses <= canaries, or
            ``epsilon`` or ``delta`` is out of its range.

    Example:
        >>> round(one_run_p_value(20, 20, 1000, epsilon=1.79128, delta=1e-5), 4)
        0.05

    References:
        Steinke, Nasr and Jagielski, "Privacy auditing with one (1) training run", NeurIPS 2023,
        arXiv:2305.08846, section 5.
    """
    v, r, m = whole_guesses(correct, guesses, canaries)
    return _p_value(v, r, m, _validate.non_negative("epsilon", epsilon), delta_or_zero(delta))


def epsilon_one_run(
    correct: int, guesses: int, canaries: int, delta: float, significance: float
) -> float:
    """Return a lower bound on epsilon from the number of correct guesses of canaries' coins.

    The bound exceeds the true epsilon with probability at most ``significance``, for every
    mechanism: it is where `one_run_p_value` exceeds the significance. It assumes that the number of
    guesses was chosen before the scores were seen. Which canaries are guessed may depend on the
    scores of all, but on no coin.

    Args:
        correct: Number v of correct guesses.
        guesses: Number r of guesses.
        canaries: Number m of coins, guessed or not.
        delta: Delta in [0, 1).
        significance: Probability in (0, 1) with which the bound may fail.

    Returns:
        The bound >= 0.

    Raises:
        ValueError: As in `one_run_p_value`; if ``significance`` is out of its range.

    Example:
        >>> round(epsilon_one_run(900, 1000, 1000, delta=1e-5, significance=0.05), 4)
        2.0206
    """
    v, r, m = whole_guesses(correct, guesses, canaries)
    d, level = delta_or_zero(delta), _validate.open_unit("significance", significance, _ADVICE)
    # A claim implies every larger one, and each is rejected for enough correct guesses: a bound at
    # any crossing fails no more often than the largest claim below it is rejected.
    return _lower(v, lambda epsilon: level - _p_value(v, r, m, epsilon, d), rtol=1e-13)


def _p_value(v: int, r: int, m: int, epsilon: float, delta: float) -> float:
    q = float(special.expit(epsilon))
    p = float(special.betainc(v, r - v + 1.0, q)) if v else 1.0
    if delta > 0 and v:
        # j = v - i is the number of correct guesses that delta need not supply. The mean of a
        # unimodal law over j, ..., v - 1 is largest for a j just below the mode, or for v - 1.
        spread = math.sqrt(r * q * (1.0 - q))
        lowest = math.floor(r * q - _REACH * spread) - _EXTRA
        j = np.arange(min(max(lowest, 0), v - 1), v)
        at_least = np.ones(len(j))
        positive = j > 0
        at_least[positive] = special.betainc(j[positive], r - j[positive] + 1.0, q)
        p += 2.0 * m * delta * float(np.max((at_least - p) / (v - j)))
    # A probability, even if its bound is larger.
    return min(p, 1.0)


# --- Lower bounds from guesses of canaries' coins under f-DP: one run, any trade-off function.

#: Function of R_c that returns the least H_(c-1), f(1 - R_c).
_Least = Callable[[float], float]

_SQRT_HALF = math.sqrt(0.5)
# Natural logarithm of the smallest p-value that is distinguished from 0.
_LOG_SMALLEST = math.log(1e-300)


def one_run_fdp_p_value(
    correct: int, guesses: int, canaries: int, tradeoff: TradeoffFunction
) -> float:
    """Return an upper bound on the probability of at least ``correct`` correct guesses under f-DP.

    Args:
        correct: Number v of correct guesses.
        guesses: Number r of guesses, chosen before the scores were seen.
        canaries: Number m of fair coins, guessed or not.
        tradeoff: The claim f, for adding and for removing one canary.

    Returns:
        The probability: 1 if the claim allows any, and at least 1e-300. Functions other than
        `GaussianTradeoff` are evaluated near 1, which gives an absolute error of 1e-16.

    Raises:
        ValueError: If the numbers are not whole with 0 <= correct <= guesses <= canaries.

    Example:
        >>> from lightning_audit.stats.tradeoff import GaussianTradeoff
        >>> round(one_run_fdp_p_value(900, 1000, 1000, GaussianTradeoff(mu=0.8804)), 3)
        0.05

    References:
        Mahloujifar, Melis and Chaudhuri, "Auditing f-differential privacy in one run", 2024,
        arXiv:2410.22235, Algorithm 2 with a cap on the guesses; own proof above.
    """
    v, r, m = whole_guesses(correct, guesses, canaries)
    least = _least_of(tradeoff)

    def excess(log_p: float) -> float:
        return _excess(v, r, m, math.exp(log_p), least)

    if v == 0 or excess(0.0) <= 0:
        return 1.0
    if excess(_LOG_SMALLEST) > 0:
        return math.exp(_LOG_SMALLEST)
    return math.exp(float(scipy.optimize.brentq(excess, _LOG_SMALLEST, 0.0, xtol=1e-10)))


def mu_one_run(correct: int, guesses: int, canaries: int, significance: float) -> float:
    """Return a lower bound on mu of Gaussian DP from the number of correct guesses of coins.

    The bound exceeds mu with probability at most ``significance`` for every mechanism that is
    mu-GDP for adding or removing one canary. Converted to an epsilon, it bounds that of a Gaussian
    mechanism only.

    Args:
        correct: Number v of correct guesses.
        guesses: Number r of guesses, chosen before the scores were seen.
        canaries: Number m of fair coins, guessed or not.
        significance: Probability in (0, 1) with which the bound may fail.

    Returns:
        The bound >= 0.

    Raises:
        ValueError: As in `one_run_fdp_p_value`; if ``significance`` is out of its range.

    Example:
        >>> round(mu_one_run(900, 1000, 1000, significance=0.05), 4)
        0.8804
    """
    return _lower_fdp(correct, guesses, canaries, _gaussian, significance)


def epsilon_one_run_fdp(
    correct: int, guesses: int, canaries: int, delta: float, significance: float
) -> float:
    """Return a lower bound on epsilon from the number of correct guesses of canaries' coins.

    The bound exceeds the true epsilon with probability at most ``significance``, for every
    mechanism, like `stats.one_run.epsilon_one_run`. If canaries times delta is far
    below the significance, this bound is slightly smaller: by at most .02 for up to 1,000 guesses
    at a significance of .05. If it is not, this bound is much larger. Choose one of them
    beforehand, by these numbers.

    Args:
        correct: As in `epsilon_one_run`, like the next four.
        guesses: Number r of guesses.
        canaries: Number m of fair coins.
        delta: Delta in [0, 1).
        significance: Probability in (0, 1) with which the bound may fail.

    Returns:
        The bound >= 0.

    Raises:
        ValueError: As in `epsilon_one_run`.

    Example:
        >>> from lightning_audit.stats.one_run import epsilon_one_run
        >>> round(epsilon_one_run_fdp(990, 1000, 100_000, delta=1e-5, significance=0.05), 3)
        4.043
        >>> round(epsilon_one_run(990, 1000, 100_000, delta=1e-5, significance=0.05), 3)
        3.215
    """
    d = delta_or_zero(delta)

    def least(epsilon: float) -> _Least:
        grown, shrunk, rest = math.exp(epsilon), math.exp(-epsilon), 1.0 - d
        return lambda x: max(rest - grown * (1.0 - x), shrunk * (x - d), 0.0)

    return _lower_fdp(correct, guesses, canaries, least, significance)


def _least_of(tradeoff: TradeoffFunction) -> _Least:
    if isinstance(tradeoff, GaussianTradeoff):
        return _gaussian(tradeoff.mu)
    return lambda x: float(tradeoff(1.0 - x))


def _gaussian(mu: float) -> _Least:
    # The standard library: a numpy call for one number costs more than its computation.
    inverse, erfc = cython_special.ndtri, math.erfc
    return lambda x: 0.5 * erfc((mu - inverse(x)) * _SQRT_HALF)


def _lower_fdp(
    correct: int, guesses: int, canaries: int, least: Callable[[float], _Least], significance: float
) -> float:
    """Return the smallest parameter under which ``correct`` guesses have the significance."""
    v, r, m = whole_guesses(correct, guesses, canaries)
    level = significance_level(significance)
    return _lower(v, lambda parameter: _excess(v, r, m, level, least(parameter)), rtol=1e-12)


def _lower(v: int, excess: Callable[[float], float], rtol: float) -> float:
    """Return the smallest parameter with v correct guesses at which an excess falls to zero."""
    if v == 0 or excess(0.0) <= 0:
        return 0.0
    high = 1.0
    while excess(high) > 0:
        high *= 2.0
    return float(scipy.optimize.brentq(excess, 0.0, high, xtol=1e-12, rtol=rtol))


def _excess(v: int, r: int, m: int, probability: float, least: _Least) -> float:
    """Return the excess over one of the total probability that such a law needs.

    The sum stops as soon as it is known to be positive, so only its sign has a meaning then.
    """
    right, wrong = probability * v / m, probability * (r - v) / m
    whole = r / m
    for c in range(v, 0, -1):
        needed = least(right)
        if needed <= wrong:
            # No further probability is required, here or below.
            break
        right += (c - 1) / (r - c + 1) * (needed - wrong)
        wrong = needed
        if right + wrong > whole:
            break
    return (right + wrong) / whole - 1.0
