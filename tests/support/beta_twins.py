"""Naive twins of the joint posterior, in 25 digits: plain quadrature, plain continued fraction."""

from functools import lru_cache

import mpmath as mp

HALF = mp.mpf(1) / 2
DIGITS = 25


def beta_cdf(a, b, x):
    """Regularized incomplete beta function; mpmath's own series fails for large shapes."""
    if x <= 0:
        return mp.mpf(0)
    if x >= 1:
        return mp.mpf(1)
    if x > (a + 1) / (a + b + 2):
        return 1 - beta_cdf(b, a, 1 - x)
    front = mp.exp(log_beta_density(a, b, x, 1 - x)) * x * (1 - x) / a
    if front < mp.mpf(10) ** -60:
        return mp.mpf(0)
    c = mp.mpf(1)
    d = 1 / (1 - (a + b) * x / (a + 1))
    h = d
    for m in range(1, 100_000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d, c = 1 / (1 + term * d), 1 + term / c
            h *= d * c
        if abs(d * c - 1) < mp.mpf(10) ** (3 - DIGITS):
            return front * h
    raise ArithmeticError("the continued fraction does not converge")


def log_beta_density(a, b, x, rest):
    return _log_norm(a, b, mp.mp.dps) + (a - 1) * mp.log(x) + (b - 1) * mp.log(rest)


@lru_cache(maxsize=64)
def _log_norm(a, b, digits):
    return mp.loggamma(a + b) - mp.loggamma(a) - mp.loggamma(b)


def marks(a, b):
    """Points around the bulk of a Beta variable, for the quadrature to notice it."""
    mean = a / (a + b)
    std = mp.sqrt(mean * (1 - mean) / (a + b))
    return [mean + k * std for k in (-12, -6, -3, 0, 3, 6, 12)]


def epsilon_outside(epsilon, fn, tp, fp, tn, delta):
    """Pr[(FNR, FPR) below R(epsilon, delta)], and above it."""
    with mp.workdps(DIGITS):
        a, b, c, d = (mp.mpf(count) + HALF for count in (fn, tp, fp, tn))
        eps, delta = mp.mpf(epsilon), mp.mpf(delta)
        return _epsilon_below(a, b, c, d, eps, delta), _epsilon_below(b, a, d, c, eps, delta)


def _epsilon_below(a, b, c, d, eps, delta):
    span, shrink = 1 - delta, mp.exp(-eps)
    vertex = span / (1 + mp.exp(eps))

    def strip(a, b, c, d):
        def integrand(phi):
            y, rest = span * mp.sin(phi) ** 2, delta + span * mp.cos(phi) ** 2
            jacobian = 2 * span * mp.sin(phi) * mp.cos(phi)
            density = mp.exp(log_beta_density(c, d, y, rest))
            return density * beta_cdf(a, b, shrink * span * mp.cos(phi) ** 2) * jacobian

        points = marks(c, d) + [span - x / shrink for x in marks(a, b)]
        inner = sorted(y for y in points if vertex < y < span)
        cuts = [mp.asin(mp.sqrt(y / span)) for y in [vertex, *inner, span]]
        return mp.quad(integrand, cuts, maxdegree=4)

    corner = beta_cdf(a, b, vertex) * beta_cdf(c, d, vertex)
    return corner + strip(a, b, c, d) + strip(c, d, a, b)


def mu_outside(mu, fn, tp, fp, tn):
    """Pr[Phi^-1(FNR) + Phi^-1(FPR) < -mu], and that it is > mu."""
    with mp.workdps(DIGITS):
        a, b, c, d = (mp.mpf(count) + HALF for count in (fn, tp, fp, tn))
        return _mu_below(a, b, c, d, mp.mpf(mu)), _mu_below(b, a, d, c, mp.mpf(mu))


def _mu_below(a, b, c, d, mu):
    def probit(p):
        return mp.sqrt(2) * mp.erfinv(2 * p - 1)

    def integrand(t):
        density = mp.exp(log_beta_density(c, d, mp.ncdf(t), mp.ncdf(-t)))
        return density * mp.npdf(t) * beta_cdf(a, b, mp.ncdf(-mu - t))

    points = [probit(p) for p in marks(c, d) if 1e-18 < p < 1 - 1e-18]
    points += [-mu - probit(p) for p in marks(a, b) if 1e-18 < p < 1 - 1e-18]
    return mp.quad(integrand, sorted([mp.mpf(-14), *points, mp.mpf(14)]), maxdegree=4)
