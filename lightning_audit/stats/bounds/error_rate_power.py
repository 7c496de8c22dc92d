"""How many guesses of fair coins refute a claim about their error rate.

The claim is that every guess errs with at least a given rate, given the past. The guesses are those
of an attack of constant error rate.

References:
    Clopper and Pearson, "The use of confidence or fiducial limits illustrated in the case of the
    binomial", Biometrika 26, 1934, doi:10.1093/biomet/26.4.404. The e-value is that of
    `lightning_audit.stats.bounds.confidence_sequence`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import special

from lightning_audit import _validate
from lightning_audit.stats._arguments import Floats, significance_level
from lightning_audit.stats.bounds.confidence_sequence import error_rate_log_e

__all__ = [
    "anytime_power",
    "flawless_guesses",
    "flawless_guesses_at_end",
    "further_guesses",
    "guesses_for_anytime_power",
    "guesses_for_power",
]

#: Log e-value of numbers of errors and guesses at a rate.
LogE = Callable[[int, int, float], NDArray[np.float64]]

#: Numbers of guesses above this are not searched.
MOST_GUESSES = 10**12
# Numbers of guesses of `guesses_for_power` above this are not computed exactly.
_LARGEST_EXACT = 4_000_000


def flawless_guesses(rate: float, significance: float) -> int | None:
    """Return how many guesses without an error refute the rate, at any number of looks.

    The smallest number n with ``error_rate_log_e(0, n, rate) >= log(1 / significance)``.

    Args:
        rate: Claimed least error rate, in (0, 1/2].
        significance: Probability in (0, 1) with which a true claim may be refuted.

    Returns:
        The number; None above 10^12.

    Raises:
        ValueError: If an argument is out of its range.

    Example:
        The claim (8, 1e-5)-DP, and Gaussian DP with that epsilon:

        >>> flawless_guesses((1 - 1e-5) / (1 + math.exp(8)), 1e-3), flawless_guesses(0.202418, 1e-3)
        (20844, 42)
    """
    return further_guesses(0, 0, rate, significance)


def flawless_guesses_at_end(rate: float, significance: float) -> int:
    r"""Return how many guesses without an error refute the rate at one look, fixed beforehand.

    .. math:: n = \lceil \ln(\text{significance}) / \ln(1 - e) \rceil

    Arguments and errors are those of `flawless_guesses`.

    Example:
        >>> flawless_guesses_at_end((1 - 1e-5) / (1 + math.exp(8)), 1e-3)
        20596
    """
    least, level = _rate("rate", rate), significance_level(significance)
    return math.ceil(math.log(level) / math.log1p(-least))


def further_guesses(errors: int, guesses: int, rate: float, significance: float) -> int | None:
    """Return how many more guesses refute the rate, if errors remain as frequent as they were.

    Not a bound: the error rate of the future guesses is taken to be ``errors / guesses``.

    Args:
        errors: Number of wrong guesses so far, in [0, guesses].
        guesses: Number of guesses so far, >= 0; without any, future guesses are without error.
        rate: Claimed least error rate, in (0, 1/2].
        significance: Probability in (0, 1) with which a true claim may be refuted.

    Returns:
        The number of further guesses, 0 if those so far refute the claim; None above 10^12, or if
        errors were at least as frequent as claimed.

    Raises:
        ValueError: If an argument is out of its range.

    Example:
        >>> further_guesses(50, 200, 0.32, 1e-3)
        548
    """
    least, goal = _rate("rate", rate), -math.log(significance_level(significance))
    if error_rate_log_e(errors, guesses, least) >= goal:
        return 0
    if guesses and errors >= least * guesses:
        return None
    share = errors / guesses if guesses else 0.0

    def refutes(more: int) -> bool:
        wrong = errors + math.ceil(share * more)
        return bool(error_rate_log_e(wrong, guesses + more, least) >= goal)

    return _first(refutes)


def anytime_power(
    guesses: int,
    rate: float,
    true_rate: float,
    significance: float,
    log_e: LogE = error_rate_log_e,
) -> float:
    """Return the probability that guesses of an attack refute the rate at a look after them.

    A lower bound on the power of looking at all times, by the binomial distribution of the errors.

    Args:
        guesses: Number of guesses, >= 0.
        rate: Claimed least error rate, in (0, 1/2].
        true_rate: Error rate of each guess, in [0, 1].
        significance: Probability in (0, 1) with which a true claim may be refuted.
        log_e: Log e-value of numbers of errors and guesses at a rate, which falls with the errors.

    Returns:
        Power in [0, 1].

    Raises:
        ValueError: If an argument is out of its range.

    Example:
        >>> round(anytime_power(300, 0.321874, 0.2024, 1e-3), 2)
        0.66
    """
    least, goal = _rate("rate", rate), -math.log(significance_level(significance))
    if not guesses or log_e(0, guesses, least) < goal:
        return 0.0
    low, high = 0, guesses + 1
    while high - low > 1:
        middle = (low + high) // 2
        refuted = bool(log_e(middle, guesses, least) >= goal)
        low, high = (middle, high) if refuted else (low, middle)
    return float(special.bdtr(low, guesses, true_rate)) if low < guesses else 1.0


def guesses_for_anytime_power(
    rate: float,
    true_rate: float,
    significance: float,
    power: float = 0.95,
    log_e: LogE = error_rate_log_e,
) -> int | None:
    """Return about the least number of guesses at which `anytime_power` reaches a power.

    The power does not quite increase with the number of guesses; at the returned number it is
    reached, and half of the numbers below are not searched.

    Arguments and errors are those of `anytime_power`; ``power`` in (0, 1) is the wanted one.

    Returns:
        The number; None if the true rate is not below the claimed one, or above 10^12.

    Example:
        >>> guesses_for_anytime_power(0.321874, 0.202418, 1e-3)
        459
    """
    wanted = _validate.open_unit("power", power, "such as 0.95")
    if true_rate >= _rate("rate", rate):
        return None
    return _first(lambda n: anytime_power(n, rate, true_rate, significance, log_e) >= wanted)


def guesses_for_power(
    rate: float, true_rate: float, significance: float, power: float = 0.95
) -> int | None:
    """Return the least number of guesses with which one look refutes the rate with a power.

    The number is fixed beforehand, and the test is the binomial one, as in Clopper and Pearson's
    limit. The power does not quite increase with the number: a few more guesses may have less.

    Args:
        rate: Claimed least error rate, in (0, 1/2].
        true_rate: Error rate of each guess, in [0, rate).
        significance: Probability in (0, 1) with which a true claim may be refuted.
        power: Probability in (0, 1) of refuting the claim.

    Returns:
        The number of guesses; None above four million.

    Raises:
        ValueError: If an argument is out of its range.

    Example:
        Claim and truth are Gaussian, with epsilon 4 and 8 at 1e-5:

        >>> guesses_for_power(0.321874, 0.202418, 0.05), guesses_for_power(0.321874, 0.202418, 1e-3)
        (145, 305)
    """
    least, level = _rate("rate", rate), significance_level(significance)
    wanted = _validate.open_unit("power", power, "such as 0.95")
    if not 0.0 <= true_rate < least:
        raise ValueError(
            f"true_rate={true_rate!r} must be in [0, rate={least!r}); no number of guesses refutes "
            "a rate that is not above the true one."
        )
    spreads = [
        -special.ndtri(miss) * math.sqrt(at * (1.0 - at))
        for miss, at in ((level, least), (1.0 - wanted, true_rate))
    ]
    about = (sum(spreads) / (least - true_rate)) ** 2 + flawless_guesses_at_end(least, level)
    if about > _LARGEST_EXACT:
        return None
    sizes = np.arange(1, int(3.0 * about) + 100)
    return int(sizes[np.argmax(_power_at_end(sizes, least, true_rate, level) >= wanted)])


def _power_at_end(
    sizes: NDArray[np.int64], rate: float, true_rate: float, significance: float
) -> Floats:
    """Return the power of the one-sided binomial test, ``[n]``."""
    most = np.floor(np.nan_to_num(special.bdtrik(significance, sizes, rate), nan=-1.0))
    for step in (1.0, -1.0, -1.0):  # the inverse may be off by rounding
        trial = most + max(step, 0.0)
        fits = special.bdtr(np.clip(trial, 0.0, sizes), sizes, rate) <= significance
        most = np.where(fits, trial, most + min(step, 0.0))
        most = np.maximum(most, -1.0)
    none = np.log1p(-rate) * sizes > math.log(significance)
    power = special.bdtr(np.clip(most, 0.0, sizes), sizes, true_rate)
    return np.where(none, 0.0, power)


def _first(holds: Callable[[int], bool]) -> int | None:
    """Return the smallest whole number >= 0 for which a condition holds, if it holds from there."""
    if holds(0):
        return 0
    low, high = 0, 1
    while not holds(high):
        low, high = high, 2 * high
        if high > MOST_GUESSES:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _rate(name: str, value: float) -> float:
    rate = _validate.open_unit(name, value, "it is the least error rate of a guess at a fair coin")
    if rate > 0.5:
        raise ValueError(f"{name}={rate!r} must be at most 0.5, the error rate of a blind guess.")
    return rate
