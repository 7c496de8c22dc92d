"""What a number of trainings can refute, before the first of them and after the last."""

from __future__ import annotations

from scipy import special

from lightning_audit import _validate
from lightning_audit.many.least_error import Promise, epsilon_of_any_mechanism, mu_of_error
from lightning_audit.stats._arguments import significance_level
from lightning_audit.stats.bounds.error_rate_power import (
    flawless_guesses,
    guesses_for_anytime_power,
)
from lightning_audit.stats.evalues.share_bet import log_e_of_whole_shares

__all__ = ["before_the_first", "error_to_see", "trainings_to_pass"]

_POWER = 0.95
#: About how many trainings show both data sets before the first guess: the mean of fair coins.
BEFORE_GUESSES = 3


def before_the_first(promise: Promise, trainings: int, significance: float) -> str:
    """Return what the planned trainings can refute at best, to be shown before the first one.

    Args:
        promise: What is claimed.
        trainings: Number of planned trainings.
        significance: Probability in (0, 1) with which a true claim may be refuted.

    Returns:
        A sentence or two: after how many guesses an attack without errors refutes the claim, how
        many are planned, and what to do if they are too few.

    Raises:
        ValueError: If an argument is out of its range.

    Example:
        >>> from lightning_audit.many.least_error import promise_of
        >>> sentence = before_the_first(promise_of((8.0, 1e-5)), 1000, 1e-3)
        >>> print(sentence[:70])
        an attack without errors refutes (8, 1e-05)-DP after 20,844 guesses, a
    """
    planned = _validate.positive_int("trainings", trainings)
    level = significance_level(significance)
    needed = flawless_guesses(promise.least_error, level)
    told = "more than 10^12" if needed is None else f"{needed:,}"
    first = f"an attack without errors refutes {promise.words} after {told} guesses"
    guesses = planned - BEFORE_GUESSES
    if needed is not None and needed <= guesses:
        return f"{first}; {planned:,} trainings are planned"
    most = epsilon_of_any_mechanism(1.0 - level ** (1.0 / max(guesses, 1)), promise.delta)
    instead = (
        "; claim noise_multiplier, sample_rate and steps as PrivacyClaim instead, which takes "
        "fewer trainings"
        if promise.form == "epsilon"
        else "; plan more trainings"
    )
    bound = f", only bound epsilon by at most {most:.2g}" if promise.form == "epsilon" else ""
    return (
        f"{first}, and {planned:,} trainings are planned: the audit cannot refute the claim{bound}"
        f"{instead}"
    )


def trainings_to_pass(
    least_error: float, significance: float, failed: float = 0.0, canaries: int = 1
) -> int | None:
    """Return after how many guessed trainings the power that a PASS needs is reached.

    They are those at which an attack of twice the claimed strength would be found with 95 % power:
    one with the mean error rate of Gaussian DP with twice the mu of the claim. Canaries of one
    training are taken to be guessed all right or all wrong, which varies most.

    Args:
        least_error: Least mean error rate that the claim allows, in (0, 1/2].
        significance: Probability in (0, 1) with which a true claim may be refuted.
        failed: Share of trainings that fail, which are wrong guesses.
        canaries: Number of canaries in each training.

    Returns:
        The number; None if there is none.

    Example:
        >>> from lightning_audit.many.least_error import promise_of
        >>> from lightning_audit.stats.tradeoff.tradeoff_functions import GaussianTradeoff
        >>> trainings_to_pass(promise_of(GaussianTradeoff(1.666)).least_error, 1e-3)
        153
    """
    error = failed + (1.0 - failed) * float(special.ndtr(-mu_of_error(least_error)))
    if canaries == 1:
        return guesses_for_anytime_power(least_error, error, significance, _POWER)
    return guesses_for_anytime_power(
        least_error, error, 0.5 * significance, _POWER, log_e_of_whole_shares
    )


def error_to_see(least_error: float) -> float:
    """Return the mean error rate up to which an attack sees half of the claimed strength.

    The strength is the mu of Gaussian DP, also for a claim of (epsilon, delta), whose mu is that
    of the best attack that it allows.

    Args:
        least_error: Least mean error rate that the claim allows, in (0, 1/2].

    Returns:
        The rate, in (0, 1/2].

    Example:
        >>> round(error_to_see(0.3085), 4)  # of 1-GDP: Phi(-1/4)
        0.4013
    """
    return float(special.ndtr(-0.25 * mu_of_error(least_error)))
