"""Joint posterior of two error rates: its mass on either side of a region of claims.

The rates X and Y are independent Beta variables. A claim excludes the rates below its lower
boundary, and those above the mirror image of that boundary in the center of the unit square. Mass
is integrated over one rate by Gauss-Legendre quadrature, only where both factors of the integrand
vary; if the other rate is certainly below the boundary, the mass is a Beta probability. So the
number of nodes does not depend on the sizes of the two samples. The claims are those of
arXiv:2206.05199 (epsilon, delta) and arXiv:2302.07956 (mu).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Self

import numpy as np
from numpy.typing import NDArray
from scipy import special

from lightning_audit.stats._arguments import Floats
from lightning_audit.stats._beta import Beta

Rows = NDArray[np.intp] | slice

# exp of the largest epsilon must be a double; e^-700 is a rate that no posterior reaches.
_LARGEST_EPSILON = 700.0
# Two rates whose probits differ by more cannot both be represented as doubles.
_LARGEST_MU = 75.0


@lru_cache(maxsize=8)
def _legendre(nodes: int) -> tuple[Floats, Floats]:
    x, w = np.polynomial.legendre.leggauss(nodes)
    return x, w


@dataclass(frozen=True)
class Sides(ABC):
    """Masses outside a one-parameter family of growing regions, for independent rates.

    Args:
        x: The rate FNR.
        y: The rate FPR.
    """

    x: Beta
    y: Beta

    def mirrored_where(self, mask: NDArray[np.bool_] | bool) -> Self:
        """Return the problem of the rates 1 - X and 1 - Y in the rows of the mask."""
        return replace(self, x=self.x.mirrored_where(mask), y=self.y.mirrored_where(mask))

    def take(self, rows: Rows) -> Self:
        """Return the problem of some rows."""
        return replace(self, x=self.x.take(rows), y=self.y.take(rows))

    @abstractmethod
    def below(self, value: Floats, rest: bool) -> tuple[Floats, Floats]:
        """Return Pr[(X, Y) below the boundary], or the rest, and minus the mass's derivative."""

    @abstractmethod
    def start(self, probability: float) -> Floats:
        """Return rough quantiles > 0 of the smallest claim, for Newton's method."""


@dataclass(frozen=True)
class EpsilonSides(Sides):
    r"""Boundary of (epsilon, delta)-DP: x + e^eps y = 1 - delta and y + e^eps x = 1 - delta.

    With the vertex c = (1 - delta) / (1 + e^eps) of the boundary on the diagonal,

    .. math:: \Pr[\text{below}] = F_X(c) F_Y(c)
        + \int_c^{1-\delta} f_Y(y) F_X(e^{-\varepsilon}(1 - \delta - y))\,dy
        + \int_c^{1-\delta} f_X(x) F_Y(e^{-\varepsilon}(1 - \delta - x))\,dx

    and y = (1 - delta) sin^2 phi makes the integrand analytic for integer and half-integer shapes.
    """

    delta: float
    nodes: int

    def below(self, value: Floats, rest: bool) -> tuple[Floats, Floats]:
        eps = np.minimum(value, _LARGEST_EPSILON)
        vertex = (1.0 - self.delta) / (1.0 + np.exp(eps))
        other = 1.0 - vertex
        if rest:
            corner = self.x.above(vertex, other) * self.y.above(vertex, other)
        else:
            corner = self.x.below(vertex, other) * self.y.below(vertex, other)
        first = self._strip(self.x, self.y, eps, vertex, rest)
        second = self._strip(self.y, self.x, eps, vertex, rest)
        return corner + first[0] + second[0], first[1] + second[1]

    def _strip(
        self, x: Beta, y: Beta, eps: Floats, vertex: Floats, rest: bool
    ) -> tuple[Floats, Floats]:
        """Return the mass with y above the vertex and x below the boundary; rest: x < vertex."""
        span = 1.0 - self.delta
        growth = np.exp(eps) / span
        at_vertex = np.arctan(np.exp(-0.5 * eps))
        # Up to `surely` x is below the boundary except for its tail, from `never` on above it.
        surely = np.maximum(_arccos_sqrt((1.0 - x.lower_rest) * growth), at_vertex)
        never = np.maximum(_arccos_sqrt(x.lower * growth), at_vertex)
        start = np.maximum(surely, self._angle(y.lower, 1.0 - y.lower))
        stop = np.minimum(never, self._angle(1.0 - y.lower_rest, y.lower_rest))
        phi, weight = _nodes(start, stop, self.nodes)
        sine, cosine = np.sin(phi), np.cos(phi)
        large, large_rest = span * sine * sine, self.delta + span * cosine * cosine
        small = np.exp(-eps)[:, None] * span * cosine * cosine
        small_rest = 1.0 - small
        # dy = 2 span sin cos dphi, over y (1 - y) from the density of the logit.
        weight = weight * y.density_of_logit(large, large_rest) * 2.0 * cosine / (sine * large_rest)
        density = np.sum(weight * x.density_of_logit(small, small_rest) / small_rest, axis=1)
        if rest:
            at, at_rest = self._rate(never)
            beyond = x.above(vertex, 1.0 - vertex)
            inner = np.sum(weight * (x.above(small, small_rest) - beyond[:, None]), axis=1)
            return inner + (1.0 - beyond) * y.above(at, at_rest), density
        at, at_rest = self._rate(surely)
        sure = y.below(at, at_rest) - y.below(vertex, 1.0 - vertex)
        inner = np.sum(weight * x.below(small, small_rest), axis=1)
        return inner + np.where(surely > at_vertex, sure, 0.0), density

    def _rate(self, angle: Floats) -> tuple[Floats, Floats]:
        span = 1.0 - self.delta
        return span * np.sin(angle) ** 2, self.delta + span * np.cos(angle) ** 2

    def _angle(self, rate: Floats, rest: Floats) -> Floats:
        # A rate above 1 - delta is past the boundary's end, which is at a right angle.
        return np.arctan2(np.sqrt(rate), np.sqrt(np.maximum(rest - self.delta, 0.0)))

    def start(self, probability: float) -> Floats:
        x, y = self.x.a / (self.x.a + self.x.b), self.y.a / (self.y.a + self.y.b)
        # Normal limit of the log ratio of two rates, on their side of the diagonal.
        sides = self.mirrored_where(x + y >= 1)
        x, y = (rate.a / (rate.a + rate.b) for rate in (sides.x, sides.y))
        of_small = np.where(x < y, sides.x.a, sides.y.a)
        of_large = np.where(x < y, sides.y.b, sides.x.b)
        odds = (1.0 - self.delta - np.maximum(x, y)) / np.minimum(x, y)
        ratio = np.log(np.maximum(odds, 1.02))
        spread = np.sqrt(1.0 / of_small + 1.0 / of_large)
        return np.maximum(ratio + special.ndtri(probability) * spread, 0.01)


