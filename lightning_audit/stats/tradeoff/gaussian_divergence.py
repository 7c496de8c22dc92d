r"""Hockey-stick divergence of two Gaussians of any variances, and the epsilon of the pair.

In units in which Q is N(0, 1) let P be N(d, r^2), d >= 0. With z = (x - d) / r the log ratio of the
densities less epsilon has the roots

.. math:: a = \frac{2 r (\varepsilon + \log r) - d R}{d + r R}, \qquad
    \pm c = \frac{R + d r}{|r^2 - 1|}, \qquad R^2 = d^2 + 2 (r^2 - 1)(\varepsilon + \log r)

and is R (z - a) + k (z - a)^2 with k = (r^2 - 1) / 2. The set where it is positive is z > a and
z < -c for r > 1, a < z < c for r < 1, and is empty then for R^2 <= 0. In units of x the roots are
b = (a + R) / r and, of either sign, (d + r R) / |r^2 - 1|. At a root the densities have the ratio
e^epsilon, so that with the Mills ratio M each tail past a root adds phi(a) (M(a) - M(b) / r) (own
derivation, above).

References:
    Balle and Wang, "Improving the Gaussian mechanism for differential privacy", ICML 2018,
    arXiv:1805.06530 (the divergence by the log ratio of the densities; Theorem 8).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from lightning_audit import _validate
from lightning_audit.stats._arguments import (
    Floats,
    delta_in_unit,
    each,
    finite_number,
    like_input,
    non_negative,
)
from lightning_audit.stats._roots import Rows, least_nonnegative
from lightning_audit.stats.tradeoff.gdp import LOG_SQRT_2PI, gaussian_delta, gaussian_epsilon, mills

__all__ = ["gaussian_pair_delta", "gaussian_pair_epsilon", "one_way_epsilon"]

# Below this slope of the log ratio two Mills ratios are too close to subtract: the divergence is
# integrated.
_FLAT = 1.0
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(64)
_NODES, _WEIGHTS = 0.5 * (_NODES + 1.0), 0.5 * _WEIGHTS


def gaussian_pair_delta(
    epsilon: float | NDArray[Any],
    mean_p: float | NDArray[Any],
    std_p: float | NDArray[Any],
    mean_q: float | NDArray[Any],
    std_q: float | NDArray[Any],
) -> float | Floats:
    r"""Return the hockey-stick divergence of one Gaussian from another, of any variances.

    .. math:: \delta(\varepsilon) = \sup_S\, P(S) - e^{\varepsilon} Q(S), \qquad
        P = N(m_p, s_p^2),\quad Q = N(m_q, s_q^2)

    The best S is where the log ratio of the densities, a quadratic, exceeds epsilon: an interval if
    P is the narrower one, the outside of one if it is the wider, and a half line for equal
    variances, for which this is `stats.tradeoff.gdp.gaussian_delta`. The relative error is below
    1e-10 for ratios of the standard deviations in [1e-3, 1e3], differences of the means of up to
    100 s_q and delta of at least 1e-12.

    Args:
        epsilon: Epsilon >= 0, infinity included; a number or an array. All are broadcast.
        mean_p: Mean of P, in any unit.
        std_p: Standard deviation of P > 0, in that unit.
        mean_q: Mean of Q, in that unit.
        std_q: Standard deviation of Q > 0, in that unit.

    Returns:
        Delta in [0, 1]: a float for numbers, an array of the broadcast shape for arrays.

    Raises:
        ValueError: If ``epsilon`` is negative, a mean is not finite, or a standard deviation is not
            finite and positive.

    Example:
        >>> round(gaussian_pair_delta(1.0, 1.0, 1.5, 0.0, 1.0), 6)
        0.200413
        >>> round(gaussian_pair_delta(0.5, 0.0, 1.0, 1.0, 1.5), 6)
        0.105203
    """
    checked = each(non_negative, "epsilon", epsilon)
    eps, d, r = _difference_and_ratio(checked, mean_p, std_p, mean_q, std_q)
    delta, finite = np.zeros(eps.shape), np.isfinite(eps)
    equal = finite & (r == 1.0)
    delta[equal] = gaussian_delta(eps[equal], d[equal])
    other = finite & (r != 1.0)
    delta[other] = np.exp(_log_divergence(eps[other], d[other], r[other])[0])
    # The logarithm of a number near one may round to slightly above zero.
    return like_input(np.minimum(delta, 1.0))


def gaussian_pair_epsilon(
    mean_p: float | NDArray[Any],
    std_p: float | NDArray[Any],
    mean_q: float | NDArray[Any],
    std_q: float | NDArray[Any],
    delta: float | NDArray[Any],
) -> float | Floats:
    """Return the smallest epsilon >= 0 at which two Gaussians are (epsilon, delta)-close.

    The larger one of both directions, as differential privacy requires: the divergence of each from
    the other, `gaussian_pair_delta`, is at most delta. With equal variances it is
    `lightning_audit.stats.tradeoff.gdp.gaussian_epsilon` of the difference of the means in standard
    deviations. Newton's method on the logarithm of the divergence, inside a bracket.

    Args:
        mean_p: As in `gaussian_pair_delta`, like the next three.
        std_p: Standard deviation of P > 0.
        mean_q: Mean of Q.
        std_q: Standard deviation of Q > 0.
        delta: Delta in (0, 1), as epsilon would be infinite at 0.

    Returns:
        Epsilon >= 0: a float for numbers, an array of the broadcast shape for arrays.

    Raises:
        ValueError: If an argument is out of its range.

    Example:
        >>> round(gaussian_pair_epsilon(1.0, 1.0, 0.0, 1.0, 1e-5), 8)
        4.3771781
        >>> round(gaussian_pair_epsilon(1.0, 1.1, 0.0, 1.0, 1e-5), 4)
        6.4776
    """
    checked = each(delta_in_unit, "delta", delta)
    target, d, r = _difference_and_ratio(checked, mean_p, std_p, mean_q, std_q)
    epsilon, other = np.empty(d.shape), r != 1.0
    epsilon[~other] = gaussian_epsilon(d[~other], target[~other])
    d, r, target = d[other], r[other], target[other]
    forward, backward = one_way_epsilon(d, r, target), one_way_epsilon(d / r, 1.0 / r, target)
    epsilon[other] = np.maximum(forward, backward)
    return like_input(epsilon)


def one_way_epsilon(d: Floats, r: Floats, delta: Floats) -> Floats:
    """Return the least epsilon >= 0 at which N(d, r^2) diverges from N(0, 1) by at most delta."""
    # The log ratio at the upper delta-quantile of P.
    z = -special.ndtri(delta)
    with np.errstate(over="ignore", invalid="ignore"):
        start = -np.log(r) + 0.5 * d * d + z * r * d + 0.5 * (r - 1.0) * (r + 1.0) * z * z
    # Above these, the squares overflow.
    bounded = np.isfinite(start) & (d < 1e150) & (r < 1e150)
    d, r, log_target = d[bounded], r[bounded], np.log(delta[bounded])

    def residual_and_slope(epsilon: Floats, rows: Rows) -> tuple[Floats, Floats]:
        log_h, slope = _log_divergence(epsilon, d[rows], r[rows])
        return log_target[rows] - log_h, slope

    epsilon = np.full(bounded.shape, np.inf)
    epsilon[bounded] = least_nonnegative(residual_and_slope, np.maximum(start[bounded], 0.1))
    return epsilon


def _log_divergence(epsilon: Floats, d: Floats, r: Floats) -> tuple[Floats, Floats]:
    """Return the log of the divergence, and minus its derivative in epsilon.

    Args:
        epsilon: Finite numbers >= 0, ``[m]``.
        d: Finite differences of the means >= 0, in standard deviations of the second, ``[m]``.
        r: Ratios of the standard deviations, finite and > 0, ``[m]``.

    Returns:
        Log H, minus infinity if the divergence is zero, and e^epsilon Q(S) / H with S the set where
        the log ratio exceeds epsilon, nan if the divergence is zero.
    """
    height = epsilon + np.log(r)
    square = d * d + 2.0 * (r - 1.0) * (r + 1.0) * height
    log_h, slope = np.full(d.shape, -np.inf), np.full(d.shape, np.nan)
    for form, chosen in (
        (_integrated, (square > 0) & (square <= _FLAT**2)),
        (_closed, square > _FLAT**2),
    ):
        if np.any(chosen):
            root = np.sqrt(square[chosen])
            log_h[chosen], slope[chosen] = form(height[chosen], d[chosen], r[chosen], root)
    return log_h, slope


def _roots(height: Floats, d: Floats, r: Floats, root: Floats) -> tuple[Floats, ...]:
    """Return the near root in units of z and x, and the far one, without its sign."""
    gap = np.abs(r - 1.0) * (r + 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        near = (2.0 * r * height - d * root) / (d + r * root)
        near_x = (near + root) / r
        # The other form of the quadratic formula, which loses no digits here.
        narrow = r < 0.5
        near = np.where(narrow, (d * r - root) / gap, near)
        near_x = np.where(narrow, (d - r * root) / gap, near_x)
        return near, near_x, (root + d * r) / gap, (d + r * root) / gap


def _closed(height: Floats, d: Floats, r: Floats, root: Floats) -> tuple[Floats, Floats]:
    a, b, far, far_x = _roots(height, d, r, root)
    wider = np.where(r > 1.0, 1.0, -1.0)
    # The density of P at the near root, or 1 if its Mills ratio might overflow.
    in_tail = a > 0.0
    log_unit = np.where(in_tail, -0.5 * a * a - LOG_SQRT_2PI, 0.0)
    with np.errstate(all="ignore"):
        at_near = np.exp(-0.5 * a * a - LOG_SQRT_2PI - log_unit)
        # No far root is closer to the center of P than a.
        at_far = np.exp(-0.5 * far * far - LOG_SQRT_2PI - log_unit)
        p_near = np.where(in_tail, mills(np.maximum(a, 0.0)), special.ndtr(-a))
        q = at_near * mills(b) / r + wider * at_far * mills(far_x) / r
        h = p_near - at_near * mills(b) / r + wider * at_far * (mills(far) - mills(far_x) / r)
        return log_unit + np.log(np.maximum(h, 0.0)), q / h


def _integrated(height: Floats, d: Floats, r: Floats, root: Floats) -> tuple[Floats, Floats]:
    a, _, far, _ = _roots(height, d, r, root)
    k = 0.5 * (r - 1.0) * (r + 1.0)
    with np.errstate(divide="ignore"):
        width = np.where(r < 1.0, root / np.maximum(-k, 0.0), np.inf)
    near = _beyond(a, root, k, width)
    with np.errstate(all="ignore"):
        weight = np.nan_to_num(np.where(r > 1.0, np.exp(-0.5 * (far - a) * (far + a)), 0.0))
    # An infinite far root has no weight; any number will do for its integral.
    other = _beyond(np.minimum(far, 1e8), root, np.maximum(k, 0.0), np.full(a.shape, np.inf))
    h, q = (u + weight * v for u, v in zip(near, other, strict=True))
    return -0.5 * a * a - LOG_SQRT_2PI + np.log(h), q / h


def _beyond(a: Floats, slope: Floats, k: Floats, width: Floats) -> tuple[Floats, Floats]:
    """Return the excess of P over e^epsilon Q past a root, and the latter, over phi(a)."""
    # Where the density has fallen to e^-40 of its value at the root, or at the center.
    reach = 80.0 / (np.maximum(a, 0.0) + np.sqrt(np.maximum(a, 0.0) ** 2 + 80.0))
    size = np.minimum(reach + np.maximum(-a, 0.0), width)
    y = size[:, None] * _NODES
    density = np.exp(-y * (a[:, None] + 0.5 * y))
    log_ratio = y * (slope[:, None] + k[:, None] * y)
    return (
        size * ((density * -np.expm1(-log_ratio)) @ _WEIGHTS),
        size * ((density * np.exp(-log_ratio)) @ _WEIGHTS),
    )


def _difference_and_ratio(
    first: Floats, *pair: float | NDArray[Any]
) -> tuple[Floats, Floats, Floats]:
    """Return ``first``, the mean difference in units of Q, and the ratio, in one shape."""
    named = zip(
        ("mean_p", "std_p", "mean_q", "std_q"), pair, (finite_number, _std) * 2, strict=True
    )
    numbers = [each(check, name, value) for name, value, check in named]
    first, m1, s1, m0, s0 = np.broadcast_arrays(first, *numbers)
    return first, np.abs(m1 - m0) / s0, s1 / s0


def _std(name: str, value: Any) -> None:
    _validate.positive(name, value, "Gaussians without variance are distinguished without error")
