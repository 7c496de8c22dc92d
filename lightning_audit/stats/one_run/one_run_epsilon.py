"""Lower bounds on epsilon from guesses of many canaries, each included by its own fair coin.

The number of correct guesses is compared with one binomial law. An upper limit for each of two
error rates wastes most of its significance, because both must fail at once. This bound does not: it
is tighter at few false positives. Nothing is assumed about the scores: they may depend on each
other, as those of canaries in one training do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize, special

from lightning_audit import _validate
from lightning_audit.stats._arguments import delta_or_zero
from lightning_audit.stats.one_run._guesses import OneRunBound as OneRunBound
from lightning_audit.stats.one_run._guesses import Sides, best_of_ranks, whole_guesses
from lightning_audit.stats.one_run._guesses import default_guesses as default_guesses

__all__ = [
    "OneRunBound",
    "default_guesses",
    "epsilon_one_run",
    "epsilon_one_run_from_scores",
    "one_run_p_value",
]

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

    def excess(epsilon: float) -> float:
        return _p_value(v, r, m, epsilon, d) - level

    if v == 0 or excess(0.0) >= 0:
        return 0.0
    high = 1.0
    while excess(high) < 0:
        high *= 2.0
    # A claim implies every larger one, and each is rejected for enough correct guesses: a bound at
    # any crossing fails no more often than the largest claim below it is rejected.
    return float(optimize.brentq(excess, 0.0, high, xtol=1e-12, rtol=1e-13))


def epsilon_one_run_from_scores(
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

    With r guesses the (r + 1) // 2 largest scores are guessed in, and the r // 2 smallest out.
    Ranks of all scores together need no threshold, and do not use the coins. The best of k numbers
    of guesses is taken, each at significance / k, which is valid if k and the numbers were chosen
    before the scores were seen. This cannot be checked here.

    Args:
        scores_in: Scores of the canaries that were in, ``[n_in]``, in any unit; every canary had a
            fair coin.
        scores_out: Scores of those that were out, ``[n_out]``, in the same unit.
        delta: Delta in [0, 1).
        significance: Probability in (0, 1) with which the bound may fail.
        guesses: Numbers of guesses, chosen before the scores were seen; None for
            `default_guesses`, which depend only on the number of canaries.
        unscored: Number of canaries that had a coin, but have no score.
        sides: "both": the largest scores are guessed in and the smallest out, half of the guesses
            each. "in": all guesses are that the largest scores are in, for an attack that
            identifies only members.

    Returns:
        The bound. Canaries that tie with one that is not guessed, or guessed differently, are not
        guessed. These guesses count as made and wrong, as do those for which no score is left.

    Raises:
        ValueError: If scores are not one-dimensional or hold nan, a number of guesses is not a
            whole number from 1 to that of canaries, ``sides`` is unknown, or ``delta`` or
            ``significance`` is out of its range.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> scores = 1 + rng.standard_normal(500), rng.standard_normal(500)
        >>> bound = epsilon_one_run_from_scores(*scores, delta=1e-5, significance=0.05)
        >>> round(bound.value, 2), bound.guesses, bound.correct
        (1.33, 125, 108)
    """
    d = delta_or_zero(delta)
    return best_of_ranks(
        scores_in,
        scores_out,
        lambda correct, number, canaries, share: epsilon_one_run(
            correct, number, canaries, d, share
        ),
        significance,
        guesses,
        unscored,
        sides,
    )


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