@dataclass(frozen=True)
class MuSides(Sides):
    r"""Boundary of mu-GDP: Phi^-1(x) + Phi^-1(y) = -mu.

    .. math:: \Pr[\text{below}] = \int f_Y(\Phi(t))\,\varphi(t)\, F_X(\Phi(-\mu - t))\,dt

    where both factors are bells and steps on the probit scale, for any shapes.
    """

    nodes: int

    def below(self, value: Floats, rest: bool) -> tuple[Floats, Floats]:
        x, y, mu = self.x, self.y, np.minimum(value, _LARGEST_MU)
        # Probits of y: up to `surely` x is below the boundary except for its tail.
        surely = special.ndtri(x.lower_rest) - mu
        never = -special.ndtri(x.lower) - mu
        start = np.maximum(surely, special.ndtri(y.lower))
        stop = np.minimum(never, -special.ndtri(y.lower_rest))
        t, weight = _nodes(start, stop, self.nodes)
        z = -mu[:, None] - t
        small, small_rest = special.ndtr(z), special.ndtr(-z)
        density_of_t = y.density_of_logit(special.ndtr(t), special.ndtr(-t)) * _logit_slope(t)
        density_of_z = x.density_of_logit(small, small_rest) * _logit_slope(z)
        weight = weight * density_of_t
        density = np.sum(weight * density_of_z, axis=1)
        if rest:
            inner = np.sum(weight * x.above(small, small_rest), axis=1)
            sure = y.above(special.ndtr(never), special.ndtr(-never))
        else:
            inner = np.sum(weight * x.below(small, small_rest), axis=1)
            sure = y.below(special.ndtr(surely), special.ndtr(-surely))
        return inner + sure, density

    def start(self, probability: float) -> Floats:
        centre, variance = np.zeros(self.x.a.shape), np.zeros(self.x.a.shape)
        for rate in (self.x, self.y):
            n = rate.a + rate.b
            mean = rate.a / n
            probit = special.ndtri(mean)
            centre = centre + probit
            # The delta method; 2 pi phi^2 = exp(-probit^2).
            variance = variance + 2.0 * np.pi * mean * (1.0 - mean) / n * np.exp(probit * probit)
        guess = np.abs(centre) + special.ndtri(probability) * np.sqrt(variance)
        return np.maximum(guess, 0.01)


def _nodes(start: Floats, stop: Floats, nodes: int) -> tuple[Floats, Floats]:
    """Return quadrature points and weights of each row's interval; zero weights if empty."""
    x, w = _legendre(nodes)
    half = 0.5 * np.maximum(stop - start, 0.0)
    # The points of an empty interval only have to be where the integrand is finite.
    start = np.where(half > 0, start, 0.5)
    return start[:, None] + half[:, None] * (1.0 + x), half[:, None] * w


def _arccos_sqrt(square: Floats) -> Floats:
    return np.arccos(np.sqrt(np.minimum(square, 1.0)))


def _logit_slope(probit: Floats) -> Floats:
    """Return the derivative of log(Phi / (1 - Phi)); in logs, since both tails may underflow."""
    tails = special.log_ndtr(probit) + special.log_ndtr(-probit)
    result: Floats = np.exp(-0.5 * probit * probit - tails) / np.sqrt(2.0 * np.pi)
    return result
