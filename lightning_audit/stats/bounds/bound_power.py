"""Number of observations that a bound from counts needs to refute a false claim.

Observations are readings of a Gaussian mechanism, half of them with the canary in. The threshold
is midway between the two means, fixed beforehand, and there is one look. The errors are then
independent binomials, so the power is a sum over errors of the bound's own decision: there is no
simulation and no approximate formula. `lightning_audit.stats.evalues.power` has the power of the
audit's own tests.

References:
    The bounds are those of Nasr et al., "Tight auditing of differentially private machine
    learning", USENIX Security 2023, arXiv:2302.07956, and `mu_pooled_clopper_pearson`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import special

from lightning_audit import _validate
from lightning_audit.stats._arguments import significance_level
from lightning_audit.stats._confusion import ConfusionCounts
from lightning_audit.stats.bounds.gdp_counts import mu_clopper_pearson, mu_pooled_clopper_pearson
from lightning_audit.stats.posteriors.gdp_posterior import mu_posterior_cdf

__all__ = ["POWER_METHODS", "bound_power"]

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
        mu_posterior_cdf(mu, counts, region="one_sided") < significance
    ),
}

#: Midpoints of equal parts of the distribution of the false negatives.
_LEVELS = (np.arange(128) + 0.5) / 128


def bound_power(
    method: str, mu_claimed: float, mu_true: float, n: int, significance: float = 0.05
) -> float:
    """Return the probability that a bound from counts refutes the claim at one look.

    False negatives are represented by 128 equal parts of their distribution, and false positives
    by all of theirs: in the test cases the error is below 0.001. The power does not quite increase
    with n, because counts are whole numbers. For "fdp_bayes" the decision is that of the published
    credible bound; its false-alarm rate is 5 to 7 % at a nominal 5 %.

    Args:
        method: "fdp_pooled_cp", "fdp_cp" or "fdp_bayes"; see `stats.bounds.named_bounds`.
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
    rate = float(special.ndtr(-0.5 * _validate.positive("mu_true", mu_true)))
    size = _validate.positive_int("n", n)
    level = significance_level(significance)
    # The smallest whole number whose distribution function reaches the level. It is 0 if no error
    # is as probable as the level; bdtrik fails for rates too small to change 1 - rate.
    none = np.exp(size * np.log1p(-rate))
    most = np.where(none >= _LEVELS, 0.0, special.bdtrik(_LEVELS, size, rate))
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
    below = np.where(largest >= 0, special.bdtr(np.maximum(largest, 0), size, rate), 0.0)
    return float(below @ parts / np.sum(parts))
