r"""What it costs to report the worst of several challenge points, or of several folds.

The point with the largest bound of n points is selected by what the bound uses. Each of these is
valid; using one set of trainings for both without paying is not, see docs/challenge-points.md.

- Apart: select by trainings that the bound does not use.
- Paid: bound each point with significance / n. A flawless attack then needs about
  :math:`\ln n / e` more trainings, where e is the least mean error rate of the claim.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from lightning_audit import _validate
from lightning_audit.stats._arguments import Floats, closed_unit, each, significance_level
from lightning_audit.stats.bounds.error_rate_power import flawless_guesses_at_end

__all__ = ["folds_p_value", "paid_significance", "trainings_for_worst_of", "worst_of"]


def paid_significance(significance: float, points: int) -> float:
    """Return the significance of each point's bound, if the largest of them is reported.

    The bounds of all points then hold together with probability ``1 - significance``, for any
    dependence between points (Bonferroni).

    Args:
        significance: Probability in (0, 1) with which the reported bound may fail.
        points: Number of points that the largest bound is selected from.

    Raises:
        ValueError: If an argument is out of its range.
    """
    level = significance_level(significance)
    return level / _validate.positive_int("points", points, "all that were looked at")


def worst_of(p_values: ArrayLike, points: int | None = None) -> float:
    """Return a p-value of the worst of several points: the smallest times their number.

    Args:
        p_values: P-value in [0, 1] of each point, ``[n]``; they may depend on each other.
        points: Number of points that were looked at, if some p-values are not given; None for n.

    Returns:
        The p-value, in [0, 1].

    Raises:
        ValueError: If there is no p-value, one is out of range, or ``points`` is smaller than n.

    Example:
        >>> worst_of([0.2, 0.001, 0.7]), worst_of([0.001], points=100)
        (0.003, 0.1)
    """
    values = _p_values(p_values)
    count = len(values) if points is None else _validate.positive_int("points", points)
    if count < len(values):
        raise ValueError(
            f"points={count} is smaller than the number of p_values, {len(values)}; give the "
            "number of all points that were looked at."
        )
    return min(1.0, count * float(values.min()))


def folds_p_value(p_values: ArrayLike) -> float:
    r"""Return a p-value of several folds, each with a p-value: at most twice their median.

    If the models of each fold are scored by an attack that was fitted on the other folds, the
    folds' p-values depend on each other. For any dependence

    .. math:: p = \min\Big(1, \frac{n}{k}\, p_{(k)}\Big), \qquad k = \lceil n / 2 \rceil

    is a p-value (Rüger's inequality).

    Args:
        p_values: P-value in [0, 1] of each fold by itself, ``[n]``.

    Returns:
        The p-value, in [0, 1].

    Raises:
        ValueError: If there is no p-value, or one is out of range.

    Example:
        >>> folds_p_value([0.01, 0.02, 0.04, 0.9])
        0.04

    References:
        Rüger, "Das maximale Signifikanzniveau des Tests: Lehne H0 ab, wenn k unter n gegebenen
        Tests zur Ablehnung führen", Metrika 25, 1978, doi:10.1007/BF02204362. Vovk and Wang,
        "Combining p-values via averaging", Biometrika 107, 2020, arXiv:1212.4966.
    """
    values = np.sort(_p_values(p_values))
    place = (len(values) + 1) // 2
    return min(1.0, len(values) / place * float(values[place - 1]))


def trainings_for_worst_of(least_error: float, significance: float, points: int) -> int:
    """Return how many guessed trainings a flawless attack needs at the worst of several points.

    The number of one look, fixed beforehand. Split trainings need twice that of one point: half of
    them select it. So paying is cheaper up to some number of points.

    Args:
        least_error: Least mean error rate that the claim allows, in (0, 1/2], see
            `many.least_error.promise_of`.
        significance: Probability in (0, 1) with which a true claim may be refuted.
        points: Number of points, paid for by `paid_significance`.

    Raises:
        ValueError: If an argument is out of its range.

    Example:
        Gaussian DP with the mu of (8, 1e-5)-DP, 1.666:

        >>> [trainings_for_worst_of(0.2024, 0.05, n) for n in (1, 10, 100, 1000)]
        [14, 24, 34, 44]
    """
    return flawless_guesses_at_end(least_error, paid_significance(significance, points))


def _p_values(p_values: ArrayLike) -> Floats:
    values = np.asarray(p_values, dtype=np.float64).ravel()
    if not values.size:
        raise ValueError("p_values is empty; give at least one.")
    return each(closed_unit, "p_values", values)
