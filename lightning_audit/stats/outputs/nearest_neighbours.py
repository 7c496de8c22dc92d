"""Likelihood ratios by nearest neighbors, in any dimension; estimates, not bounds."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.spatial import cKDTree

from lightning_audit import _validate
from lightning_audit.stats._arguments import Floats
from lightning_audit.stats.outputs._samples import sample_pair

__all__ = ["NeighbourRatio", "default_neighbours"]

# Queries in several dimensions are split into parts of this number of neighbors.
_PART = 4_000_000


def default_neighbours(samples: int) -> int:
    """Return the number of neighbors k for all samples of both worlds: the root, rounded to odd.

    Args:
        samples: Number of samples of both worlds together, >= 1.

    Returns:
        The number of neighbors.

    Example:
        >>> default_neighbours(2000)
        45
    """
    return 2 * (math.ceil(math.sqrt(samples)) // 2) + 1


class NeighbourRatio:
    r"""Estimate of the likelihood ratio q / p by the worlds of the k nearest samples.

    .. math:: \hat r(x) = \frac{(k_q(x) + 1/2) / n_q}{(k_p(x) + 1/2) / n_p}

    Thresholding it at eta is the k-nearest-neighbor classifier of the mixture that has eta times as
    much of p as of q. The risk of this classifier gives the point of the trade-off curve at eta.
    The paper draws the mixture by thinning the samples; here they are weighted, so that none is
    lost and one search serves every eta.

    In one dimension all samples at least as near as the k-th count, so that mechanisms with atoms
    are covered; in more dimensions each coordinate is divided by its standard deviation.

    Args:
        samples_p: Samples of the first world, ``[n]`` or ``[n, d]``.
        samples_q: Samples of the second world, ``[n']`` or ``[n', d]``.
        neighbours: Number k of neighbors; None for `default_neighbours`.

    Raises:
        ValueError: If samples are not finite, too few or of different dimensions; if ``neighbours``
            is not a whole number >= 1, or not less than the number of samples.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> ratio = NeighbourRatio(rng.normal(0, 1, 10_000), rng.normal(1, 1, 10_000), 1001)
        >>> ratio([0.5, 1.5]).round(1)  # e^(x - 1/2)
        array([1. , 2.8])

    References:
        Askin et al., "General-purpose f-DP estimation and auditing in a black-box setting", USENIX
        Security 2025, arXiv:2502.07066.
    """

    def __init__(
        self, samples_p: ArrayLike, samples_q: ArrayLike, neighbours: int | None = None
    ) -> None:
        p, q = sample_pair(samples_p, samples_q)
        total = len(p) + len(q)
        k = default_neighbours(total) if neighbours is None else neighbours
        self.neighbours = min(_validate.positive_int("neighbours", k), total)
        if neighbours is not None and neighbours >= total:
            raise ValueError(
                f"neighbours={neighbours!r} must be less than the {total} samples; draw more."
            )
        self._sizes = len(p), len(q)
        both = np.concatenate([p, q])
        is_q = np.repeat([0.0, 1.0], self._sizes)
        if both.shape[1] == 1:
            order = np.argsort(both[:, 0], kind="stable")
            self._sorted: Floats | None = both[order, 0]
            self._before = np.concatenate([[0.0], np.cumsum(is_q[order])])
            return
        self._sorted = None
        # A tree returns any of several equal samples; in random order these are of both worlds.
        order = np.random.default_rng(0).permutation(total)
        spread = both.std(axis=0)
        self._scale = np.where(spread > 0, spread, 1.0)
        self._tree = cKDTree(both[order] / self._scale)
        self._is_q = is_q[order]

    def __call__(self, samples: ArrayLike) -> Floats:
        """Return the ratio q / p at the ``samples``, ``[n]`` or ``[n, d]``, as ``[n]``."""
        points = np.asarray(samples, dtype=np.float64)
        points = points.reshape(len(points), -1)
        near, of_q = self._on_a_line(points[:, 0]) if self._sorted is not None else self._of(points)
        n_p, n_q = self._sizes
        return np.asarray((of_q + 0.5) / n_q / ((near - of_q + 0.5) / n_p))

    def _on_a_line(self, x: Floats) -> tuple[Floats, Floats]:
        """Return the number of samples at least as near as the k-th, and of those from q."""
        values, k = self._sorted, self.neighbours
        assert values is not None
        # Window i has the k nearest samples from the midpoint of its two outer neighbors on.
        first = np.searchsorted(0.5 * (values[:-k] + values[k:]), x)
        radius = np.maximum(x - values[first], values[first + k - 1] - x)
        low = np.minimum(np.searchsorted(values, x - radius, side="left"), first)
        high = np.maximum(np.searchsorted(values, x + radius, side="right"), first + k)
        return np.asarray(high - low, dtype=np.float64), self._before[high] - self._before[low]

    def _of(self, points: Floats) -> tuple[Floats, Floats]:
        parts = max(1, math.ceil(len(points) * self.neighbours / _PART))
        of_q = []
        for part in np.array_split(points / self._scale, parts):
            _, near = self._tree.query(part, k=[*range(1, self.neighbours + 1)])
            of_q.append(self._is_q[near].sum(axis=1))
        return np.full(len(points), float(self.neighbours)), np.concatenate(of_q)
