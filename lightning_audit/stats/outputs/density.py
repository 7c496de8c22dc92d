"""Kernel estimates of densities and of their ratio; estimates, not bounds."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy import signal, stats

from lightning_audit import _validate
from lightning_audit.stats._arguments import Floats
from lightning_audit.stats.outputs._samples import sample_pair

__all__ = ["GridRatio", "KernelRatio", "silverman_bandwidth"]

#: Smallest density used as a divisor.
FLOOR = 1e-10
#: Number of samples per world used for densities of more than one dimension.
FITTED = 2000
# The kernel is truncated where it is below 1e-13 of its peak.
_REACH = 8.0
# Least bandwidth, in cells of the grid: a constant sample has a spread of zero.
_LEAST_BANDWIDTH = 0.5
# Without a grid: smallest log density, and largest absolute log ratio.
_LEAST_LOG, _LARGEST_LOG = -700.0, 60.0


def silverman_bandwidth(samples: ArrayLike) -> float:
    r"""Return Silverman's rule of thumb for the standard deviation of a Gaussian kernel, 1-D.

    .. math:: 0.9\, \min(s,\, \mathrm{IQR} / 1.349)\, n^{-1/5}

    Args:
        samples: The samples, ``[n]``.

    Returns:
        The bandwidth, in the samples' unit; from the standard deviation s alone if half of the
        samples are equal; 0 if all are.

    Example:
        >>> round(silverman_bandwidth(np.random.default_rng(0).normal(size=1000)), 3)
        0.219

    References:
        Silverman, "Density estimation for statistics and data analysis", 1986, equation 3.31.
    """
    values = np.asarray(samples, dtype=np.float64)
    low, high = np.percentile(values, [25, 75])
    deviation = float(values.std())
    spread = min(deviation, float(high - low) / 1.349) or deviation
    return float(0.9 * spread * len(values) ** -0.2)


class GridRatio:
    """Kernel estimate of the likelihood ratio q / p from samples of one dimension.

    The densities are binned on a grid over the range of all samples and smoothed by FFT, in time
    linear in the number of samples.

    Args:
        samples_p: Samples of the first world, ``[n]``.
        samples_q: Samples of the second world, ``[n']``.
        bandwidth: Standard deviation of the Gaussian kernel, in the samples' unit; None for
            `silverman_bandwidth` of each world.
        grid_size: Number of grid points, >= 16.

    Attributes:
        grid: Points at which the densities are known, ``[grid_size]``.
        p: Probability of the first world in the cell around each point, with sum one.
        q: Probability of the second world in each cell, with sum one.
        ratios: The likelihood ratio at each point.

    Raises:
        ValueError: If samples are not finite, too few, or not of one dimension; if ``bandwidth`` is
            not positive or ``grid_size`` too small.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> ratio = GridRatio(rng.normal(0, 1, 100_000), rng.normal(1, 1, 100_000))
        >>> ratio([0.5, 1.5]).round(1)  # e^(x - 1/2)
        array([1. , 2.7])
    """

    def __init__(
        self,
        samples_p: ArrayLike,
        samples_q: ArrayLike,
        *,
        bandwidth: float | None = None,
        grid_size: int = 1000,
    ) -> None:
        p, q = sample_pair(samples_p, samples_q)
        if p.shape[1] != 1:
            raise ValueError(
                f"samples_p has {p.shape[1]} numbers a sample, must have one; use KernelRatio."
            )
        if bandwidth is not None:
            _validate.positive("bandwidth", bandwidth, "or None for Silverman's rule")
        if _validate.positive_int("grid_size", grid_size) < 16:
            raise ValueError(f"grid_size={grid_size!r} must be at least 16; 1000 is usual.")
        low, high = min(p.min(), q.min()), max(p.max(), q.max())
        # All samples are equal: any range around them will do.
        margin = 0.0 if high > low else max(abs(low), 1.0)
        self.grid: Floats = np.linspace(low - margin, high + margin, grid_size)
        self.p, self.q = (
            _binned(values, self.grid, bandwidth or silverman_bandwidth(values))
            for values in (p[:, 0], q[:, 0])
        )
        cell = self.grid[1] - self.grid[0]
        self.ratios: Floats = self.q / np.maximum(self.p, FLOOR * cell)

    def __call__(self, samples: ArrayLike) -> Floats:
        """Return the ratio q / p at the ``samples``, ``[n]``; off the grid, that of its ends."""
        points = np.asarray(samples, dtype=np.float64).ravel()
        return np.asarray(np.interp(points, self.grid, self.ratios), dtype=np.float64)


class KernelRatio:
    """Kernel estimate of the likelihood ratio q / p from samples of several dimensions.

    `scipy.stats.gaussian_kde` with Scott's rule, fitted to the first `FITTED` samples of a world.
    In more than about five dimensions no kernel estimate is useful; see `NeighbourRatio`.

    Args:
        samples_p: Samples of the first world, ``[n, d]``, finite and not in a subspace.
        samples_q: Samples of the second world, ``[n', d]``, likewise.

    Raises:
        ValueError: If samples are not finite, too few, or in a subspace.
    """

    def __init__(self, samples_p: ArrayLike, samples_q: ArrayLike) -> None:
        p, q = (rows[:FITTED] for rows in sample_pair(samples_p, samples_q))
        least = p.shape[1] + 1
        if min(len(p), len(q)) <= least:
            raise ValueError(
                f"samples_p and samples_q hold {len(p)} and {len(q)} samples to fit to, must be "
                f"more than {least} in {p.shape[1]} dimensions; draw more, or use NeighbourRatio."
            )
        try:
            self._kernels = stats.gaussian_kde(p.T), stats.gaussian_kde(q.T)
        except np.linalg.LinAlgError as error:
            raise ValueError(
                "samples_p or samples_q lies in a subspace, so that it has no density there; "
                "drop constant and repeated columns, or use NeighbourRatio."
            ) from error

    def __call__(self, samples: ArrayLike) -> Floats:
        """Return the ratio q / p at the ``samples``, ``[n, d]``, as ``[n]``."""
        points = np.asarray(samples, dtype=np.float64).T
        p, q = (np.maximum(kernel.logpdf(points), _LEAST_LOG) for kernel in self._kernels)
        return np.asarray(np.exp(np.clip(q - p, -_LARGEST_LOG, _LARGEST_LOG)))


def _binned(values: Floats, grid: Floats, bandwidth: float) -> Floats:
    """Return the probability of each cell: linear binning, then convolution with the kernel."""
    cell, size = float(grid[1] - grid[0]), len(grid)
    place = (values - grid[0]) / cell
    left = np.clip(place.astype(np.intp), 0, size - 2)
    part = place - left
    counts = np.bincount(left, 1.0 - part, size) + np.bincount(left + 1, part, size)
    width = max(bandwidth / cell, _LEAST_BANDWIDTH)
    # A kernel wider than the grid is flat there.
    reach = min(math.ceil(_REACH * width), 8 * size)
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) / width) ** 2)
    smooth = signal.fftconvolve(counts, kernel, mode="full")[reach : reach + size]
    # The transform leaves rounding errors of either sign where the mass is zero.
    mass = np.maximum(smooth, 0.0)
    return np.asarray(mass / mass.sum())
