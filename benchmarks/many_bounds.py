"""Bounds over many trainings whose scores are Gaussian, in parts of the true epsilon.

The claim is mu 1.666, epsilon 8; the attack sees mu 1.61, so that its epsilon, 7.7, is the most
that a bound can prove. docs/many-trainings-statistics.md has the table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from lightning_audit.many.looks import guess_coins, mu_lower_of_scores
from lightning_audit.many.verdict import mu_of_error
from lightning_audit.stats.binomial import clopper_pearson_upper
from lightning_audit.stats.tradeoff import gaussian_epsilon

Floats = NDArray[np.float64]

CLAIMED, SEEN, DELTA, LEVEL = 1.666, 1.61, 1e-5, 0.05
#: What an attack makes of Gaussian scores, of which 0 is the middle.
SCORES: dict[str, Callable[[Floats], Floats]] = {
    "Gaussian scores": lambda scores: scores,
    "scores of two values": np.sign,
    "heavy tails": lambda scores: np.sinh(2.0 * scores),
    "a first score of 1e4": lambda scores: np.concatenate(
        [[np.full_like(scores[0], 1e4)], scores[1:]]
    ),
    "drift of .02 a training": lambda scores: scores + 0.02 * np.arange(len(scores))[:, None],
}


def fractions(mu: float) -> float:
    """Return the epsilon of a mu over that of what the attack sees."""
    return float(gaussian_epsilon(max(mu, 1e-6), DELTA) / gaussian_epsilon(SEEN, DELTA))


def audit(trainings: int, canaries: int, law: Callable[[Floats], Floats], seed: int) -> list[float]:
    """Return what guesses prove at the end and at any look, and scores at any look."""
    rng = np.random.default_rng([seed, trainings, canaries])
    coins = rng.random((trainings, canaries)) < 0.5
    scores = law(SEEN * (coins - 0.5) + rng.standard_normal(coins.shape))
    given = scores, coins, np.zeros(trainings, dtype=bool)
    guesses = guess_coins(*given)
    # Canaries of one training are not independent, so the first is for one canary alone.
    end = float(clopper_pearson_upper(guesses.errors, guesses.total, LEVEL))
    mus = (
        mu_of_error(end),
        mu_of_error(guesses.error_upper(LEVEL)),
        mu_lower_of_scores(*given, CLAIMED, trainings, LEVEL),
    )
    return [fractions(mu) for mu in mus]


def run(
    audits: int = 200, sizes: Sequence[int] = (200, 500, 1000), others: int = 200
) -> dict[str, str]:
    """Return the medians, and in how many audits a bound exceeded the truth.

    Args:
        audits: Number of audits of each row.
        sizes: Numbers of trainings with Gaussian scores.
        others: Number of trainings with other scores.
    """
    cells = [(n, canaries, "Gaussian scores") for canaries in (1, 4) for n in sizes]
    cells += [(others, 1, name) for name in SCORES if name != "Gaussian scores"]
    found = {}
    for n, canaries, name in cells:
        rows = np.array([audit(n, canaries, SCORES[name], seed) for seed in range(audits)])
        end, guessed, scored = np.median(rows, axis=0)
        above = (rows > 1.0).sum(axis=0)
        at_end = f"{end:.2f} (above the truth {above[0]}) at the end, " * (canaries == 1)
        found[f"{n} trainings of {canaries} canaries, {name}"] = (
            f"{at_end}at any look {guessed:.2f} ({above[1]}) from guesses, "
            f"{scored:.2f} ({above[2]}) from scores, of {audits}"
        )
    return found
