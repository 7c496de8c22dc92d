"""Bayesian posteriors of epsilon and of mu from an attack's error counts.

**Joint posterior of two error rates: its mass on either side of a region of claims.** The rates X
and Y are independent Beta variables. A claim excludes the rates below its lower boundary, and those
above the mirror image of that boundary in the center of the unit square. Mass is integrated over
one rate by Gauss-Legendre quadrature, only where both factors of the integrand vary; if the other
rate is certainly below the boundary, the mass is a Beta probability. So the number of nodes does
not depend on the sizes of the two samples. The claims are those of arXiv:2206.05199 (epsilon,
delta) and arXiv:2302.07956 (mu).

**Bayesian posterior of epsilon from an attack's error counts.** The error rates FNR and FPR have
independent Beta posteriors, for the prior Beta(1/2, 1/2) of Jeffreys or another one. Each pair of
rates has a smallest epsilon, at a given delta, of a claim that it does not refute. The posterior is
the distribution of that number.

The results are estimates, not bounds: a lower quantile has its level averaged over the prior, not
for each mechanism. The region of a claim matters as well. ``"two_sided"``, as published, also
counts more errors than right guesses as leakage, so that the posterior of a mechanism without any
leakage is positive with certainty, and its lower quantile is not evidence. ``"one_sided"`` puts the
mass above the diagonal at zero; use it if a positive value should mean something.

The quantiles are those of one threshold fixed beforehand. The literature reports
`Posterior.maximum`; on the data that chose the threshold it exceeds the true value far more
often than its level states.

References:
    Zanella-Béguelin et al., "Bayesian estimation of differential privacy", ICML 2023,
    arXiv:2206.05199: definition 3.1, and equations 4 to 6 for quantiles. The maximum is also in
    Nasr et al., "Tight auditing of differentially private machine learning", USENIX Security 2023,
    arXiv:2302.07956, with the posterior of mu in equation 13.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, Literal, Self, get_args

import numpy as np
import scipy
from numpy.typing import NDArray

from lightning_audit import _validate
from lightning_audit.stats._arguments import (
    ConfusionCounts,
    Floats,
    delta_or_zero,
    each,
    least_nonnegative,
    like_input,
    non_negative,
    significance_level,
)
from lightning_audit.stats.binomial import Beta

# --- Joint posterior of two error rates: its mass on either side of a region of claims.

Selection = NDArray[np.intp] | slice

# exp of the largest epsilon must be a double; e^-700 is a rate that no posterior reaches.
_LARGEST_EPSILON = 700.0
# Two rates whose probits differ by more cannot both be represented as doubles.
_LARGEST_MU = 75.0


_legendre = lru_cache(maxsize=8)(np.polynomial.legendre.leggauss)


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

    def take(self, rows: Selection) -> Self:
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
        """Return the mass where a claim of this epsilon holds, and its derivative."""
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
        """Return a first guess of the quantile of epsilon."""
        x, y = self.x.a / (self.x.a + self.x.b), self.y.a / (self.y.a + self.y.b)
        # Normal limit of the log ratio of two rates, on their side of the diagonal.
        sides = self.mirrored_where(x + y >= 1)
        x, y = (rate.a / (rate.a + rate.b) for rate in (sides.x, sides.y))
        of_small = np.where(x < y, sides.x.a, sides.y.a)
        of_large = np.where(x < y, sides.y.b, sides.x.b)
        odds = (1.0 - self.delta - np.maximum(x, y)) / np.minimum(x, y)
        ratio = np.log(np.maximum(odds, 1.02))
        spread = np.sqrt(1.0 / of_small + 1.0 / of_large)
        return np.maximum(ratio + scipy.special.ndtri(probability) * spread, 0.01)


@dataclass(frozen=True)
class MuSides(Sides):
    r"""Boundary of mu-GDP: Phi^-1(x) + Phi^-1(y) = -mu.

    .. math:: \Pr[\text{below}] = \int f_Y(\Phi(t))\,\varphi(t)\, F_X(\Phi(-\mu - t))\,dt

    where both factors are bells and steps on the probit scale, for any shapes.
    """

    nodes: int

    def below(self, value: Floats, rest: bool) -> tuple[Floats, Floats]:
        """Return the mass where a claim of this mu holds, and its derivative."""
        x, y, mu = self.x, self.y, np.minimum(value, _LARGEST_MU)
        # Probits of y: up to `surely` x is below the boundary except for its tail.
        surely = scipy.special.ndtri(x.lower_rest) - mu
        never = -scipy.special.ndtri(x.lower) - mu
        start = np.maximum(surely, scipy.special.ndtri(y.lower))
        stop = np.minimum(never, -scipy.special.ndtri(y.lower_rest))
        t, weight = _nodes(start, stop, self.nodes)
        z = -mu[:, None] - t
        small, small_rest = scipy.special.ndtr(z), scipy.special.ndtr(-z)
        density_of_t = y.density_of_logit(*scipy.special.ndtr([t, -t])) * _logit_slope(t)
        density_of_z = x.density_of_logit(small, small_rest) * _logit_slope(z)
        weight = weight * density_of_t
        density = np.sum(weight * density_of_z, axis=1)
        if rest:
            inner = np.sum(weight * x.above(small, small_rest), axis=1)
            sure = y.above(scipy.special.ndtr(never), scipy.special.ndtr(-never))
        else:
            inner = np.sum(weight * x.below(small, small_rest), axis=1)
            sure = y.below(scipy.special.ndtr(surely), scipy.special.ndtr(-surely))
        return inner + sure, density

    def start(self, probability: float) -> Floats:
        """Return a first guess of the quantile of mu."""
        centre, variance = np.zeros(self.x.a.shape), np.zeros(self.x.a.shape)
        for rate in (self.x, self.y):
            n = rate.a + rate.b
            mean = rate.a / n
            probit = scipy.special.ndtri(mean)
            centre = centre + probit
            # The delta method; 2 pi phi^2 = exp(-probit^2).
            variance = variance + 2.0 * np.pi * mean * (1.0 - mean) / n * np.exp(probit * probit)
        guess = np.abs(centre) + scipy.special.ndtri(probability) * np.sqrt(variance)
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
    tails = scipy.special.log_ndtr(probit) + scipy.special.log_ndtr(-probit)
    return np.asarray(np.exp(-0.5 * probit * probit - tails) / np.sqrt(2.0 * np.pi))


# --- Distribution function, quantiles and largest quantile of the smallest claim that holds.

Rows = NDArray[np.intp]

# Rows of a block: its arrays fit in the cache, and memory stays small for a million thresholds.
_BLOCK = 256
# Below this probability, the complement of the mass outside has lost too many digits.
_SMALL = 0.01
# Number of candidates for the maximum that are solved together.
_TOGETHER = 4


@dataclass(frozen=True)
class ClaimPosterior:
    """Posterior of the smallest claim whose region contains both error rates, one per row.

    Args:
        sides: The rates and the family of claims.
        two_sided: Whether rates above the mirror image of the boundary refute a claim as well.
    """

    sides: Sides
    two_sided: bool

    def cdf(self, value: Floats) -> Floats:
        """Return the probability that the smallest claim is at most ``value``, by row."""
        rows = np.arange(value.size)
        inside, _, _ = self._evaluate(value, rows, small=False)
        small = inside < _SMALL
        if np.any(small):
            inside[small] = self._evaluate(value[small], rows[small], small=True)[0]
        return np.clip(inside, 0.0, 1.0)

    def pdf(self, value: Floats) -> Floats:
        """Return the density of the continuous part at ``value``, by row."""
        return self._evaluate(value, np.arange(value.size), small=False)[2]

    def quantile(self, probability: float, rows: Rows) -> Floats:
        """Return the smallest claims that hold for some rows with at least ``probability``."""
        upper = probability > 0.5
        sign, target = (-1.0, 1.0 - probability) if upper else (1.0, probability)

        def residual(value: Floats, live: Rows) -> tuple[Floats, Floats]:
            inside, outside, density = self._evaluate(value, rows[live], small=probability < _SMALL)
            # In logs of the smaller part, which are nearly straight far from the root.
            part = np.maximum(outside if upper else inside, 0.0)
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                return sign * np.log(part / target), density / part

        return least_nonnegative(residual, self.sides.take(rows).start(probability))

    def largest_quantile(
        self, probability: float, fn: Floats, fp: Floats, *, one_size: bool
    ) -> tuple[float, int]:
        """Return the largest quantile, and a row that attains it.

        A row is dropped once a bound on its mass outside the best claim so far shows that the claim
        holds for it. For samples of one size, the mass below falls with either count of errors and
        the mass above rises, so both need to be evaluated only on the undominated rows.

        Args:
            probability: Probability of the quantile.
            fn: Errors with rate X, ``[n]``.
            fp: Errors with rate Y, ``[n]``.
            one_size: Whether all rows have the same numbers of observations.
        """
        rows = np.arange(fn.size)
        under = _dominating(fn, fp) if one_size else rows
        over = _dominating(-fn, -fp) if one_size else rows
        best, best_row = 0.0, 0
        alive = np.ones(fn.size, dtype=bool)
        candidates = rows[[int(np.argmax(self.sides.start(probability)))]]
        while candidates.size:
            alive[candidates] = False
            values = self.quantile(probability, candidates)
            top = int(np.argmax(values))
            if values[top] > best:
                best, best_row = float(values[top]), int(candidates[top])
            rows = np.flatnonzero(alive)
            outside = self._mass_of(best, under[rows], above=False)
            if self.two_sided:
                outside = outside + self._mass_of(best, over[rows], above=True)
            # The margin is the rounding error of a sum near one.
            alive[rows] = outside > 1.0 - probability - 1e-13
            rows = np.flatnonzero(alive)
            claim = np.full(rows.size, best)
            inside = self._evaluate(claim, rows, small=probability < _SMALL)[0]
            alive[rows] = inside < probability
            candidates = rows[np.argsort(inside)[:_TOGETHER]]
            candidates = candidates[alive[candidates]]
        return best, best_row

    def _mass_of(self, value: float, rows: Rows, *, above: bool) -> Floats:
        """Return the mass on one side of a claim, by row; equal rows are evaluated once."""
        different, place = np.unique(rows, return_inverse=True)
        mass = np.empty(different.size)
        for block in _blocks(different.size):
            part = self.sides.take(different[block]).mirrored_where(above)
            mass[block] = part.below(np.full(part.x.a.shape, value), rest=False)[0]
        return mass[place]

    def _evaluate(self, value: Floats, rows: Rows, *, small: bool) -> tuple[Floats, Floats, Floats]:
        """Return mass inside and outside the claims, and density; ``small``: exact mass inside."""
        inside, outside, density = (np.empty(value.size) for _ in range(3))
        for block in _blocks(value.size):
            sides, claim = self.sides.take(rows[block]), value[block]
            if self.two_sided:
                # The region is symmetric: put the greater part of the mass outside below.
                worse = sides.x.a / (sides.x.a + sides.x.b) + sides.y.a / (sides.y.a + sides.y.b)
                sides = sides.mirrored_where(worse > 1.0)
            mass, slope = sides.below(claim, rest=small)
            above = np.zeros(claim.size)
            # Otherwise the mass above the diagonal is below the omitted tail.
            seen = sides.x.lower_rest + sides.y.lower_rest < 1.0
            if self.two_sided and np.any(seen):
                mirrored = sides.take(np.flatnonzero(seen)).mirrored_where(True)
                above[seen], more = mirrored.below(claim[seen], rest=False)
                slope[seen] += more
            inside[block] = mass - above if small else 1.0 - (mass + above)
            outside[block] = 1.0 - inside[block] if small else mass + above
            density[block] = slope
        return inside, outside, density


def _blocks(size: int) -> list[slice]:
    return [slice(start, start + _BLOCK) for start in range(0, size, _BLOCK)]


def _dominating(fn: Floats, fp: Floats) -> Rows:
    """Return, for each row, an undominated row with at most its counts: a staircase corner."""
    order = np.lexsort((fp, fn))
    least = np.minimum.accumulate(fp[order])
    corner = np.concatenate(([True], least[1:] < least[:-1]))
    # The last corner with at most the row's fn has the fewest fp of all of those.
    last = np.searchsorted(fn[order][corner], fn, side="right") - 1
    return order[corner][last]


# --- The posterior of epsilon or of mu, at each threshold of an attack's error counts.

Region = Literal["two_sided", "one_sided"]

# 32 give twelve digits for samples of similar size, 64 also for a thousand against a million.
NODES = 64
# Mass of a rate that the quadrature omits at either end.
TAIL = 1e-26
# Smallest probability of a quantile: at 1e-200, some are not found.
LEAST = 1e-100


@dataclass(frozen=True, eq=False)
class Posterior:
    r"""Posterior of the smallest claim that the error rates of an attack do not refute.

    .. math:: F(c) = \Pr[(\mathrm{FNR}, \mathrm{FPR}) \in R(c)],
        \qquad \mathrm{FNR} \sim \mathrm{Beta}(FN + a, TP + a),\;
        \mathrm{FPR} \sim \mathrm{Beta}(FP + a, TN + a)

    with the region R of `of_epsilon` or `of_mu`. At 0 it is the probability of an atom: rates that
    do not refute even the claim 0. The relative error of F and of 1 - F is about 1e-12, and the
    absolute error of F is about 1e-15 in the two-sided region, where F is the mass of a thin band.

    Args:
        counts: Outcomes at thresholds fixed beforehand, any shape.
        claim: The family of claims, given the two rates.
        region: ``"two_sided"`` as published: rates above the diagonal count like their mirror
            image. ``"one_sided"``: rates above the diagonal are not leakage.
        prior: Both shapes a of the Beta prior of both rates, a multiple of 1/2: 1/2 for Jeffreys, 1
            for uniform. For others the integrand is not smooth.

    Raises:
        ValueError: If an argument is out of its range, also in the methods.

    Example:
        >>> counts = ConfusionCounts(fn=35, tp=65, fp=25, tn=75)
        >>> posterior = Posterior.of_epsilon(counts, delta=0.05)
        >>> posterior.cdf(np.array([0.522, 1.267])).round(3), round(posterior.pdf(0.9), 3)
        (array([0.025, 0.975]), 2.082)
        >>> low, high = posterior.interval(significance=0.05)
        >>> round(low, 5), round(high, 5)
        (0.52179, 1.26665)
        >>> counts = ConfusionCounts(fn=10, tp=990, fp=5, tn=995)
        >>> round(Posterior.of_mu(counts).quantile(0.05), 5)
        4.58925
    """

    counts: ConfusionCounts
    claim: Callable[[Beta, Beta], Sides]
    region: Region = "two_sided"
    prior: float = 0.5

    def __post_init__(self) -> None:
        if not isinstance(self.counts, ConfusionCounts):
            raise ValueError(
                f"counts={_validate.shown(self.counts)} must be ConfusionCounts, of one threshold "
                "or of many"
            )
        _validate.one_of("region", self.region, get_args(Region))
        if not (2 * _validate.positive("prior", self.prior)).is_integer():
            raise ValueError(
                f"prior={self.prior!r} must be a whole multiple of 1/2, for which the quadrature "
                "is exact; use 0.5 (Jeffreys) or 1 (uniform)"
            )

    @classmethod
    def of_epsilon(
        cls,
        counts: ConfusionCounts,
        delta: float,
        *,
        region: Region = "two_sided",
        prior: float = 0.5,
    ) -> Posterior:
        """Return the posterior of epsilon at a delta in [0, 1): R is (epsilon, delta)-DP."""
        family = partial(EpsilonSides, delta=delta_or_zero(delta), nodes=NODES)
        return cls(counts, family, region, prior)

    @classmethod
    def of_mu(
        cls, counts: ConfusionCounts, *, region: Region = "two_sided", prior: float = 0.5
    ) -> Posterior:
        """Return the posterior of mu: R is mu-GDP."""
        return cls(counts, partial(MuSides, nodes=NODES), region, prior)

    def cdf(self, value: float | NDArray[Any]) -> float | Floats:
        """Return F at claims >= 0, infinity included, which are broadcast against the counts.

        A float for numbers, else an array of the broadcast shape.
        """
        points, rows, shape = self._at(value)
        return like_input(rows.cdf(points).reshape(shape))

    def pdf(self, value: float | NDArray[Any]) -> float | Floats:
        """Return the density without the atom: it integrates to 1 - F(0); as for `cdf`."""
        points, rows, shape = self._at(value)
        return like_input(rows.pdf(points).reshape(shape))

    def quantile(self, probability: float) -> float | Floats:
        """Return the smallest claim with F >= ``probability`` in (0, 1), by threshold.

        The quantile at 0.05 is the published "95 % lower bound". It has its level on average over
        the prior; the module states what it does not prove. Its relative error is about 1e-12,
        unless it is near 0 in the two-sided region. It is 0 if the atom at 0 is large enough.
        """
        return self._quantiles(_tail_for(probability), probability)[0]

    def interval(self, significance: float) -> tuple[float | Floats, float | Floats]:
        """Return the equal-tailed credible interval, of posterior probability 1 - significance."""
        tail = 0.5 * _validate.open_unit("significance", significance)
        low, high = self._quantiles(_tail_for(tail), tail, 1.0 - tail)
        return low, high

    def maximum(self, probability: float) -> tuple[float, int]:
        """Return the largest quantile over the thresholds, and the flat index of one that has it.

        The published threshold choice, without solving for each. Not a bound at the level of the
        quantile: with the thresholds chosen on the same data its true failure rate is several times
        as large (by simulation).

        Example:
            >>> fn, fp = np.array([2, 5, 20]), np.array([30, 6, 0])
            >>> counts = ConfusionCounts(fn=fn, tp=100 - fn, fp=fp, tn=100 - fp)
            >>> value, index = Posterior.of_epsilon(counts, delta=1e-5).maximum(0.05)
            >>> round(value, 4), index
            (3.7346, 2)
        """
        rows = self._rows(self.counts, _tail_for(probability))
        if not self.counts.fn.size:
            raise ValueError(
                "counts hold no threshold, must hold at least one; pass scores to choose"
            )
        n_in, n_out = self.counts.n_in, self.counts.n_out
        one_size = bool(np.all(n_in == n_in.flat[0]) and np.all(n_out == n_out.flat[0]))
        fn, fp = (np.asarray(v, dtype=np.float64).ravel() for v in (self.counts.fn, self.counts.fp))
        return rows.largest_quantile(probability, fn, fp, one_size=one_size)

    def _quantiles(self, tail: float, *probabilities: float) -> list[float | Floats]:
        rows, shape = self._rows(self.counts, tail), self.counts.shape
        every = np.arange(self.counts.fn.size)
        return [like_input(rows.quantile(p, every).reshape(shape)) for p in probabilities]

    def _at(self, value: float | NDArray[Any]) -> tuple[Floats, ClaimPosterior, tuple[int, ...]]:
        """Return flat points, the posteriors there, and the broadcast shape."""
        points, counts = each(non_negative, "value", value), self.counts
        shape = np.broadcast_shapes(points.shape, counts.shape)
        at_each = ConfusionCounts(*(np.broadcast_to(v, shape).ravel() for v in counts.cells))
        rows = self._rows(at_each, TAIL)
        return np.broadcast_to(points, shape).ravel(), rows, shape

    def _rows(self, counts: ConfusionCounts, tail: float) -> ClaimPosterior:
        return ClaimPosterior(
            self.claim(*rates(counts, self.prior, tail)), self.region == "two_sided"
        )


def rates(counts: ConfusionCounts, prior: float, tail: float = TAIL) -> tuple[Beta, Beta]:
    """Return the posteriors of FNR and FPR, one row per threshold."""
    fn, tp, fp, tn = (np.asarray(v, dtype=np.float64).ravel() + prior for v in counts.cells)
    return Beta.of(fn, tp, tail), Beta.of(fp, tn, tail)


def _tail_for(probability: float) -> float:
    """Return the mass that an integral may omit if it is compared with a probability."""
    p = _validate.open_unit("probability", probability, "such as 0.05 for a lower limit")
    if p < LEAST:
        raise ValueError(
            f"probability={p!r} must be at least {LEAST:g}; no limit is computed to smaller ones."
        )
    return min(TAIL, 1e-14 * p)


# --- Distributions of one number, represented by values on a grid.


@dataclass(frozen=True, eq=False)
class GridDistribution:
    """A continuous distribution of a number >= 0, given by its density on a grid.

    Args:
        points: Grid, strictly increasing, at least three points, ``[n]``.
        density: Density at the points, up to a factor, ``[n]``; it is zero outside the grid.

    Raises:
        ValueError: If the points do not increase, or the density is negative or zero everywhere.

    Example:
        >>> uniform = GridDistribution(np.linspace(0, 2, 9), np.ones(9))
        >>> round(uniform.quantile(0.05), 3), round(uniform.mean, 3)
        (0.1, 1.0)
    """

    points: Floats
    density: Floats

    def __post_init__(self) -> None:
        points, density = (np.array(v, dtype=np.float64) for v in (self.points, self.density))
        if points.ndim != 1 or points.size < 3 or not np.all(np.diff(points) > 0):
            raise ValueError(
                f"points of shape {points.shape} must be at least three increasing numbers; "
                "sort them and leave out repeated ones"
            )
        if density.shape != points.shape or not np.all(np.isfinite(density) & (density >= 0)):
            raise ValueError(
                f"density of shape {density.shape} must hold one finite value >= 0 for each of "
                f"the {points.size} points; pass densities, not their logarithms"
            )
        total = float(cumulative(points, density)[-1])
        if total <= 0:
            raise ValueError("density is 0 at every point, must be positive somewhere; refine it")
        for name, value in (("points", points), ("density", density / total)):
            value.setflags(write=False)
            object.__setattr__(self, name, value)

    def cdf(self, value: float | NDArray[Any]) -> float | Floats:
        """Return the probability of at most ``value`` >= 0: a float for a number, else an array."""
        at = np.clip(each(non_negative, "value", value), self.points[0], self.points[-1])
        return like_input(np.asarray(np.clip(self._curve()(at), 0.0, 1.0), dtype=np.float64))

    def quantile(self, probability: float) -> float:
        """Return the value that the number is at most with ``probability`` in (0, 1)."""
        p = _validate.open_unit("probability", probability, "such as 0.05 for a lower limit")
        curve = self._curve()
        right = min(int(np.searchsorted(curve(self.points), p)), self.points.size - 1)
        if right == 0:
            return float(self.points[0])
        cell = self.points[right - 1 : right + 1]
        return float(
            scipy.optimize.brentq(lambda x: float(curve(x)) - p, cell[0], cell[1], xtol=1e-13)
        )

    def interval(self, significance: float) -> tuple[float, float]:
        """Return the equal-tailed credible interval, of posterior probability 1 - significance."""
        tail = 0.5 * significance_level(significance)
        return self.quantile(tail), self.quantile(1.0 - tail)

    @property
    def mean(self) -> float:
        """Mean, in the unit of the points."""
        low, high = float(self.points[0]), float(self.points[-1])
        return high - float(self._curve().integrate(low, high))

    def _curve(self) -> scipy.interpolate.CubicHermiteSpline:
        total = cumulative(self.points, self.density)
        return increasing_curve(self.points, total / total[-1], self.density)


def increasing_curve(x: Floats, y: Floats, slope: Floats) -> scipy.interpolate.CubicHermiteSpline:
    """Return an increasing piecewise cubic through increasing values, with limited slopes."""
    secant = np.diff(y) / np.diff(x)
    least = np.minimum(np.append(secant, np.inf), np.append(np.inf, secant))
    return scipy.interpolate.CubicHermiteSpline(x, y, np.clip(slope, 0.0, 3.0 * least))


def cumulative(x: Floats, y: Floats) -> Floats:
    """Return integrals of y >= 0 from ``x[0]`` to each x, ``[..., n]``: parabolas through points.

    The trapezoidal rule, corrected for the curvature. The correction is limited to half of a
    trapezoid, so that the integrals increase even on a grid that is too coarse.
    """
    step = np.diff(x)
    trapezoids = 0.5 * step * (y[..., 1:] + y[..., :-1])
    if step.size == 1:
        return np.concatenate((np.zeros_like(trapezoids), trapezoids), axis=-1)
    slope = np.diff(y) / step
    inner = 2.0 * np.diff(slope) / (step[1:] + step[:-1])
    second = np.concatenate((inner[..., :1], inner, inner[..., -1:]), axis=-1)
    correction = -(step**3) * (second[..., 1:] + second[..., :-1]) / 24.0
    cells = trapezoids + np.clip(correction, -0.5 * trapezoids, 0.5 * trapezoids)
    start = np.zeros((*cells.shape[:-1], 1))
    return np.concatenate((start, np.cumsum(cells, axis=-1)), axis=-1)
