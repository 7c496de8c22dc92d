"""What the bounds from guesses of canaries' coins share: counts of guesses, and their choice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from lightning_audit import _validate
from lightning_audit.stats._arguments import significance_level
from lightning_audit.stats._confusion import ConfusionCounts

#: From numbers of correct guesses, of guesses and of canaries, and a significance, to a bound.
FromGuesses = Callable[[int, int, int, float], float]


@dataclass(frozen=True)
class OneRunBound:
    """A lower bound, and the guesses that it was read at.

    Args:
        value: The lower bound, on epsilon or on mu as the function says.
        guesses: Number of canaries that were guessed to be in.
        correct: Number of those that were in.
    """

    value: float
    guesses: int
    correct: int


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


def whole_guesses(correct: int, guesses: int, canaries: int) -> tuple[int, int, int]:
    """The three numbers, if they are whole and each is at most the next."""
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
) -> OneRunBound:
    """The largest bound of the given numbers of guesses, each at its share of the significance."""
    level = significance_level(significance)
    if unscored:
        _validate.positive_int("unscored", unscored, "or 0: the number of canaries without a score")
    pooled = np.sort(np.concatenate([np.ravel(scores_in), np.ravel(scores_out)]))[::-1]
    # Canaries without a score come last and are never guessed; their coins count all the same.
    pooled = np.append(pooled, np.full(unscored, -np.inf))
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
        value = bound(int(correct), int(number), m, level / len(numbers))
        if value > best.value or not best.guesses:
            best = OneRunBound(value, int(correct + wrong), int(correct))
    return best
