r"""Lower bounds from guesses of canaries' coins under f-DP: one run, any trade-off function.

Each of m canaries is included by its own fair coin; r coins are guessed, with r chosen before the
scores are seen. Let p_j be the probability that j guesses are correct. Take a canary i and the
event that its guess is correct and c guesses are correct in all. Flipping its coin gives the event
that its guess is wrong and c - 1 are correct. If the mechanism is f-DP for every coin, averaging
both probabilities over the canaries gives, as f is convex,

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

from numpy.typing import ArrayLike
from scipy import optimize
from scipy.special import cython_special

from lightning_audit.stats._arguments import delta_or_zero, significance_level
from lightning_audit.stats.one_run._guesses import OneRunBound as OneRunBound
from lightning_audit.stats.one_run._guesses import Sides, best_of_ranks, whole_guesses
from lightning_audit.stats.tradeoff.tradeoff_functions import GaussianTradeoff, TradeoffFunction

__all__ = [
    "OneRunBound",
    "epsilon_one_run_fdp",
    "epsilon_one_run_fdp_from_scores",
    "mu_one_run",
    "mu_one_run_from_scores",
    "one_run_fdp_p_value",
    "parameter_one_run",
]

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
        >>> from lightning_audit.stats.tradeoff.tradeoff_functions import GaussianTradeoff
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
    return math.exp(float(optimize.brentq(excess, _LOG_SMALLEST, 0.0, xtol=1e-10)))


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
    return _lower(correct, guesses, canaries, _gaussian, significance)


def epsilon_one_run_fdp(
    correct: int, guesses: int, canaries: int, delta: float, significance: float
) -> float:
    """Return a lower bound on epsilon from the number of correct guesses of canaries' coins.

    The bound exceeds the true epsilon with probability at most ``significance``, for every
    mechanism, like `stats.one_run.one_run_epsilon.epsilon_one_run`. If canaries times delta is far
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
        >>> from lightning_audit.stats.one_run.one_run_epsilon import epsilon_one_run
        >>> round(epsilon_one_run_fdp(990, 1000, 100_000, delta=1e-5, significance=0.05), 3)
        4.043
        >>> round(epsilon_one_run(990, 1000, 100_000, delta=1e-5, significance=0.05), 3)
        3.215
    """
    d = delta_or_zero(delta)

    def least(epsilon: float) -> _Least:
        grown, shrunk, rest = math.exp(epsilon), math.exp(-epsilon), 1.0 - d
        return lambda x: max(rest - grown * (1.0 - x), shrunk * (x - d), 0.0)

    return _lower(correct, guesses, canaries, least, significance)


def parameter_one_run(
    correct: int,
    guesses: int,
    canaries: int,
    family: Callable[[float], TradeoffFunction],
    significance: float,
) -> float:
    """Return a lower bound on the parameter of a decreasing family of trade-off functions.

    Args:
        correct: As in `mu_one_run`, like the next two.
        guesses: Number r of guesses.
        canaries: Number m of fair coins.
        family: Function of a parameter >= 0 that returns its trade-off function; a larger parameter
            allows more.
        significance: Probability in (0, 1) with which the bound may fail.

    Returns:
        The bound >= 0.

    Raises:
        ValueError: As in `mu_one_run`, or if no parameter up to 2^60 explains the guesses.

    Example:
        >>> from lightning_audit.stats.tradeoff.tradeoff_functions import GaussianTradeoff
        >>> round(parameter_one_run(90, 100, 100, GaussianTradeoff, significance=0.05), 6)
        0.841376
        >>> round(mu_one_run(90, 100, 100, significance=0.05), 6)
        0.841376
    """
    return _lower(correct, guesses, canaries, lambda x: _least_of(family(x)), significance)


def mu_one_run_from_scores(
    scores_in: ArrayLike,
    scores_out: ArrayLike,
    significance: float,
    *,
    guesses: Sequence[int] | None = None,
    unscored: int = 0,
    sides: Sides = "both",
) -> OneRunBound:
    """Return a lower bound on mu from the canaries with the largest and the smallest scores.

    The best of k numbers of guesses, each at significance / k, as in
    `stats.one_run.one_run_epsilon.epsilon_one_run_from_scores`. k and the numbers are assumed to be
    chosen before the scores were seen. Arguments other than ``delta``, the treatment of ties and of
    missing scores, and the errors are those of that function.

    Returns:
        The bound on mu.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> scores = 1 + rng.standard_normal(500), rng.standard_normal(500)
        >>> bound = mu_one_run_from_scores(*scores, significance=0.05)
        >>> round(bound.value, 2), bound.guesses, bound.correct
        (0.5, 500, 406)
    """
    return best_of_ranks(scores_in, scores_out, mu_one_run, significance, guesses, unscored, sides)


def epsilon_one_run_fdp_from_scores(
    scores_in: ArrayLike,
    scores_out: ArrayLike,
    delta: float,
    significance: float,
    *,
    guesses: Sequence[int] | None = None,
    unscored: int = 0,
    sides: Sides = "both",
) -> OneRunBound:
    """Return a lower bound on epsilon from the canaries with the largest and smallest scores.

    Like `mu_one_run_from_scores`, with the same arguments, result and errors, but with
    `epsilon_one_run_fdp` for the guesses, and so for every mechanism; ``delta`` is in [0, 1).
    """
    d = delta_or_zero(delta)
    return best_of_ranks(
        scores_in,
        scores_out,
        lambda correct, number, m, share: epsilon_one_run_fdp(correct, number, m, d, share),
        significance,
        guesses,
        unscored,
        sides,
    )


def _least_of(tradeoff: TradeoffFunction) -> _Least:
    if isinstance(tradeoff, GaussianTradeoff):
        return _gaussian(tradeoff.mu)
    return lambda x: float(tradeoff(1.0 - x))


def _gaussian(mu: float) -> _Least:
    # The standard library: a numpy call for one number costs more than its computation.
    inverse, erfc = cython_special.ndtri, math.erfc
    return lambda x: 0.5 * erfc((mu - inverse(x)) * _SQRT_HALF)


def _lower(
    correct: int,
    guesses: int,
    canaries: int,
    least: Callable[[float], _Least],
    significance: float,
) -> float:
    """Return the smallest parameter under which ``correct`` guesses have the significance."""
    v, r, m = whole_guesses(correct, guesses, canaries)
    level = significance_level(significance)

    def excess(parameter: float) -> float:
        return _excess(v, r, m, level, least(parameter))

    if v == 0 or excess(0.0) <= 0:
        return 0.0
    high = 1.0
    while excess(high) > 0:
        high *= 2.0
        if high > 2.0**60:
            raise ValueError(
                f"family must explain {v} correct guesses of {r} for some parameter up to 2^60; "
                "give a family that tends to no privacy as its parameter grows."
            )
    return float(optimize.brentq(excess, 0.0, high, xtol=1e-12, rtol=1e-12))


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
