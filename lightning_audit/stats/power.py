"""Number of steps, readings or guesses that an audit needs to detect a given violation.

**Number of observations that a bound from counts needs to refute a false claim.** Observations are
readings of a Gaussian mechanism, half of them with the canary in. The threshold is midway between
the two means, fixed beforehand, and there is one look. The errors are then independent binomials,
so the power is a sum over errors of the bound's own decision: there is no simulation and no
approximate formula. `lightning_audit.stats.power` has the power of the audit's own tests.

**How many guesses of fair coins refute a claim about their error rate.** The claim is that every
guess errs with at least a given rate, given the past. The guesses are those of an attack of
constant error rate.

**Number of steps that an audit needs to detect a given violation.** A PASS is only as strong as the
violations that the audit could have detected. These functions compute, without simulation and in
microseconds, the probability that the tests `noise_log_e` and `CoinBet` flag a violation within a
number of steps. They evaluate one look, at the last step; the tests look at every step, so their
true power is slightly higher.

References:
    The bounds are those of Nasr et al., "Tight auditing of differentially private machine
    learning", USENIX Security 2023, arXiv:2302.07956, and `mu_pooled_clopper_pearson`.
    Clopper and Pearson, "The use of confidence or fiducial limits illustrated in the case of the
    binomial", Biometrika 26, 1934, doi:10.1093/biomet/26.4.404. The e-value is that of
    `lightning_audit.stats.binomial`.
    The tests are own constructions on e-processes (arXiv:2210.01948). `noise_power` is exact for
    one look; `sensitivity_power` is a normal approximation, checked by simulation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from lightning_audit import _validate
from lightning_audit.stats._arguments import ConfusionCounts, Floats, significance_level
from lightning_audit.stats.binomial import error_rate_log_e
from lightning_audit.stats.canary_bets import COIN_SLOPES
from lightning_audit.stats.counts import mu_clopper_pearson, mu_pooled_clopper_pearson
from lightning_audit.stats.noise_tests import noise_log_e
from lightning_audit.stats.posteriors import Posterior
from lightning_audit.stats.sequential import PredictableCentre

# --- Number of steps that an audit needs to detect a given violation.

#: Number of steps that the coin bet needs to find its center and scale.
_WARM_UP = 3

_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(81)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()
#: Midpoints of equal parts of the distribution of a number of heads.
_LEVELS = (np.arange(32) + 0.5) / 32


def noise_power(
    coordinates: int,
    steps: int,
    noise_ratio: float,
    data_variance: float = 0.0,
    significance: float = 1e-4,
) -> float:
    """Return the probability that the noise test flags noise of ``noise_ratio`` times the claim.

    The residual's variance is ``noise_ratio^2 + data_variance`` in units of the claimed noise,
    times the cost of the predictable center. The e-value falls with the sum of squares, so the
    power is one chi-square probability.

    Args:
        coordinates: Number of independent coordinates read in a step.
        steps: Number of steps.
        noise_ratio: True noise over claimed noise, in (0, 1).
        data_variance: Variance of the data term over the variance of the claimed noise, >= 0.
        significance: The test's share of the significance, in (0, 1).

    Returns:
        Probability of a flag at the last step.

    Raises:
        ValueError: If an argument is outside its range.

    Example:
        >>> round(noise_power(8, 100, 0.8255), 2)
        0.99
    """
    coordinates = _validate.positive_int("coordinates", coordinates)
    steps = _validate.positive_int("steps", steps)
    ratio = _validate.open_unit("noise_ratio", noise_ratio)
    data = _validate.non_negative("data_variance", data_variance)
    level = -math.log(_validate.open_unit("significance", significance))
    count = coordinates * steps
    variance = (ratio**2 + data) * _centring_cost(steps)
    # Above one claimed variance per coordinate, the test cannot flag: every bet has lost.
    largest = _largest_flagged(count, level)
    return float(scipy.special.gammainc(count / 2, largest / variance / 2)) if largest > 0 else 0.0


def _centring_cost(steps: int) -> float:
    """Return the mean factor by which the noise of the predictable center widens a residual."""
    prior = PredictableCentre.PRIOR
    # The sum of t / (t + prior)^2 over t < steps.
    first = scipy.special.digamma(steps + prior) - scipy.special.digamma(prior)
    second = scipy.special.polygamma(1, prior) - scipy.special.polygamma(1, steps + prior)
    return float(1.0 + (first - prior * second) / steps)


# Powers at a hundred noise ratios need the same value.
@lru_cache(maxsize=256)
def _largest_flagged(count: int, level: float) -> float:
    """Return the largest sum of squares that the noise test still flags; 0 if none."""

    def excess(total: float) -> float:
        return float(noise_log_e(count, total)) - level

    if excess(0.0) <= 0:
        return 0.0
    return float(scipy.optimize.brentq(excess, 0.0, float(count), xtol=1e-9 * count))


def sensitivity_power(
    canaries: int,
    steps: int,
    shift: float,
    residual_std: float,
    significance: float = 1e-4,
    coin_probability: float = 0.5,
) -> float:
    """Return the probability that the coin bet flags a canary that adds ``shift`` times its limit.

    The log wealth of the best slope is a sum of independent terms whose mean and variance are
    integrals over a normal. The full cost of the mixture over slopes is subtracted, and so are
    three steps, more for rare coins, in which the bet finds its center and scale. A coin that is
    not fair gains more on one side than on the other, so the power is averaged over the number of
    times that a canary is in.

    Args:
        canaries: Number of canaries in a step.
        steps: Number of steps.
        shift: What the canary adds over what clipping allows, > 1.
        residual_std: Standard deviation of a reading (noise and data) in units of the signal, > 0.
        significance: The test's share of the significance, in (0, 1).
        coin_probability: Known probability in (0, 1) that a canary is in.

    Returns:
        Probability of a flag at the last step, to the accuracy of the normal approximation.

    Raises:
        ValueError: If an argument is outside its range.

    Example:
        >>> sensitivity_power(8, 193, 2.0, 3.0) >= 0.95
        True
    """
    canaries = _validate.positive_int("canaries", canaries)
    steps = _validate.positive_int("steps", steps)
    effect = _validate.positive("shift", shift) - 1.0
    if effect <= 0:
        raise ValueError(f"shift={shift!r} must be > 1; correct clipping gives 1.")
    effect /= _validate.positive("residual_std", residual_std)
    level = -np.log(_validate.open_unit("significance", significance)) + np.log(len(COIN_SLOPES))
    p = _validate.open_unit("coin_probability", coin_probability)
    # The information about an effect is proportional to p (1 - p).
    warm_up = math.ceil(_WARM_UP / (4.0 * p * (1.0 - p)))
    count = canaries * max(steps - warm_up, 0)
    if count == 0:
        return 0.0
    mean, variance = _moments(effect, p, p)
    if p == 0.5:
        scale = np.sqrt(count) * np.sqrt(variance)
        return float(np.max(scipy.special.ndtr((count * mean - level) / scale)))
    mean_out, variance_out = _moments(effect, 1.0 - p, p)
    # The smallest whole number whose distribution function reaches the level.
    inside = np.ceil(scipy.special.bdtrik(_LEVELS, count, p).clip(0.0, count))[:, None]
    outside = count - inside
    scale = np.sqrt(inside * variance + outside * variance_out)
    powers = scipy.special.ndtr((inside * mean + outside * mean_out - level) / scale)
    return float(np.max(powers.mean(axis=0)))


def _moments(effect: float, chance: float, p: float) -> tuple[Floats, Floats]:
    """Return mean and variance of the gain on a side of probability ``chance``, ``[slopes]``."""
    # Centered on the mean of both groups, a residual is at this distance from it.
    x = ((1.0 - chance) * effect + _NODES) / np.sqrt(1.0 + p * (1.0 - p) * effect**2)
    u = COIN_SLOPES[:, None] * x + ((chance - 0.5) * COIN_SLOPES**2)[:, None]
    gains = -np.log(chance) - np.logaddexp(0.0, np.log((1.0 - chance) / chance) - u)
    mean = gains @ _WEIGHTS
    return mean, np.maximum((gains**2) @ _WEIGHTS - mean**2, 1e-30)


def steps_needed(power: Callable[[int], float], target: float = 0.95, limit: int = 10**7) -> int:
    """Return the smallest number of steps with at least the target power.

    Args:
        power: Probability of a flag as a function of the number of steps, non-decreasing.
        target: The target power, in (0, 1).
        limit: Number of steps at which the search ends.

    Returns:
        The number of steps; ``limit`` if there is none below it.

    Raises:
        ValueError: If ``target`` is not in (0, 1).

    Example:
        >>> steps_needed(lambda steps: noise_power(8, steps, 0.8))
        61
    """
    target = _validate.open_unit("target", target)
    return _first(lambda steps: power(steps) >= target, limit - 1) or limit


# --- Number of observations that a bound from counts needs to refute a false claim.

Counts = NDArray[np.int64]

#: Whether a bound at a significance exceeds the claimed mu, by the bound's name.
POWER_METHODS: dict[str, Callable[[ConfusionCounts, float, float], NDArray[np.bool_]]] = {
    "fdp_pooled_cp": lambda counts, mu, significance: np.asarray(
        mu_pooled_clopper_pearson(counts, significance) > mu
    ),
    "fdp_cp": lambda counts, mu, significance: np.asarray(
        mu_clopper_pearson(counts, significance) > mu
    ),
    # The posterior's quantile exceeds mu if less than the quantile's level lies below mu.
    "fdp_bayes": lambda counts, mu, significance: np.asarray(
        Posterior.of_mu(counts, region="one_sided").cdf(mu) < significance
    ),
}

#: Midpoints of equal parts of the distribution of the false negatives.
_FINE_LEVELS = (np.arange(128) + 0.5) / 128


def bound_power(
    method: str, mu_claimed: float, mu_true: float, n: int, significance: float = 0.05
) -> float:
    """Return the probability that a bound from counts refutes the claim at one look.

    False negatives are represented by 128 equal parts of their distribution, and false positives
    by all of theirs: in the test cases the error is below 0.001. The power does not quite increase
    with n, because counts are whole numbers. For "fdp_bayes" the decision is that of the published
    credible bound; its false-alarm rate is 5 to 7 % at a nominal 5 %.

    Args:
        method: "fdp_pooled_cp", "fdp_cp" or "fdp_bayes"; see `stats.named_bounds`.
        mu_claimed: Claimed mu of Gaussian DP of one observation, > 0.
        mu_true: True mu of the mechanism, > 0.
        n: Number of observations with the canary in, and of those without it.
        significance: Significance of the bound, in (0, 1); in (0, 1/4] for "fdp_pooled_cp".

    Returns:
        The power, in [0, 1].

    Raises:
        ValueError: If an argument is out of its range.

    Example:
        >>> round(bound_power("fdp_pooled_cp", 0.33307, 0.40348, 2500), 2)
        0.63
    """
    rejects = POWER_METHODS[_validate.one_of("method", method, POWER_METHODS)]
    claimed = _validate.positive("mu_claimed", mu_claimed)
    rate = float(scipy.special.ndtr(-0.5 * _validate.positive("mu_true", mu_true)))
    size = _validate.positive_int("n", n)
    level = significance_level(significance)
    # The smallest whole number whose distribution function reaches the level. It is 0 if no error
    # is as probable as the level; bdtrik fails for rates too small to change 1 - rate.
    none = np.exp(size * np.log1p(-rate))
    most = np.where(none >= _FINE_LEVELS, 0.0, scipy.special.bdtrik(_FINE_LEVELS, size, rate))
    fn = np.ceil(most.clip(0.0, size)).astype(np.int64)
    fn, parts = np.unique(fn, return_counts=True)

    def rejected(fp: Counts) -> NDArray[np.bool_]:
        counts = ConfusionCounts(fn=fn, tp=size - fn, fp=fp, tn=size - fp)
        return rejects(counts, claimed, level)

    # Largest number of false positives with which the claim is rejected; -1 if it never is.
    largest, above = np.full_like(fn, -1), np.full_like(fn, size + 1)
    while np.any(above - largest > 1):
        middle = (largest + above) // 2
        inside = rejected(middle.clip(0, size))
        largest = np.where(inside & (middle > largest), middle, largest)
        above = np.where(~inside & (middle < above), middle, above)
    below = np.where(largest >= 0, scipy.special.bdtr(np.maximum(largest, 0), size, rate), 0.0)
    return float(below @ parts / np.sum(parts))


# --- How many guesses of fair coins refute a claim about their error rate.

#: Log e-value of numbers of errors and guesses at a rate.
LogE = Callable[[int, int, float], NDArray[np.float64]]

#: Numbers of guesses above this are not searched.
MOST_GUESSES = 10**12


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

    return _first(refutes, MOST_GUESSES)


def anytime_power(
    guesses: int, rate: float, true_rate: float, significance: float, log_e: LogE = error_rate_log_e
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
    kept = _first_between(lambda errors: log_e(errors, guesses, least) < goal, 0, guesses + 1)
    return float(scipy.special.bdtr(kept - 1, guesses, true_rate)) if kept <= guesses else 1.0


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

    def suffices(guesses: int) -> bool:
        return anytime_power(guesses, rate, true_rate, significance, log_e) >= wanted

    return _first(suffices, MOST_GUESSES)


def _first(holds: Callable[[int], bool], most: int) -> int | None:
    """Return the smallest whole number >= 1 from which a condition holds; None if above ``most``.

    A number above the largest power of two that is at most ``most`` counts as above it.
    """
    low, high = 0, 1
    while not holds(high):
        low, high = high, 2 * high
        if high > most:
            return None
    return _first_between(holds, low, high)


def _first_between(holds: Callable[[int], Any], low: int, high: int) -> int:
    """Return the smallest number above ``low`` from which a condition holds, as at ``high``."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _rate(name: str, value: float) -> float:
    rate = _validate.open_unit(name, value, "it is the least error rate of a guess at a fair coin")
    if rate > 0.5:
        raise ValueError(f"{name}={rate!r} must be at most 0.5, the error rate of a blind guess.")
    return rate
