r"""Lower bounds on mu for Gaussian observations.

**Lower bound on mu from the readings of one noisy sum along known directions.** Canaries c_i = s
u_i with orthonormal u_i are added to one sum, each by its own fair coin b_i, and Gaussian noise of
one variance in every direction is added. The reading along u_i, in units of s, is

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
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from lightning_audit import _validate
from lightning_audit.stats._arguments import (
    Floats,
    Rows,
    each,
    finite_number,
    least_nonnegative,
    like_input,
    places,
    score_vector,
    significance_level,
)

# --- Exact lower confidence limit on mu for Gaussian observations: the noncentral t.

# Function of noncentralities and their rows that returns the tails and their slopes.
_Tail = Callable[[Floats, Rows], tuple[Floats, Floats]]
_TailFactory = Callable[[Floats, Floats, float], _Tail]

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(128)
_SQRT_2PI = np.sqrt(2.0 * np.pi)
# Share of the significance that the quadrature may omit at either end.
_LEFT_OUT = 1e-18
# Observations solved at once: each needs a row of nodes in memory.
_BLOCK = 4096


def mu_noncentral_t(
    n_in: int | NDArray[Any],
    n_out: int | NDArray[Any],
    difference: float | NDArray[Any],
    sum_squares: float | NDArray[Any],
    significance: float,
) -> float | Floats:
    r"""Return a lower confidence limit on mu = shift / standard deviation of two Gaussian groups.

    With independent observations N(a + shift, s^2) in one group and N(a, s^2) in the other, the
    limit exceeds mu = shift / s with probability exactly ``significance`` if it is positive (and
    at most that for mu = 0), for any a and s. The numbers of observations must not depend on the
    data. The level rests on the Gaussian form: for other noise this is an estimate.

    .. math:: t = \sqrt{w}\, D \Big/ \sqrt{\mathrm{SS} / \nu}, \qquad
        w = \tfrac{n_1 n_0}{n_1 + n_0},\quad \nu = n_1 + n_0 - 2, \qquad
        \mu_- = \tfrac{1}{\sqrt w} \sup\{\lambda \ge 0 :
        \Pr[T_\nu(\lambda) \ge t] \le \text{significance}\}

    where T is noncentral t: (Z + lambda) over an independent S = chi / sqrt(nu). The relative error
    of the limit is below 1e-9 for up to 1e6 observations a group.

    Args:
        n_in: Number n_1 of observations with the shift, a whole number >= 0.
        n_out: Number n_0 without it.
        difference: Mean with the shift minus mean without, D; a number or an array, broadcast
            against the other statistics.
        sum_squares: Sum SS > 0 of squared deviations from the group means, in D's squared unit.
        significance: Probability in (0, 1) with which the limit may fail.

    Returns:
        The limit >= 0, 0 if a group is empty or there are fewer than three observations: a float
        for numbers, an array of the broadcast shape for arrays.

    Raises:
        ValueError: If an argument is out of its range, or ``sum_squares`` is 0 with enough
            observations.

    Example:
        >>> round(mu_noncentral_t(1000, 1000, 1.0, 1998.0, 0.05), 4)
        0.9219

    References:
        Johnson and Welch, "Applications of the non-central t-distribution", Biometrika 31, 1940,
        doi:10.1093/biomet/31.3-4.362. Hedges and Olkin, "Statistical methods for meta-analysis",
        1985, chapter 5.
    """
    advice = "it is the probability with which the limit may fail"
    level = _validate.open_unit("significance", significance, advice)
    n1, n0, d, ss = np.broadcast_arrays(
        _numbers("n_in", n_in),
        _numbers("n_out", n_out),
        each(finite_number, "difference", difference),
        each(_validate.non_negative, "sum_squares", sum_squares),
    )
    enough = (n1 > 0) & (n0 > 0) & (n1 + n0 > 2)
    if np.any(enough & (ss == 0)):
        raise ValueError(
            "sum_squares=0.0 must be > 0 for more than two observations; constant "
            "readings have no Gaussian noise, and give no limit on mu."
        )
    limit = np.zeros(d.shape)
    n1, n0, d, ss = (values[enough] for values in (n1, n0, d, ss))
    freedom, weight = n1 + n0 - 2.0, n1 * n0 / (n1 + n0)
    t = np.sqrt(weight) * d / np.sqrt(ss / freedom)
    limit[enough] = noncentrality_lower(t, freedom, level) / np.sqrt(weight)
    return like_input(limit)


def mu_noncentral_t_from_scores(
    scores_in: ArrayLike, scores_out: ArrayLike, significance: float
) -> float:
    r"""Return a lower confidence limit on mu from the observations of two Gaussian groups.

    `mu_noncentral_t` of the two sample means and the pooled sum of squares. Its assumptions are
    those of `mu_noncentral_t`: independent Gaussian scores of one variance, with numbers fixed
    beforehand.

    .. math:: D = \bar x_1 - \bar x_0, \qquad
        \mathrm{SS} = \sum_i (x_{1i} - \bar x_1)^2 + \sum_j (x_{0j} - \bar x_0)^2

    Args:
        scores_in: Scores with the shift, ``[n_in]``, in any unit.
        scores_out: Scores without it, ``[n_out]``, in the same unit.
        significance: Probability in (0, 1) with which the limit may fail.

    Returns:
        The limit >= 0.

    Raises:
        ValueError: If scores are not one-dimensional, not finite or all equal within both groups,
            or ``significance`` is not in (0, 1).

    Example:
        >>> rng = np.random.default_rng(0)
        >>> inside, outside = 1.0 + rng.standard_normal(500), rng.standard_normal(700)
        >>> 0.8 < mu_noncentral_t_from_scores(inside, outside, 0.05) < 1.0
        True
    """
    groups = [np.asarray(scores, dtype=np.float64) for scores in (scores_in, scores_out)]
    for name, scores in zip(("scores_in", "scores_out"), groups, strict=True):
        if scores.ndim != 1:
            raise ValueError(f"{name} has shape {scores.shape}, must be [n]; ravel it.")
        each(finite_number, name, scores)
    (mean_1, squares_1), (mean_0, squares_0) = map(mean_and_squares, groups)
    difference, within = mean_1 - mean_0, squares_1 + squares_0
    return float(mu_noncentral_t(groups[0].size, groups[1].size, difference, within, significance))


def mean_and_squares(scores: Floats) -> tuple[float, float]:
    """Return the mean and the sum of squared deviations from it, 0 for no scores."""
    mean = float(scores.mean()) if scores.size else 0.0
    return mean, float(np.sum((scores - mean) ** 2))


def _numbers(name: str, value: int | NDArray[Any]) -> Floats:
    numbers = np.asarray(value)
    if numbers.dtype.kind not in "iu" or np.any(numbers < 0):
        raise ValueError(f"{name}={value!r} must be a whole number >= 0; count the observations.")
    return numbers.astype(np.float64)


def noncentrality_lower(t: Floats, freedom: Floats, significance: float) -> Floats:
    """Return lower limits of the noncentrality, at least zero, for arrays ``[m]``.

    The upper tail of the noncentral t is E Phi(lambda - t S), computed by Gauss-Legendre quadrature
    over S, or over Z if t is so large that Phi is a step compared with the density of S. As a
    distribution function in lambda it is log-concave, so Newton's method on its log converges.
    """
    limit = np.zeros(t.shape)
    # At lambda = 0 the tail is that of Student's t; if it exceeds the significance, the limit is 0.
    positive = scipy.special.stdtr(freedom, -t) < significance
    # Up to this t the density of S is the wider factor, above it the normal density.
    steep = t > np.sqrt(2.0 * freedom)
    for tail, chosen in ((_tail_over_scale, ~steep), (_tail_over_normal, steep)):
        rows = np.flatnonzero(positive & chosen)
        for start in range(0, rows.size, _BLOCK):
            block = rows[start : start + _BLOCK]
            limit[block] = _solve(tail, t[block], freedom[block], significance)
    return limit


def _solve(tail_of: _TailFactory, t: Floats, freedom: Floats, significance: float) -> Floats:
    """Run Newton's method on the log of the tail, which is concave in the noncentrality."""
    tail = tail_of(t, freedom, significance)

    def residual(noncentrality: Floats, rows: Rows) -> tuple[Floats, Floats]:
        probability, slope = tail(noncentrality, rows)
        # If the tail underflows, or is one, the slope of its logarithm gives no direction.
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            return np.log(probability) - np.log(significance), slope / probability

    spread = np.sqrt(1.0 + t * t / (2.0 * freedom))
    guess = t + scipy.special.ndtri(significance) * spread
    return least_nonnegative(residual, np.maximum(guess, 0.01))


