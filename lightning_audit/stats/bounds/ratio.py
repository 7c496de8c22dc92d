"""Confidence limit for the ratio of two binomial rates."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from lightning_audit.stats._arguments import Floats, like_input, significance_level, whole_counts

__all__ = ["katz_log_lower"]


def katz_log_lower(
    k1: int | NDArray[Any],
    n1: int | NDArray[Any],
    k0: int | NDArray[Any],
    n0: int | NDArray[Any],
    significance: float,
) -> float | Floats:
    r"""Return a one-sided lower limit of the log ratio of two rates, from its normal limit.

    Asymptotic: the failure probability tends to ``significance`` as all counts grow; nothing is
    proved at finite counts. With small counts in the denominator it is usually on the safe side.

    .. math:: \ln\frac{k_1 / n_1}{k_0 / n_0} - z_{1 - \text{significance}}
        \sqrt{\frac{1}{k_1} - \frac{1}{n_1} + \frac{1}{k_0} - \frac{1}{n_0}}

    Args:
        k1: Successes of the numerator's rate, a number or an array.
        n1: Trials of the numerator's rate.
        k0: Successes of the denominator's rate.
        n0: Trials of the denominator's rate. All are broadcast against each other.
        significance: Probability in (0, 1) with which the limit may fail, for large counts.

    Returns:
        The limit of ln(p1 / p0): a float for numbers, an array for arrays. It is -inf, which proves
        nothing, if a count k1 or k0 is zero: the normal limit is undefined there.

    Raises:
        ValueError: If a count is negative, not a whole number, or exceeds its number of trials; if
            ``significance`` is not in (0, 1).

    Example:
        >>> round(katz_log_lower(65, 100, 25, 100, 0.05), 4)
        0.6461
        >>> katz_log_lower(65, 100, 0, 100, 0.05)
        -inf

    References:
        Katz, Baptista, Azen and Pike, "Obtaining confidence intervals for the risk ratio in cohort
        studies", Biometrics 34, 1978, doi:10.2307/2530610.
    """
    level = significance_level(significance)
    a, m = whole_counts(k1, n1)
    b, n = whole_counts(k0, n0)
    a, m, b, n = np.broadcast_arrays(a, m, b, n)
    defined = (a > 0) & (b > 0)
    a, m, b, n = (np.where(defined, value, 1.0) for value in (a, m, b, n))
    variance = (m - a) / (a * m) + (n - b) / (b * n)
    limit = np.log(a / m) - np.log(b / n) + special.ndtri(level) * np.sqrt(variance)
    return like_input(np.where(defined, limit, -np.inf))
