"""Lower bounds on the mu of Gaussian DP from an attack's error counts.

They refute "mu-GDP" for any mechanism. Converted to an epsilon they bound that of a Gaussian
mechanism only: a Laplace mechanism of epsilon 1 is not 1-GDP, and far from its Gaussian epsilon.
"""

from __future__ import annotations

import numpy as np
from scipy import special

from lightning_audit.stats._arguments import Floats, like_input, significance_level
from lightning_audit.stats._confusion import ConfusionCounts
from lightning_audit.stats.bounds._bayes_error import distance_of_bayes_error
from lightning_audit.stats.bounds.intervals import clopper_pearson_upper

__all__ = ["mu_clopper_pearson", "mu_pooled_clopper_pearson"]

# Hoeffding's inequality ends one below the mean, and a binomial variable with a rate of at most 1/2
# is below its mean with a probability above this one.
_LARGEST_POOLED_SIGNIFICANCE = 0.25


def mu_clopper_pearson(counts: ConfusionCounts, significance: float) -> float | Floats:
    r"""Return a lower bound on mu of Gaussian DP from Clopper-Pearson limits of both error rates.

    The bound exceeds the least mu for which the mechanism is mu-GDP with probability at most
    ``significance``. Each rate's limit uses half of it; `mu_pooled_clopper_pearson` needs no
    division, and is the better choice unless the rates are very different.

    .. math:: \mu_- = \max\{0,\; -\Phi^{-1}(\mathrm{FNR}_+) - \Phi^{-1}(\mathrm{FPR}_+)\}

    Args:
        counts: Outcomes at a threshold fixed beforehand, any shape.
        significance: Probability in (0, 1) with which the bound may fail, for both rates together.

    Returns:
        The bound >= 0: a float for one threshold, else an array of the shape of ``counts``.

    Raises:
        ValueError: If ``significance`` is not in (0, 1).

    Example:
        >>> counts = ConfusionCounts(fn=10, tp=990, fp=5, tn=995)
        >>> round(mu_clopper_pearson(counts, significance=0.05), 4)
        4.3591

    References:
        Nasr et al., "Tight auditing of differentially private machine learning", USENIX Security
        2023, arXiv:2302.07956, equation 12.
    """
    level = significance_level(significance) / 2
    fnr = np.asarray(clopper_pearson_upper(counts.fn, counts.n_in, level))
    fpr = np.asarray(clopper_pearson_upper(counts.fp, counts.n_out, level))
    return like_input(np.maximum(-special.ndtri(fnr) - special.ndtri(fpr), 0.0))


def mu_pooled_clopper_pearson(counts: ConfusionCounts, significance: float) -> float | Floats:
    r"""Return a lower bound on mu of Gaussian DP from one limit of the pooled error rate.

    The bound exceeds the least mu for which the mechanism is mu-GDP with probability at most
    ``significance``. Under mu-GDP no test has a mean error below that of distinguishing N(0, 1)
    from N(mu, 1), so the expected number of errors of any guesses is at least

    .. math:: \min_t\; n_{in} \Phi(t - \mu) + n_{out} \Phi(-t), \qquad
        = 2 n\, \Phi(-\mu / 2) \text{ for } n_{in} = n_{out} = n .

    Errors are independent, with rates that may differ between worlds and between steps. By
    Hoeffding's inequality such a sum is at most as likely to be small as a binomial variable with
    the same mean. So one Clopper-Pearson limit of the pooled errors is exact (own proof, above),
    mu_- = -2 Phi^-1(CP_+(FN + FP; 2 n)), and the same with the Bayes error for unequal sizes.

    Args:
        counts: Outcomes at a threshold fixed beforehand, any shape; midway between the worlds is
            the best one.
        significance: Probability in (0, 1/4] with which the bound may fail. Hoeffding's inequality
            covers the tail only, so nothing is proved above 1/4.

    Returns:
        The bound >= 0: a float for one threshold, else an array of the shape of ``counts``. It is 0
        if a world was never observed.

    Raises:
        ValueError: If ``significance`` is not in (0, 1/4].

    Example:
        >>> counts = ConfusionCounts(fn=10, tp=990, fp=5, tn=995)
        >>> round(mu_pooled_clopper_pearson(counts, significance=0.05), 4)
        4.5452

    References:
        Hoeffding, "On the distribution of the number of successes in independent trials", Annals of
        Mathematical Statistics 27, 1956, doi:10.1214/aoms/1177728178, Theorem 4. Greenberg and
        Mohri, "Tight lower bound on the probability of a binomial exceeding its expectation",
        Statistics and Probability Letters 86, 2014, arXiv:1306.1433 (for the limit of 1/4). Dong,
        Roth and Su, "Gaussian differential privacy", JRSS B 84, 2022, arXiv:1905.02383.
    """
    level = significance_level(significance)
    if level > _LARGEST_POOLED_SIGNIFICANCE:
        raise ValueError(
            f"significance={significance!r} must be in (0, 1/4] for pooled counts; "
            "use mu_clopper_pearson for a larger one"
        )
    total = counts.n_in + counts.n_out
    error = np.asarray(clopper_pearson_upper(counts.fn + counts.fp, total, level))
    # Without observations any weight will do: the limit of 1 on the error gives a bound of 0.
    weight = counts.n_in / np.maximum(total, 1)
    mu = np.zeros(error.shape)
    both = (counts.n_in > 0) & (counts.n_out > 0)
    mu[both] = distance_of_bayes_error(error[both], weight[both])
    return like_input(mu)
