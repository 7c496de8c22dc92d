r"""Lower bound on mu from the readings of one noisy sum along known directions.

Canaries c_i = s u_i with orthonormal u_i are added to one sum, each by its own fair coin b_i, and
Gaussian noise of one variance in every direction is added. The reading along u_i, in units of s, is

.. math:: z_i = a_i + \Delta\, b_i + \sigma\, \xi_i

where a_i is the contribution of the data, which is unknown and may differ between directions, and
Delta = 1 if the canary is clipped as claimed. The mechanism is (Delta / sigma)-GDP for each canary,
and no better. Two facts bound mu = Delta / sigma from below, for any a_i (own proof):

* Given the coins, the sum of squares SS within both groups is sigma^2 times a noncentral chi-square
  with m - 2 degrees of freedom, and so at least a central one: SS / q is above sigma^2 with
  probability at least 1 - s / 2, with q the s/2-quantile.
* y_i = z_i - Delta b_i does not depend on the coins. Given y, the sum of (2 b_i - 1)(y_i - mean)
  is a sum with fair signs, and exceeds x times the root of the sum of squares with a probability of
  at most Phi(-x) / (4 Phi(-sqrt 2)). With D the difference of means and w = n_1 n_0 / m it is
  2 w (D - Delta), and the sum of squares is SS + w (D - Delta)^2.

.. math:: \mu_- = \sqrt{q} \Bigl[\frac{D}{\sqrt{SS}} - \frac{x}{\sqrt{w\,(4 w - x^2)}}\Bigr],
    \qquad \frac{\Phi(-x)}{4\,\Phi(-\sqrt 2)} = \frac s2
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from lightning_audit.stats._arguments import Floats, places, significance_level
from lightning_audit.stats._confusion import score_vector
from lightning_audit.stats.bounds.gaussian import mean_and_squares

__all__ = ["mu_white_box", "mu_white_box_from_scores"]

# Best constant in a Gaussian bound on the tail of a weighted sum of fair signs.
_SIGNS = 0.25 / float(special.ndtr(-math.sqrt(2.0)))


def mu_white_box(
    n_in: int, n_out: int, difference: float, sum_squares: float, significance: float
) -> float:
    """Return a lower bound on mu from the two groups' means and sum of squares.

    The bound exceeds mu with probability at most ``significance``, for any number of canaries and
    any data: it is not asymptotic. It assumes that the directions are orthonormal, that the noise
    along them is independent and Gaussian with one variance, that every canary has its own fair
    coin, and that the data's contribution does not depend on the coins: one release, or one step.
    If that contribution is the same along all directions, `stats.bounds.gaussian.mu_noncentral_t`
    is tighter.

    Args:
        n_in: Number of canaries that were in.
        n_out: Number of canaries that were out.
        difference: Mean reading of those in minus that of those out, in any unit.
        sum_squares: Sum of squared deviations from the two means, > 0, in that unit squared.
        significance: Probability in (0, 1) with which the bound may fail.

    Returns:
        The bound >= 0; 0 if there are too few canaries.

    Raises:
        ValueError: If a number is negative or not whole, ``difference`` or ``sum_squares`` is not
            finite, ``sum_squares`` is not positive, or ``significance`` is not in (0, 1).

    Example:
        >>> round(mu_white_box(500, 500, difference=1.0, sum_squares=998.0, significance=0.05), 3)
        0.81

    References:
        Bentkus and Dzindzalieta, "A tight Gaussian bound for weighted sums of Rademacher random
        variables", Bernoulli 21, 2015, doi:10.3150/14-BEJ603. Anderson, "The integral of a
        symmetric unimodal function", Proc. AMS 6, 1955. The game: Steinke, Nasr and Jagielski,
        NeurIPS 2023, arXiv:2305.08846.
    """
    level = significance_level(significance) / 2
    check_groups(n_in, n_out, difference, "readings")
    if n_in + n_out < 3 or not n_in or not n_out:
        return 0.0
    if not 0 < sum_squares < math.inf:
        raise ValueError(
            f"sum_squares={sum_squares!r} must be finite and > 0; constant readings have no "
            "Gaussian noise, and give no bound on mu."
        )
    weight = n_in * n_out / (n_in + n_out)
    x = -float(special.ndtri(level / _SIGNS))
    if 4 * weight <= x * x:
        return 0.0
    freedom = n_in + n_out - 2
    quantile = 2.0 * float(special.gammaincinv(freedom / 2, level))
    room = difference / math.sqrt(sum_squares) - x / math.sqrt(weight * (4 * weight - x * x))
    return max(math.sqrt(quantile) * room, 0.0)


def mu_white_box_from_scores(
    scores_in: ArrayLike, scores_out: ArrayLike, significance: float
) -> float:
    """Return `mu_white_box` of the readings along the canaries' directions.

    Args:
        scores_in: Readings of canaries that were in, ``[n_in]``, in any unit.
        scores_out: Readings of canaries that were out, ``[n_out]``, in the same unit.
        significance: Probability in (0, 1) with which the bound may fail.

    Returns:
        The bound >= 0.

    Raises:
        ValueError: If readings are not one-dimensional, not finite or all equal within both
            groups, or ``significance`` is not in (0, 1).

    Example:
        >>> rng = np.random.default_rng(0)
        >>> coins = rng.random(1000) < 0.5
        >>> readings = coins + rng.standard_normal(1000)
        >>> 0.7 < mu_white_box_from_scores(readings[coins], readings[~coins], 0.05) < 1.0
        True
    """
    groups = finite_groups(scores_in, scores_out, "readings")
    (mean_1, squares_1), (mean_0, squares_0) = map(mean_and_squares, groups)
    difference, within = mean_1 - mean_0, squares_1 + squares_0
    return mu_white_box(groups[0].size, groups[1].size, difference, within, significance)


def check_groups(n_in: int, n_out: int, difference: float, what: str) -> None:
    """Raise a ValueError unless these can be the numbers and the means' difference of groups."""
    for name, n in (("n_in", n_in), ("n_out", n_out)):
        if not isinstance(n, (int, np.integer)) or isinstance(n, bool) or n < 0:
            raise ValueError(f"{name}={n!r} must be a whole number >= 0; count the canaries.")
    if not math.isfinite(difference):
        raise ValueError(f"difference={difference!r} must be finite; drop {what} that are not.")


def finite_groups(scores_in: ArrayLike, scores_out: ArrayLike, what: str) -> tuple[Floats, Floats]:
    """Return both groups' scores as vectors of finite numbers."""
    groups = score_vector("scores_in", scores_in), score_vector("scores_out", scores_out)
    for name, scores in zip(("scores_in", "scores_out"), groups, strict=True):
        if not (finite := np.isfinite(scores)).all():
            raise ValueError(f"{name} holds infinity, must hold finite {what} ({places(~finite)}).")
    return groups
