r"""Divergence of two centered Gaussians of n coordinates with different scales, and its epsilon.

For P = N(0, I) and Q = N(0, r^2 I) with n coordinates the length w of x is sufficient. It is chi
distributed with n degrees of freedom under P. The log ratio of the densities

.. math:: L(w) = n \log r - a w^2, \qquad a = (1 - r^{-2}) / 2

exceeds epsilon past a root t: for w > t if r < 1, for w < t if r > 1, and there
L(w) - epsilon = a (t^2 - w^2). With the density f of w,

.. math:: \delta(\varepsilon) = \sup_S\, P(S) - e^\varepsilon Q(S)
    = \int_{L > \varepsilon} \bigl(1 - e^{-a (t^2 - w^2)}\bigr) f(w)\,dw .

The integrand is positive, so no digits are lost (own derivation). T releases of d coordinates each
are one release of n = d T, because each draws new noise. Adaptively chosen releases are covered, as
the ratio does not depend on earlier releases. For many coordinates and a ratio near one the pair is
mu-GDP with mu = sqrt(2 n) |log r|.

References:
    Balle and Wang, "Improving the Gaussian mechanism for differential privacy", ICML 2018,
    arXiv:1805.06530 (the divergence by the log ratio of the densities). Dong, Roth and Su,
    "Gaussian differential privacy", JRSS B 84, 2022, arXiv:1905.02383 (the limit).
"""

from __future__ import annotations

import math

import numpy as np
import scipy
from scipy import special

from lightning_audit import _validate
from lightning_audit.stats._arguments import Floats, delta_in_unit, non_negative

__all__ = ["isotropic_pair_delta", "isotropic_pair_epsilon"]

# The density of w falls faster than a normal one of variance 1 on either side of its mode: at the
# first distance it underflows, and at the second it is negligible compared with the center.
_END, _MIDDLE = 40.0, 9.0
# Panels that halve toward the root, where the integrand may rise within a small part of the range.
_EDGES = np.concatenate([[0.0], 2.0 ** np.arange(-50.0, 1.0)])
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(40)
_AT = (_EDGES[:-1, None] + np.diff(_EDGES)[:, None] * 0.5 * (_NODES + 1.0)).ravel()
_OF = (np.diff(_EDGES)[:, None] * 0.5 * _WEIGHTS).ravel()
_LARGEST_RATIO = 1e100


def isotropic_pair_delta(epsilon: float, ratio: float, coordinates: int) -> float:
    """Return the hockey-stick divergence of N(0, I) from N(0, ratio^2 I).

    Compared with 60 digits the relative error is below 1e-9 for 1 to 100,000 coordinates, ratios in
    [1/2, 2] and delta of at least 1e-10. Up to 1e12 coordinates it converges to the limit of
    Gaussian DP as one over the root of their number, to two digits of the difference.

    Args:
        epsilon: Epsilon >= 0, infinity included.
        ratio: Standard deviation of the second over that of the first, in [1e-100, 1e100].
        coordinates: Number of coordinates of all releases together, a whole number >= 1.

    Returns:
        Delta in [0, 1].

    Raises:
        ValueError: If an argument is outside its range.

    Example:
        >>> round(isotropic_pair_delta(1.0, 16 / 15, 1000), 6)
        0.760213
    """
    non_negative("epsilon", epsilon)
    n, a = _checked(ratio, coordinates)
    if a == 0.0 or math.isinf(epsilon):
        return 0.0
    square = (n * math.log(ratio) - epsilon) / a
    return _divergence(math.sqrt(square), n, a) if square > 0.0 else 0.0


