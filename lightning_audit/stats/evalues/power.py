"""Number of steps that an audit needs to detect a given violation.

A PASS is only as strong as the violations that the audit could have detected. These functions
compute, without simulation and in microseconds, the probability that the tests `noise_log_e` and
`CoinBet` flag a violation within a number of steps. They evaluate one look, at the last step; the
tests look at every step, so their true power is slightly higher.

References:
    The tests are own constructions on e-processes (arXiv:2210.01948). `noise_power` is exact for
    one look; `sensitivity_power` is a normal approximation, checked by simulation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from scipy import optimize, special

from lightning_audit import _validate
from lightning_audit.stats._arguments import Floats
from lightning_audit.stats.evalues.coin_bet import COIN_SLOPES
from lightning_audit.stats.evalues.noise_scale import noise_log_e
from lightning_audit.stats.evalues.sequential import PredictableCentre

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
    return float(special.gammainc(count / 2, largest / variance / 2)) if largest > 0 else 0.0


def _centring_cost(steps: int) -> float:
    """Return the mean factor by which the noise of the predictable center widens a residual."""
    prior = PredictableCentre.PRIOR
    # The sum of t / (t + prior)^2 over t < steps.
    first = special.digamma(steps + prior) - special.digamma(prior)
    second = special.polygamma(1, prior) - special.polygamma(1, steps + prior)
    return float(1.0 + (first - prior * second) / steps)


# Powers at a hundred noise ratios need the same value.
@lru_cache(maxsize=256)
def _largest_flagged(count: int, level: float) -> float:
    """Return the largest sum of squares that the noise test still flags; 0 if none."""

    def excess(total: float) -> float:
        return float(noise_log_e(count, total)) - level

    if excess(0.0) <= 0:
        return 0.0
    return float(optimize.brentq(excess, 0.0, float(count), xtol=1e-9 * count))


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
        return float(np.max(special.ndtr((count * mean - level) / scale)))
    mean_out, variance_out = _moments(effect, 1.0 - p, p)
    # The smallest whole number whose distribution function reaches the level.
    inside = np.ceil(special.bdtrik(_LEVELS, count, p).clip(0.0, count))[:, None]
    outside = count - inside
    scale = np.sqrt(inside * variance + outside * variance_out)
    powers = special.ndtr((inside * mean + outside * mean_out - level) / scale)
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
    high = 1
    while power(high) < target:
        high *= 2
        if high >= limit:
            return limit
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if power(middle) < target else (low, middle)
    return high
