"""How many observations a bound from counts needs to tell that a claim is false.

Observations are readings of a Gaussian mechanism, half of them with the canary in, and the
threshold lies midway between the two, fixed beforehand. There is one look. The errors are then
independent binomials, so that the power is a sum over them of what the bound itself decides: no
simulation, and no formula that stands for the bound. The power of the audit's own tests is in
`lightning_audit.stats.evalues.power`.
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
    # The posterior's quantile exceeds mu where less than that quantile's level lies below mu.
    "fdp_bayes": lambda counts, mu, significance: np.asarray(
        mu_posterior_cdf(mu, counts, region="one_sided") < significance
    ),
}

#: Middles of equal parts of the distribution of the false negatives.
_LEVELS = (np.arange(128) + 0.5) / 128


def bound_power(
    method: str, mu_claimed: float, mu_true: float, n: int, significance: float = 0.05
) -> float:
    """Probability that a bound from counts proves more than the claim, looked at once.

    False negatives stand for 128 equal parts of their distribution, false positives for all
    of theirs: on the cases of the tests the error is below 0.001. In n it is not quite increasing,
    since counts are whole numbers. For "fdp_bayes" the decision is that of the published credible
    bound; its rate of false alarms is 5 to 7 % at a nominal 5 %.

    Args:
        method: "fdp_pooled_cp", "fdp_cp" or "fdp_bayes"; see `stats.bounds.named_bounds`.
        mu_claimed: mu of Gaussian DP that is claimed for one observation, > 0.
        mu_true: mu of the mechanism, > 0.
        n: observations with the canary in, and as many without it.
        significance: the bound's, in (0, 1); in (0, 1/4] for "fdp_pooled_cp".

    Raises:
        ValueError: If an argument is out of its range, by name.

    Example:
        >>> round(bound_power("fdp_pooled_cp", 0.33307, 0.40348, 2500), 2)
        0.63
    """
    rejects = POWER_METHODS[_validate.one_of("method", method, POWER_METHODS)]
    claimed = _validate.positive("mu_claimed", mu_claimed)
    rate = float(special.ndtr(-0.5 * _validate.positive("mu_true", mu_true)))
    size = _validate.positive_int("n", n)
    level = significance_level(significance)
    # The smallest whole number whose distribution function reaches the level.
    # Where no error at all is as probable as the level, it is 0; bdtrik has no answer for rates
    # that 1 - rate does not show.
    none = np.exp(size * np.log1p(-rate))
    most = np.where(none >= _LEVELS, 0.0, special.bdtrik(_LEVELS, size, rate))
    fn = np.ceil(most.clip(0.0, size)).astype(np.int64)
    fn, parts = np.unique(fn, return_counts=True)

    def rejected(fp: Counts) -> NDArray[np.bool_]:
        counts = ConfusionCounts(fn=fn, tp=size - fn, fp=fp, tn=size - fp)
        return rejects(counts, claimed, level)

    # Most false positives with which the claim is still rejected; -1 where it never is.
    largest, above = np.full_like(fn, -1), np.full_like(fn, size + 1)
    while np.any(above - largest > 1):
        middle = (largest + above) // 2
        inside = rejected(middle.clip(0, size))
        largest = np.where(inside & (middle > largest), middle, largest)
        above = np.where(~inside & (middle < above), middle, above)
    below = np.where(largest >= 0, special.bdtr(np.maximum(largest, 0), size, rate), 0.0)
    return float(below @ parts / np.sum(parts))
