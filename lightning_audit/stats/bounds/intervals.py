"""One-sided limits for a binomial rate: exact confidence limits and Bayesian limits."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from lightning_audit.stats._arguments import Floats, like_input, significance_level, whole_counts

__all__ = ["clopper_pearson_lower", "clopper_pearson_upper", "jeffreys_lower", "jeffreys_upper"]


def clopper_pearson_lower(
    successes: int | NDArray[Any], trials: int | NDArray[Any], significance: float
) -> float | Floats:
    r"""Return a one-sided Clopper-Pearson lower limit of a binomial rate.

    With ``successes`` drawn from Bin(n, p), the limit exceeds p with probability at most
    ``significance``, for every n and p. The number of trials must be fixed beforehand: a limit that
    is inspected repeatedly, or whose event was chosen on the same data, does not have this level.

    .. math:: p_- = \sup\{p : \Pr[\mathrm{Bin}(n, p) \ge k] \le \text{significance}\}
        = I^{-1}_{\text{significance}}(k,\, n - k + 1), \qquad p_-(k = 0) = 0

    Args:
        successes: Number k of successes, a whole number in [0, trials]; a number or an array.
        trials: Number n of trials, a whole number >= 0; broadcast against ``successes``.
        significance: Probability in (0, 1) with which the limit may fail.

    Returns:
        The limit in [0, 1]: a float for numbers, an array of the broadcast shape for arrays.

    Raises:
        ValueError: If a count is negative, not a whole number, or exceeds ``trials``; if
            ``significance`` is not in (0, 1).

    Example:
        >>> round(clopper_pearson_lower(65, 100, 0.05), 6)
        0.563916
        >>> clopper_pearson_lower(0, 100, 0.05)
        0.0

    References:
        Clopper and Pearson, "The use of confidence or fiducial limits illustrated in the case of
        the binomial", Biometrika 26, 1934, doi:10.1093/biomet/26.4.404.
    """
    k, n = whole_counts(successes, trials)
    level = significance_level(significance)
    # k = 0 is outside the domain of the Beta quantile; the placeholder 1 is overwritten below.
    quantile = special.betaincinv(np.maximum(k, 1.0), n - k + 1.0, level)
    return like_input(np.where(k > 0, quantile, 0.0))


def clopper_pearson_upper(
    successes: int | NDArray[Any], trials: int | NDArray[Any], significance: float
) -> float | Floats:
    r"""Return a one-sided Clopper-Pearson upper limit of a binomial rate.

    Like `clopper_pearson_lower`, with the same arguments, result, errors and source. The limit
    falls below p with probability at most ``significance``.

    .. math:: p_+ = \inf\{p : \Pr[\mathrm{Bin}(n, p) \le k] \le \text{significance}\}
        = I^{-1}_{1 - \text{significance}}(k + 1,\, n - k), \qquad p_+(k = n) = 1

    Example:
        No success in 1,000 trials, 95 %:

        >>> round(clopper_pearson_upper(0, 1000, 0.05), 8)
        0.00299125
        >>> clopper_pearson_upper(np.array([0, 500, 1000]), 1000, 0.05).round(4)
        array([0.003 , 0.5265, 1.    ])
    """
    k, n = whole_counts(successes, trials)
    level = significance_level(significance)
    # k = n is outside the domain of the Beta quantile; the placeholder 1 is overwritten below. The
    # complemented inverse keeps the digits of a small significance.
    quantile = special.betainccinv(k + 1.0, np.maximum(n - k, 1.0), level)
    return like_input(np.where(k < n, quantile, 1.0))


def jeffreys_lower(
    successes: int | NDArray[Any], trials: int | NDArray[Any], significance: float
) -> float | Floats:
    r"""Return a one-sided Jeffreys lower limit of a binomial rate.

    A quantile of the posterior for the prior Beta(1/2, 1/2). It fails with probability close to
    ``significance`` on average over rates, and more often at some rates: it is not a confidence
    limit.

    .. math:: p_- = I^{-1}_{\text{significance}}(k + \tfrac12,\, n - k + \tfrac12),
        \qquad p_-(k = 0) = 0

    Arguments, result and errors are those of `clopper_pearson_lower`.

    Example:
        >>> round(jeffreys_lower(65, 100, 0.05), 6)
        0.56906
        >>> jeffreys_lower(0, 100, 0.05)
        0.0

    References:
        Brown, Cai and DasGupta, "Interval estimation for a binomial proportion", Statistical
        Science 16, 2001, doi:10.1214/ss/1009213286, section 4.1.
    """
    k, n = whole_counts(successes, trials)
    level = significance_level(significance)
    quantile = special.betaincinv(k + 0.5, n - k + 0.5, level)
    # Without a success, no small rate can be ruled out, regardless of the prior.
    return like_input(np.where(k > 0, quantile, 0.0))


def jeffreys_upper(
    successes: int | NDArray[Any], trials: int | NDArray[Any], significance: float
) -> float | Floats:
    r"""Return a one-sided Jeffreys upper limit of a binomial rate.

    The mirror image of `jeffreys_lower`, with the same arguments and the same caveat: it is not a
    confidence limit.

    .. math:: p_+ = I^{-1}_{1 - \text{significance}}(k + \tfrac12,\, n - k + \tfrac12),
        \qquad p_+(k = n) = 1

    Example:
        >>> round(jeffreys_upper(0, 1000, 0.05), 8)
        0.00191841
        >>> jeffreys_upper(np.array([0, 500, 1000]), 1000, 0.05).round(4)
        array([0.0019, 0.526 , 1.    ])
    """
    k, n = whole_counts(successes, trials)
    level = significance_level(significance)
    quantile = special.betainccinv(k + 0.5, n - k + 0.5, level)
    return like_input(np.where(k < n, quantile, 1.0))
