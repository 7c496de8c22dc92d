"""Counts of guesses of canaries' coins, and the choice of the canaries to guess."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lightning_audit import _validate
from lightning_audit.stats._arguments import significance_level
from lightning_audit.stats._confusion import score_vector

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
    """Return the numbers of guesses that `epsilon_one_run_from_scores` tries by default.

    Few guesses select the canaries with the clearest scores, but r guesses prove at most an epsilon
    of about ln(r / 3) at a significance of .05, and every further number costs significance. With
    both sides, the best fraction is between all and a 128th in simulations (Gaussian scores with a
    mu of .5 to 3, randomized response of epsilon 1 and 2, 100 to 100,000 canaries). There the
    median bound of these numbers is .93 of that at the best single number for Steinke's bound
    (arXiv:2305.08846), .89 for that on mu, and never below .76; a quarter, a 16th and a 64th have
    .81, .73 and 0.

    Args:
        canaries: Number of canaries, >= 0.
        sides: Which canaries are guessed, as in `epsilon_one_run_from_scores`.

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


def best_of_ranks(
    scores_in: ArrayLike,
    scores_out: ArrayLike,
    bound: FromGuesses,
    significance: float,
    guesses: Sequence[int] | None,
    unscored: int = 0,
    sides: Sides = "both",
) -> OneRunBound:
    """Return the largest bound of the given numbers of guesses, each at its share of significance.

    With r guesses on both sides, the (r + 1) // 2 largest scores are guessed in and the r // 2
    smallest out. The scores alone determine which canaries these are, not the coins.
    """
    level = significance_level(significance)
    _validate.one_of("sides", sides, SIDES)
    if unscored:
        _validate.positive_int("unscored", unscored, "or 0: the number of canaries without a score")
    inside = np.sort(score_vector("scores_in", scores_in))
    outside = np.sort(score_vector("scores_out", scores_out))
    # Canaries without a score are never guessed, but their coins count.
    m = len(inside) + len(outside) + unscored
    numbers = default_guesses(m, sides) if guesses is None else tuple(sorted(set(guesses)))
    for number in numbers:
        if _validate.positive_int("guesses", number) > m:
            raise ValueError(
                f"guesses={number!r} must be at most the number of canaries, {m}; guess fewer."
            )
    made, right = _made_and_right(inside, outside, np.array(numbers, dtype=np.int64), sides)
    best = OneRunBound(0.0, 0, 0)
    for number, guessed, correct in zip(numbers, made, right, strict=True):
        # Guesses that a tie or a missing score left out count as made, and as wrong: any rule that
        # does not see the coins could only add correct ones.
        value = bound(int(correct), int(number), m, level / len(numbers))
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