def _tail_over_scale(t: Floats, freedom: Floats, significance: float) -> _Tail:
    """Return the tail and its slope as E Phi(lambda - t S), integrated over the density of S."""
    left_out = significance * _LEFT_OUT
    low = np.sqrt(2.0 * scipy.special.gammaincinv(freedom / 2.0, left_out) / freedom)
    high = np.sqrt(2.0 * scipy.special.gammainccinv(freedom / 2.0, left_out) / freedom)
    off = 0.5 * (low + high)[:, None] - 1.0 + 0.5 * (high - low)[:, None] * _NODES
    # Log density of S = 1 + off up to a constant, without cancellation of two large terms.
    log_density = (freedom[:, None] - 1.0) * np.log1p(off) - freedom[:, None] * (off + 0.5 * off**2)
    weights = _WEIGHTS * np.exp(log_density - log_density.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    middle, steps = t, t[:, None] * off

    def tail(noncentrality: Floats, rows: Rows) -> tuple[Floats, Floats]:
        x, weight = (noncentrality - middle[rows])[:, None] - steps[rows], weights[rows]
        density = np.exp(-0.5 * x * x) / _SQRT_2PI
        return (weight * scipy.special.ndtr(x)).sum(axis=1), (weight * density).sum(axis=1)

    return tail


def _tail_over_normal(t: Floats, freedom: Floats, significance: float) -> _Tail:
    """Return the tail and its slope as E Pr[S <= (Z + lambda) / t], integrated over Z."""
    reach = -scipy.special.ndtri_exp(np.log(significance) + np.log(_LEFT_OUT))

    def tail(noncentrality: Floats, rows: Rows) -> tuple[Floats, Floats]:
        half_freedom = 0.5 * freedom[rows, None]
        low = np.maximum(-reach, -noncentrality)
        half = 0.5 * (reach - low)[:, None]
        z = 0.5 * (reach + low)[:, None] + half * _NODES
        scale = np.maximum(z + noncentrality[:, None], 0.0) / t[rows, None]
        cumulated = scipy.special.gammainc(half_freedom, half_freedom * scale**2)
        mass = half * _WEIGHTS * np.exp(-0.5 * z * z) / _SQRT_2PI * cumulated
        # By parts: the derivative of the normal density gives the factor z.
        return mass.sum(axis=1), (mass * z).sum(axis=1)

    return tail


# --- Bayes error of distinguishing two unit normals, and its inverse (arXiv:1905.02383).


def log_bayes_error(mu: Floats, weight: Floats) -> tuple[Floats, Floats]:
    r"""Return the log Bayes error between N(0, 1) and N(mu, 1), and its derivative in mu.

    .. math:: B(\mu) = \min_t\, w \Phi(t - \mu) + (1 - w) \Phi(-t), \qquad
        t^* = \tfrac{\mu}{2} + \tfrac{1}{\mu} \ln \tfrac{1 - w}{w}, \quad
        B'(\mu) = -w \varphi(t^* - \mu)

    Args:
        mu: Distance >= 0, any shape.
        weight: Prior weight w of N(mu, 1), in (0, 1), broadcast against ``mu``.

    Returns:
        (log error, its derivative in mu), of the broadcast shape.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        shift = (np.log1p(-weight) - np.log(weight)) / mu
    # At a distance of zero the best guess is the likelier world; either one if they are equal.
    shift = np.where(np.isnan(shift), 0.0, shift)
    of_in = np.log(weight) + scipy.special.log_ndtr(shift - 0.5 * mu)
    of_out = np.log1p(-weight) + scipy.special.log_ndtr(-shift - 0.5 * mu)
    log_error = np.logaddexp(of_in, of_out)
    log_density = -0.5 * (shift - 0.5 * mu) ** 2 - 0.5 * np.log(2.0 * np.pi)
    slope = -np.exp(np.log(weight) + log_density - log_error)
    return log_error, slope


def distance_of_bayes_error(error: Floats, weight: Floats) -> Floats:
    """Return the mu >= 0 whose Bayes error is ``error``; 0 if mu = 0 already has a smaller one.

    Args:
        error: Mean error rate in (0, 1], ``[n]``.
        weight: Prior weight of N(mu, 1) in (0, 1), ``[n]``.

    Returns:
        The distances, ``[n]``.
    """
    mu = np.zeros(error.shape)
    rows = np.flatnonzero(error < np.minimum(weight, 1.0 - weight))
    target, w = np.log(error[rows]), weight[rows]

    def residual(value: Floats, live: NDArray[np.intp]) -> tuple[Floats, Floats]:
        log_error, slope = log_bayes_error(value, w[live])
        return target[live] - log_error, -slope

    # The root for equal weights, and an upper bound for all others.
    mu[rows] = least_nonnegative(residual, -2.0 * scipy.special.ndtri(error[rows]))
    return mu


# --- Lower bound on mu from the readings of one noisy sum along known directions.

# Best constant in a Gaussian bound on the tail of a weighted sum of fair signs.
_SIGNS = 0.5 / math.erfc(1.0)


def mu_white_box(
    n_in: int, n_out: int, difference: float, sum_squares: float, significance: float
) -> float:
    """Return a lower bound on mu from the two groups' means and sum of squares.

    The bound exceeds mu with probability at most ``significance``, for any number of canaries and
    any data: it is not asymptotic. It assumes that the directions are orthonormal, that the noise
    along them is independent and Gaussian with one variance, that every canary has its own fair
    coin, and that the data's contribution does not depend on the coins: one release, or one step.
    If that contribution is the same along all directions, `stats.gaussian.mu_noncentral_t`
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
    x = -float(scipy.special.ndtri(level / _SIGNS))
    if 4 * weight <= x * x:
        return 0.0
    freedom = n_in + n_out - 2
    quantile = 2.0 * float(scipy.special.gammaincinv(freedom / 2, level))
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
