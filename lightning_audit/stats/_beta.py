"""Beta distributions with densities that stay accurate for shapes from 1/2 to millions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from lightning_audit.stats._arguments import Floats

_HALF_LOG_2PI = 0.5 * np.log(2.0 * np.pi)
# 1/3, 1/5, ...: for v^2 < 0.01 the first omitted term is below 1e-17 of the sum.
_ODD = 1.0 / np.arange(3.0, 20.0, 2.0)


@dataclass(frozen=True)
class Beta:
    """Independent Beta variables X, one per row, and an interval that omits a tail on either side.

    Args:
        a: First shapes, ``[n]``.
        b: Second shapes, ``[n]``.
        lower: Quantile of X at the tail probability, ``[n]``.
        lower_rest: The same quantile of 1 - X, so that 1 - lower_rest is the upper end, ``[n]``.
        log_scale: Log of the factor of the density of log(X / (1 - X)), ``[n]``.
    """

    a: Floats
    b: Floats
    lower: Floats
    lower_rest: Floats
    log_scale: Floats

    @classmethod
    def of(cls, a: Floats, b: Floats, tail: float) -> Beta:
        """Return variables with shapes a and b; the interval omits ``tail`` on either side."""
        total = a + b
        correction = stirling_error(total) - stirling_error(a) - stirling_error(b)
        return cls(
            a=a,
            b=b,
            lower=np.asarray(special.betaincinv(a, b, tail), dtype=np.float64),
            lower_rest=np.asarray(special.betaincinv(b, a, tail), dtype=np.float64),
            log_scale=correction + 0.5 * np.log(a * b / total) - _HALF_LOG_2PI,
        )

    def take(self, rows: NDArray[np.intp] | slice) -> Beta:
        """Return the variables of some rows."""
        kept = (self.a, self.b, self.lower, self.lower_rest, self.log_scale)
        return Beta(*(values[rows] for values in kept))

    def mirrored_where(self, mask: NDArray[np.bool_] | bool) -> Beta:
        """Return 1 - X in the rows of the mask (True: in all), X in the others."""
        return Beta(
            np.where(mask, self.b, self.a),
            np.where(mask, self.a, self.b),
            np.where(mask, self.lower_rest, self.lower),
            np.where(mask, self.lower, self.lower_rest),
            self.log_scale,
        )

    def density_of_logit(self, x: Floats, rest: Floats) -> Floats:
        r"""Density of log(X / (1 - X)), which is x (1 - x) times the density of X.

        .. math:: \sqrt{\tfrac{ab}{2 \pi N}}\, e^{S(N) - S(a) - S(b)}\,
            e^{-D(a, N x) - D(b, N (1 - x))}, \qquad N = a + b

        with the Stirling errors S and the deviances D. Neither loses digits by cancellation; the
        naive logarithm of the density has an error of N times the rounding error.

        Args:
            x: Points in (0, 1), ``[n, nodes]``.
            rest: 1 - x, given separately because it cannot be computed accurately for x near one.

        Returns:
            The density, ``[n, nodes]``.

        References:
            Loader, "Fast and accurate computation of binomial probabilities", 2000.
        """
        a, b = self.a[:, None], self.b[:, None]
        total = a + b
        exponent = deviance(a, total * x) + deviance(b, total * rest)
        return np.exp(self.log_scale[:, None] - exponent)

    def below(self, x: Floats, rest: Floats) -> Floats:
        """Return Pr[X <= x], accurate relative to its size; ``rest`` is 1 - x."""
        return _cdf(self.a, self.b, x, rest)

    def above(self, x: Floats, rest: Floats) -> Floats:
        """Return Pr[X > x], accurate relative to its size; ``rest`` is 1 - x."""
        return _cdf(self.b, self.a, rest, x)


def _cdf(a: Floats, b: Floats, x: Floats, rest: Floats) -> Floats:
    if x.ndim > a.ndim:
        a, b = a[:, None], b[:, None]
    small = x < 0.5
    if np.all(small):
        return np.asarray(special.betainc(a, b, x), dtype=np.float64)
    a, b = np.broadcast_to(a, x.shape), np.broadcast_to(b, x.shape)
    result = np.empty(x.shape)
    result[small] = special.betainc(a[small], b[small], x[small])
    large = ~small
    result[large] = special.betaincc(b[large], a[large], rest[large])
    return result


def deviance(k: Floats, mean: Floats) -> Floats:
    """Return the deviance k log(k / mean) + mean - k >= 0 for k, mean > 0, also near k = mean."""
    k, mean = np.broadcast_arrays(k, mean)
    difference = k - mean
    v = difference / (k + mean)
    square = v * v
    series = np.full(v.shape, _ODD[-1])
    for coefficient in _ODD[-2::-1]:
        series = series * square + coefficient
    result: Floats = v * (difference + 2.0 * k * square * series)
    far = square > 0.01
    if np.any(far):
        with np.errstate(divide="ignore"):
            result[far] = k[far] * np.log(k[far] / mean[far]) - difference[far]
    return result


def stirling_error(z: Floats) -> Floats:
    """Return log of Gamma(z + 1) over Stirling's formula sqrt(2 pi z) (z / e)^z, for z >= 1/2."""
    z = np.asarray(z, dtype=np.float64)
    s = 1.0 / (z * z)
    series = (1 / 12 - s * (1 / 360 - s * (1 / 1260 - s * (1 / 1680 - s * (1 / 1188))))) / z
    direct = special.gammaln(z + 1.0) - (z + 0.5) * np.log(z) + z - _HALF_LOG_2PI
    return np.where(z > 15.0, series, direct)