def isotropic_pair_epsilon(ratio: float, coordinates: int, delta: float) -> float:
    """Return the smallest epsilon >= 0 at which both Gaussians are (epsilon, delta)-close.

    The larger one of both directions, as differential privacy requires.

    Args:
        ratio: As in `isotropic_pair_delta`, in either order.
        coordinates: Number of coordinates of all releases together, >= 1.
        delta: Delta in (0, 1).

    Returns:
        Epsilon >= 0.

    Raises:
        ValueError: If an argument is outside its range.

    Example:
        >>> round(isotropic_pair_epsilon(16 / 15, 1000, 1e-5), 3)
        17.638
    """
    delta_in_unit("delta", delta)
    forward = _one_way(ratio, coordinates, delta)
    return max(forward, _one_way(1.0 / ratio, coordinates, delta))


def _one_way(ratio: float, coordinates: int, delta: float) -> float:
    """Return the least epsilon >= 0 at which N(0, I) diverges from N(0, ratio^2 I) by delta."""
    n, a = _checked(ratio, coordinates)
    if isotropic_pair_delta(0.0, ratio, coordinates) <= delta:
        return 0.0
    mode = math.sqrt(n - 1.0)
    none = mode + _END if a < 0.0 else max(mode - _END, 0.0)
    whole = math.sqrt(n * math.log(ratio) / a)
    least = min(1e-300, 0.5 * delta)  # replaces zero in the logarithm
    root = scipy.optimize.brentq(
        lambda t: math.log(max(_divergence(t, n, a), least) / delta), whole, none, xtol=1e-15
    )
    return max(n * math.log(ratio) - a * float(root) ** 2, 0.0)


def _divergence(root: float, n: float, a: float) -> float:
    """Return the integral past the root."""
    if root == 0.0 and a > 0.0:
        return 0.0
    mode, away = math.sqrt(n - 1.0), 1.0 if a < 0.0 else -1.0
    # Far on the other side of the center the integrand is zero: start where the density starts.
    start = max(root, mode - _MIDDLE) if a < 0.0 else min(root, mode + _MIDDLE)
    slope = max(away * (start - (n - 1.0) / start), 0.0)
    # Where the density has fallen to e^-40 of its value at the start, or at the mode.
    reach = 80.0 / (slope + math.sqrt(slope * slope + 80.0)) + max(away * (mode - start), 0.0)
    if a > 0.0:
        reach = min(reach, start)
    w = start + away * reach * _AT
    excess = -np.expm1(-a * (root - w) * (root + w))
    return min(float(reach * (_OF @ (excess * np.exp(_log_density(w, n))))), 1.0)


def _log_density(w: Floats, n: float) -> Floats:
    """Return the log density of the chi distribution with n degrees of freedom."""
    mode = math.sqrt(n - 1.0)
    u = w - mode
    below = -0.5 * u * u
    if mode > 0.0:
        with np.errstate(divide="ignore"):
            below = below + mode * mode * (np.log1p(np.maximum(u / mode, -1.0)) - u / mode)
    return below + _log_peak(n)


def _log_peak(n: float) -> float:
    """Return the log density at the mode."""
    half = 0.5 * n
    if n < 1e3:
        power = float(special.xlogy(n - 1.0, math.sqrt(n - 1.0)))
        return (1 - half) * math.log(2) - float(special.gammaln(half)) + power - 0.5 * (n - 1)
    # Stirling's series, because the logarithm of the gamma function has lost too many digits.
    stirling = 1.0 / (12.0 * half) - 1.0 / (360.0 * half**3)
    return 0.5 - 0.5 * math.log(math.pi) + (half - 0.5) * math.log1p(-0.5 / half) - stirling


def _checked(ratio: float, coordinates: int) -> tuple[float, float]:
    """Return the number of coordinates, and the factor of the squared length in the log ratio."""
    _validate.positive("ratio", ratio, "it is one standard deviation over another")
    if not 1.0 / _LARGEST_RATIO <= ratio <= _LARGEST_RATIO:
        raise ValueError(
            f"ratio={ratio!r} must be in [1e-100, 1e100]; noise of two such sizes is distinguished "
            "without error."
        )
    advice = "it is the number of parameters times that of the releases"
    n = float(_validate.positive_int("coordinates", coordinates, advice))
    return n, 0.5 * (ratio - 1.0) * (ratio + 1.0) / (ratio * ratio)
