"""Lower bounds on epsilon from guesses about many canaries, each of which went in by its own coin.

One number of guesses is compared with one binomial law. Where an upper limit for each of two error
rates wastes most of its significance, because both must fail at once, this does not: it is the
tighter bound at few false positives. Nothing is asked of the scores: they may depend on each other,
as those of canaries in one training do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize, special

from lightning_audit import _validate
from lightning_audit.stats._arguments import delta_or_zero
from lightning_audit.stats._confusion import ConfusionCounts

__all__ = [
    "OneRunBound",
    "default_guesses",
    "epsilon_one_run",
    "epsilon_one_run_from_scores",
    "one_run_p_value",
]

_ADVICE = "it is the probability with which the bound may fail"


def one_run_p_value(
    correct: int, guesses: int, canaries: int, epsilon: float, delta: float
) -> float:
    r"""Probability of at least so many correct guesses, at most, under (epsilon, delta)-DP.

    Each of m canaries goes in by a fair coin of its own. Whoever sees the output, but no coin,
    guesses r of the coins. Under (epsilon, delta)-DP for adding or removing one canary, at least v
    guesses are correct with a probability of at most

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
        section 5.
    """
    v, r, m = _whole(correct, guesses, canaries)
    return _p_value(v, r, m, _validate.non_negative("epsilon", epsilon), delta_or_zero(delta))


def epsilon_one_run(
    correct: int, guesses: int, canaries: int, delta: float, significance: float
) -> float:
    """Lower bound on epsilon from the number of correct guesses of canaries' coins.

    Exceeds the true epsilon with probability at most ``significance``, for every mechanism: it is
    where `one_run_p_value` exceeds the significance. The number of guesses is fixed beforehand.
    Which canaries are guessed may depend on the scores of all, but on no coin.

    Args:
        correct: Number of correct guesses.
        guesses: Number of guesses.
        canaries: Number of coins, guessed or not.
        delta: Delta in [0, 1).
        significance: Probability in (0, 1) with which the bound may fail.

    Returns:
        The bound >= 0.

    Raises:
        ValueError: If the numbers are not whole with 0 <= correct <= guesses <= canaries, or
            ``delta`` or ``significance`` is out of its range.

    Example:
        >>> round(epsilon_one_run(900, 1000, 1000, delta=1e-5, significance=0.05), 4)
        2.0206

    References:
        As of `one_run_p_value`.
    """
    v, r, m = _whole(correct, guesses, canaries)
    d, level = delta_or_zero(delta), _validate.open_unit("significance", significance, _ADVICE)

    def excess(epsilon: float) -> float:
        return _p_value(v, r, m, epsilon, d) - level

    if v == 0 or excess(0.0) >= 0:
        return 0.0
    high = 1.0
    while excess(high) < 0:
        high *= 2.0
    # A claim implies every larger one, and each is rejected for many enough correct guesses: a
    # bound at any crossing fails no more often than the largest claim below it is rejected.
    return float(optimize.brentq(excess, 0.0, high, xtol=1e-12, rtol=1e-13))


@dataclass(frozen=True)
class OneRunBound:
    """A lower bound, and the guesses that it was read at.

    Args:
        value: The lower bound on epsilon.
        guesses: Number of canaries that were guessed to be in.
        correct: Number of those that were in.
    """

    value: float
    guesses: int
    correct: int


def epsilon_one_run_from_scores(
    scores_in: ArrayLike,
    scores_out: ArrayLike,
    delta: float,
    significance: float,
    *,
    guesses: Sequence[int] | None = None,
) -> OneRunBound:
    """Lower bound on epsilon from the canaries with the largest scores, guessed to be in.

    Ranks of all scores together need no threshold, and no look at a coin. The best of k numbers of
    guesses is taken, each at significance / k; that k and the numbers are fixed beforehand is what
    makes the search valid.

    Args:
        scores_in: Scores of the canaries that were in, ``[n_in]``; every canary had a fair coin.
        scores_out: Scores of those that were out, ``[n_out]``.
        delta: Delta in [0, 1).
        significance: Probability in (0, 1) with which the bound may fail.
        guesses: Numbers of guesses; None for `default_guesses`.

    Returns:
        The bound. Of canaries with the same score as one that is not guessed, none is guessed, so
        that its guesses may be fewer than asked for.

    Raises:
        ValueError: If scores are not one-dimensional or hold nan, a number of guesses is no whole
            number from 1 to that of canaries, or ``delta`` or ``significance`` is out of its range.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> scores = 1 + rng.standard_normal(500), rng.standard_normal(500)
        >>> bound = epsilon_one_run_from_scores(*scores, delta=1e-5, significance=0.05)
        >>> round(bound.value, 2), bound.guesses, bound.correct
        (1.32, 62, 56)

    References:
        As of `one_run_p_value`; Bonferroni's inequality.
    """
    level = _validate.open_unit("significance", significance, _ADVICE)
    d = delta_or_zero(delta)
    pooled = np.sort(np.concatenate([np.ravel(scores_in), np.ravel(scores_out)]))[::-1]
    m = len(pooled)
    numbers = default_guesses(m) if guesses is None else tuple(sorted(set(guesses)))
    for number in numbers:
        if _validate.positive_int("guesses", number) > m:
            raise ValueError(
                f"guesses={number!r} must be at most the number of canaries, {m}; guess fewer."
            )
    lowest = np.append(pooled, -np.inf)[list(numbers)]
    counts = ConfusionCounts.from_scores(scores_in, scores_out, lowest)
    best = OneRunBound(0.0, 0, 0)
    for number, correct, wrong in zip(numbers, counts.tp, counts.fp, strict=True):
        # Guesses that a tie left out count as made, and as wrong: making them by any rule that
        # sees no coin could only add correct ones.
        value = epsilon_one_run(correct, number, m, d, level / len(numbers))
        if value > best.value or not best.guesses:
            best = OneRunBound(value, int(correct + wrong), int(correct))
    return best


def default_guesses(canaries: int) -> tuple[int, ...]:
    """Numbers of guesses for which a search by `epsilon_one_run_from_scores` pays.

    Fewer guesses find the canaries that stand out, but r of them prove no more than an epsilon of
    about ln(r / 3) at a significance of .05; and every further number costs significance.

    Args:
        canaries: Number of canaries, >= 0.

    Returns:
        A quarter of the canaries, a 16th and a 64th, without those that are 0.

    Example:
        >>> default_guesses(1000)
        (250, 62, 15)
    """
    return tuple(canaries // part for part in (4, 16, 64) if canaries >= part)


def _p_value(v: int, r: int, m: int, epsilon: float, delta: float) -> float:
    # Pr[W >= j] for j = 0, ..., v.
    j = np.arange(v + 1)
    at_least = np.ones(v + 1)
    at_least[1:] = special.betainc(j[1:], r - j[1:] + 1.0, special.expit(epsilon))
    p = float(at_least[v])
    if delta > 0 and v:
        # j = v - i: correct guesses that delta need not supply.
        p += 2.0 * m * delta * float(np.max((at_least[:v] - p) / (v - j[:v])))
    # A probability, whatever the bound on it.
    return min(p, 1.0)


def _whole(correct: int, guesses: int, canaries: int) -> tuple[int, int, int]:
    whole = all(isinstance(k, (int, np.integer)) for k in (correct, guesses, canaries))
    if not (whole and 0 <= correct <= guesses <= canaries):
        raise ValueError(
            f"correct={correct!r}, guesses={guesses!r} and canaries={canaries!r} must be "
            "whole numbers with 0 <= correct <= guesses <= canaries; guess each canary once."
        )
    return int(correct), int(guesses), int(canaries)
