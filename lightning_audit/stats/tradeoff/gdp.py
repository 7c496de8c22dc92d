"""Conversions between mu-GDP and (epsilon, delta)-DP."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from lightning_audit.stats._arguments import Floats, delta_in_unit, each, like_input, non_negative

__all__ = ["gaussian_delta", "gaussian_epsilon", "gaussian_mu"]

_SQRT2 = np.sqrt(2.0)
#: Log of the normal density's denominator.
LOG_SQRT_2PI = 0.5 * np.log(2.0 * np.pi)

# Below this mu the difference of two Mills ratios loses digits, and the quadrature does not.
_NARROW = 0.1
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(6)
_NODES, _WEIGHTS = 0.5 * (_NODES + 1.0), 0.5 * _WEIGHTS

# Newton's error squares at each step: after a relative step of this size it is negligible.
_LAST_STEP = 1e-10
_MAX_ITERATIONS = 100
# From this mu on, Newton's starting point is accurate to the last digit, and a is only rounding.
_WIDE = 1e8


def gaussian_delta(epsilon: float | NDArray[Any], mu: float | NDArray[Any]) -> float | Floats:
    r"""Return the privacy curve of mu-GDP: the smallest delta at ``epsilon``.

    Exact for the Gaussian mechanism, and mu-GDP is equivalent to (epsilon, delta(epsilon))-DP for
    all epsilon >= 0 together. The relative error is at most 1e-12 for mu in [1e-3, 50] and delta in
    [1e-12, 0.5].

    .. math:: \delta(\varepsilon) = \Phi(a) - e^{\varepsilon} \Phi(b)
        = \varphi(a)\,[M(-a) - M(-b)], \qquad
        a = \tfrac{\mu}{2} - \tfrac{\varepsilon}{\mu},\quad b = a - \mu

    with the Mills ratio M(x) = Phi(-x) / phi(x), computed as a scaled complementary error function,
    so that neither term under- or overflows. For mu < 0.1 their difference is computed as the
    integral of -M' = 1 - x M(x), in which no digits cancel.

    Args:
        epsilon: Epsilon >= 0, infinity included; a number or an array.
        mu: Parameter of Gaussian DP >= 0, sensitivity over noise standard deviation; infinity means
            no privacy. Broadcast against ``epsilon``.

    Returns:
        Delta in [0, 1]: a float for numbers, an array of the broadcast shape for arrays.

    Raises:
        ValueError: If ``epsilon`` or ``mu`` is negative or not a number.

    Example:
        >>> f"{gaussian_delta(4.37717810, 1.0):.4e}"
        '1.0000e-05'
        >>> gaussian_delta(1.0, 0.0)
        0.0

    References:
        Balle and Wang, "Improving the Gaussian mechanism for differential privacy", ICML 2018,
        arXiv:1805.06530, Theorem 8. Dong, Roth and Su, "Gaussian differential privacy", JRSS B 84,
        2022, arXiv:1905.02383, Corollary 2.13.
    """
    eps, m = np.broadcast_arrays(
        each(non_negative, "epsilon", epsilon), each(non_negative, "mu", mu)
    )
    delta = np.zeros(m.shape)
    delta[np.isinf(m)] = 1.0
    # delta <= Phi(a), which is below the smallest double from a = -40 on.
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        seen = (m > 0) & np.isfinite(m) & (m / 2 - eps / m > -40.0)
    delta[seen] = np.exp(_log_delta(eps[seen], m[seen]))
    # The logarithm of a number near one may round to slightly above zero.
    return like_input(np.minimum(delta, 1.0))


def gaussian_epsilon(mu: float | NDArray[Any], delta: float | NDArray[Any]) -> float | Floats:
    """Return the smallest epsilon >= 0 for which mu-GDP implies (epsilon, delta)-DP.

    The inverse of `gaussian_delta` in epsilon, exact for the Gaussian mechanism. A lower bound on
    mu gives a lower bound on epsilon only for a Gaussian mechanism: for any other, a rejected
    mu-GDP does not refute a single (epsilon, delta). The relative error is at most 1e-12 for mu in
    [1e-3, 50] and delta in [1e-12, 0.5], except near delta = 2 Phi(mu/2) - 1, where epsilon goes to
    zero and the error is relative to mu. The sources are those of `gaussian_delta`.

    Args:
        mu: Parameter of Gaussian DP >= 0; 0 gives 0, infinity gives infinity. A number or an array.
        delta: Delta in (0, 1). Broadcast against ``mu``.

    Returns:
        Epsilon >= 0: a float for numbers, an array of the broadcast shape for arrays.

    Raises:
        ValueError: If ``mu`` is negative or not a number, or ``delta`` is not in (0, 1).

    Example:
        >>> round(gaussian_epsilon(1.0, 1e-5), 8)
        4.3771781
        >>> gaussian_epsilon(np.array([0.0, 0.1, 10.0, np.inf]), 1e-5).round(6)
        array([ 0.      ,  0.340669, 91.81729 ,       inf])
    """
    m, d = np.broadcast_arrays(each(non_negative, "mu", mu), each(delta_in_unit, "delta", delta))
    epsilon = np.zeros(m.shape)
    with np.errstate(over="ignore"):
        unbounded = np.isinf(m * m)
    epsilon[unbounded] = np.inf
    # delta(0) = 2 Phi(mu/2) - 1: from there on epsilon = 0 suffices.
    solve = ~unbounded & (d < special.erf(m / (2 * _SQRT2)))
    epsilon[solve] = _solve_epsilon(m[solve], d[solve])
    return like_input(epsilon)


def gaussian_mu(epsilon: float | NDArray[Any], delta: float | NDArray[Any]) -> float | Floats:
    """Return the mu whose Gaussian mechanism is exactly (epsilon, delta)-DP.

    It is the largest mu for which mu-GDP implies (epsilon, delta)-DP, and the inverse of
    `gaussian_epsilon` in mu. The converse is false: (epsilon, delta)-DP does not imply mu-GDP. The
    relative error is at most 1e-12 for mu in [1e-3, 50] and delta in [1e-12, 0.5].

    Args:
        epsilon: Epsilon >= 0; infinity gives infinity. A number or an array.
        delta: Delta in (0, 1). Broadcast against ``epsilon``.

    Returns:
        mu > 0: a float for numbers, an array of the broadcast shape for arrays.

    Raises:
        ValueError: If ``epsilon`` is negative or not a number, or ``delta`` is not in (0, 1).

    Example:
        >>> round(gaussian_mu(8.0, 1e-5), 4)
        1.666
        >>> gaussian_mu(np.array([1.0, 4.0]), 1e-5).round(4)
        array([0.2681, 0.9249])
    """
    eps, d = np.broadcast_arrays(
        each(non_negative, "epsilon", epsilon), each(delta_in_unit, "delta", delta)
    )
    mu = np.full(eps.shape, np.inf)
    solve = np.isfinite(eps)
    mu[solve] = _solve_mu(eps[solve], d[solve])
    return like_input(mu)


def _log_delta(eps: Floats, mu: Floats) -> Floats:
    """Return the log of the privacy curve of mu-GDP, for finite eps >= 0 and finite mu > 0."""
    a = mu / 2 - eps / mu
    b = -mu / 2 - eps / mu
    # Each form is evaluated everywhere, and is meaningless outside its own range.
    with np.errstate(all="ignore"):
        log_phi = -0.5 * a * a - LOG_SQRT_2PI
        x = -a[..., None] + mu[..., None] * _NODES
        narrow = log_phi + np.log(mu) + np.log((1.0 - x * mills(x)) @ _WEIGHTS)
        tail = log_phi + np.log(mills(-a) - mills(-b))
        # Phi(a) is near one here, where the Mills ratio of -a would overflow.
        bulk = np.log(special.ndtr(a) - np.exp(log_phi) * mills(-b))
    result: Floats = np.where(mu < _NARROW, narrow, np.where(a < 1.0, tail, bulk))
    return result


def mills(x: Floats) -> Floats:
    """Return the Mills ratio Phi(-x) / phi(x)."""
    ratio: Floats = np.sqrt(np.pi / 2.0) * special.erfcx(x / _SQRT2)
    return ratio


def _solve_epsilon(mu: Floats, delta: Floats) -> Floats:
    """Solve for epsilon by Newton's method, for finite mu > 0 and delta < delta(0).

    Log delta is concave and decreasing in epsilon: from above the root there is no overshooting.
    """
    log_target = np.log(delta)
    # delta(eps) <= Phi(a), so the solution of Phi(a) = delta is above the root.
    eps = np.maximum(mu * mu / 2 - mu * special.ndtri(delta), 0.0)
    wide = mu > _WIDE
    for _ in range(_MAX_ITERATIONS):
        log_delta = _log_delta(eps, mu)
        a = mu / 2 - eps / mu
        slope = np.exp(-0.5 * a * a - LOG_SQRT_2PI - log_delta) * mills(mu - a)
        step = (log_delta - log_target) / np.where(wide, 1.0, slope)
        step[wide] = 0.0
        eps = np.maximum(eps + step, 0.0)
        if np.all(np.abs(step) <= _LAST_STEP * eps):
            break
    return eps


def _solve_mu(eps: Floats, delta: Floats) -> Floats:
    """Solve for log mu by Newton's method, for finite eps >= 0, from the left.

    Both Phi(a) = delta and the solution for epsilon = 0 are lower bounds on mu.
    """
    log_target = np.log(delta)
    z = -special.ndtri(delta)
    root = np.sqrt(z * z + 2 * eps)
    # Both forms of the quadratic formula, each where it adds numbers of one sign.
    with np.errstate(divide="ignore", invalid="ignore"):
        tail = np.where(z > 0, 2 * eps / (z + root), root - z)
    log_mu = np.log(np.maximum(tail, 2 * _SQRT2 * special.erfinv(delta)))
    wide = log_mu > np.log(_WIDE)
    for _ in range(_MAX_ITERATIONS):
        mu = np.exp(log_mu)
        log_delta = _log_delta(eps, mu)
        a = mu / 2 - eps / mu
        slope = np.exp(-0.5 * a * a - LOG_SQRT_2PI - log_delta) * mu
        # Far below the root, log delta may be so steep or flat that a full step overflows.
        step = np.clip((log_target - log_delta) / np.where(wide, 1.0, slope), -1.0, 1.0)
        step[wide] = 0.0
        log_mu = log_mu + step
        if np.all(np.abs(step) <= _LAST_STEP):
            break
    result: Floats = np.exp(log_mu)
    return result
