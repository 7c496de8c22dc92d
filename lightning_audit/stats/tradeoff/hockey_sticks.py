"""The most informative score for guesses in a Gaussian step, and its mean under any f-DP pair."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import scipy
from scipy import special

from lightning_audit.stats._arguments import Floats
from lightning_audit.stats.tradeoff.gdp import gaussian_delta

#: Number of sticks of a score; their largest threshold over the noise, and largest epsilon.
_STICKS, _FARTHEST, _LARGEST_EPSILON = 13, 1.2, 4.0
#: Least mu of the grid on which a score's mean is made concave; below it is a chord from zero.
_LEAST_MU = 1e-5
_GRID: Floats = np.concatenate([[0.0], np.geomspace(_LEAST_MU, 1e3, 4000)])
_ROOT = np.sqrt(2.0 * np.pi)


@dataclass(frozen=True, eq=False)
class HockeySticks:
    r"""A weighted sum of hockey sticks, as a score of one canary's centered reading x.

    .. math:: S = \sum_j c_j \big[1\{x > t_j\} (b - e^{\varepsilon_j} (1 - b))
        + 1\{x < -t_j\} (1 - b - e^{\varepsilon_j} b)\big]

    With a fair coin b each bracket has a mean of at most the hockey-stick divergence
    ``delta(eps_j)`` of the step, for any distributions of the readings. For a mu-GDP step (own
    proof, on Dong, Roth and Su)

    .. math:: \mathbb E S \le G(\mu) = \sum_j c_j \delta_\mu(\varepsilon_j)

    The score pays ``gains[n]`` for a right guess and costs ``losses[n]`` for a wrong one, where n
    is the number of thresholds below ``abs(x)``.

    Args:
        weights: c_j >= 0 by threshold, ``[n]``.
        thresholds: t_j >= 0 over the noise, increasing, ``[n]``.
        epsilons: eps_j >= 0, ``[n]``.
        mean: Mean of the score in the Gaussian step for which it is optimized.
        variance: Variance of the score in that step.

    References:
        Dong, Roth and Su, "Gaussian differential privacy", JRSS B 84, 2022, arXiv:1905.02383,
        Corollary 2.13.
    """

    weights: Floats
    thresholds: Floats
    epsilons: Floats
    mean: float
    variance: float

    @cached_property
    def gains(self) -> Floats:
        """Gain of a right guess, by the number of thresholds passed, ``[n + 1]``."""
        return np.concatenate([[0.0], np.cumsum(self.weights)])

    @cached_property
    def losses(self) -> Floats:
        """Cost of a wrong guess, by the number of thresholds passed, ``[n + 1]``."""
        return np.concatenate([[0.0], np.cumsum(self.weights * np.exp(self.epsilons))])

    @property
    def largest_loss(self) -> float:
        """Largest cost of a wrong guess."""
        return float(self.losses[-1])

    def score(self, readings: Floats, coins: Floats) -> Floats:
        """Return scores of centered readings over their noise and coins (0 or 1), elementwise."""
        below = np.searchsorted(self.thresholds, np.abs(readings), side="left")
        right = (readings > 0) == (coins > 0.5)
        return np.asarray(np.where(right, self.gains[below], -self.losses[below]))

    def most(self, mu: Floats) -> Floats:
        """Return the least function of mu above ``G`` that is concave in ``mu^2``, elementwise.

        It equals G except on an interval, on which it is a chord.
        """
        mu = np.asarray(mu, dtype=np.float64)
        square, height = self._hull
        return np.maximum(self._sum(np.maximum(mu, _LEAST_MU)), np.interp(mu**2, square, height))

    def slope(self, mu: Floats) -> Floats:
        """Return the derivative of `most` with respect to mu, elementwise."""
        mu = np.asarray(mu, dtype=np.float64)
        square, height = self._hull
        chord = np.interp(mu**2, square, height)
        place = np.clip(np.searchsorted(square, mu**2) - 1, 0, len(square) - 2)
        of_chord = 2.0 * mu * (np.diff(height) / np.diff(square))[place]
        above = np.maximum(mu, _LEAST_MU)
        return np.asarray(np.where(chord > self._sum(above), of_chord, self._slope(above)))

    def _sum(self, mu: Floats) -> Floats:
        return np.asarray(gaussian_delta(self.epsilons, mu[..., None]) @ self.weights)

    def _slope(self, mu: Floats) -> Floats:
        density = np.exp(-0.5 * (0.5 * mu[..., None] - self.epsilons / mu[..., None]) ** 2)
        return np.asarray(density @ self.weights / _ROOT)

    @cached_property
    def _hull(self) -> tuple[Floats, Floats]:
        """Corners of the upper hull of G over ``mu^2``, at the points of a grid."""
        square, height = _GRID**2, np.concatenate([[0.0], self._sum(_GRID[1:])])
        kept: list[int] = []
        for i in range(len(square)):
            while len(kept) > 1 and _is_below(square, height, kept[-2], kept[-1], i):
                kept.pop()
            kept.append(i)
        return square[kept], height[kept]


def _is_below(x: Floats, y: Floats, first: int, middle: int, last: int) -> bool:
    """Return whether the middle of three points is on or below the line through the others."""
    rise, run = y[last] - y[first], x[last] - x[first]
    return bool((y[middle] - y[first]) * run <= rise * (x[middle] - x[first]))


@lru_cache(maxsize=256)
def sign_score(mu: float) -> HockeySticks:
    """Return the sign score: 1 for a right guess, -1 for a wrong one.

    Args:
        mu: Signal over noise of the step that determines mean and variance, > 0.

    Returns:
        The score.
    """
    mean = float(2.0 * special.ndtr(0.5 * mu) - 1.0)
    return HockeySticks(np.ones(1), np.zeros(1), np.zeros(1), mean, max(1.0 - mean**2, 1e-9))


@lru_cache(maxsize=256)
def sharpest_score(mu: float) -> HockeySticks:
    r"""Return the sticks whose mean is most informative about mu, near a Gaussian step of this mu.

    Of all weights c >= 0 these have the largest ``(G'(mu))^2 / Var S``: at mu = 1 it is .215 a
    canary, compared with .25 for the likelihood ratio and .145 for the sign alone. The largest loss
    is one. Above mu = 4 (no privacy) and below .05 (no information) the score is that of the limit.

    Args:
        mu: Signal over noise, > 0.

    Returns:
        The score.
    """
    mu = min(max(mu, 0.05), 4.0)
    t = np.linspace(0.0, min(_FARTHEST, _LARGEST_EPSILON / mu), _STICKS)
    epsilons, odds = mu * t, np.exp(mu * t)
    # The score's moments given the coin; two sticks on one side both count past the farther one.
    mean = special.ndtr(0.5 * mu - t) - odds * special.ndtr(-0.5 * mu - t)
    farther = np.maximum.outer(t, t)
    squares = special.ndtr(0.5 * mu - farther)
    squares += np.outer(odds, odds) * special.ndtr(-0.5 * mu - farther)
    covariance = squares - np.outer(mean, mean)
    slope = np.exp(-0.5 * (0.5 * mu - t) ** 2) / _ROOT
    half = np.linalg.cholesky(covariance + 1e-12 * np.trace(covariance) * np.eye(len(t)))
    weights, _ = scipy.optimize.nnls(half.T, np.linalg.solve(half, slope), maxiter=1000)
    weights /= np.sum(weights * odds)
    variance = float(weights @ covariance @ weights)
    return HockeySticks(weights, t, epsilons, float(weights @ mean), variance)
