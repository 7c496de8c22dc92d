"""Estimates of densities, likelihood ratios and trade-off curves from a mechanism's outputs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from lightning_audit import _validate
from lightning_audit.stats._arguments import Floats, closed_unit, each, like_input
from lightning_audit.stats.tradeoff import PiecewiseTradeoff, TradeoffFunction

# --- Validation of samples of a mechanism's outputs, and of claims about it.

#: Larger samples are rejected: their squares are not finite.
LARGEST = 1e100


def sample_rows(name: str, value: ArrayLike, least: int = 2) -> Floats:
    """Return samples as a table of finite numbers, ``[n, d]``; a vector is one column."""
    table = np.asarray(value)
    if table.dtype.kind not in "iufb":
        raise ValueError(f"{name} has dtype {table.dtype}, must hold real numbers, [n] or [n, d].")
    if table.ndim == 0 or len(table) < least:
        raise ValueError(
            f"{name} has shape {table.shape}, must hold at least {least} samples, [n] or [n, d]; "
            "draw more."
        )
    rows = table.astype(np.float64).reshape(len(table), -1)
    if not rows.shape[1]:
        raise ValueError(f"{name} has shape {table.shape}; a sample must hold a number.")
    if len(rows) and np.abs(rows).max() > LARGEST and np.isfinite(rows).all():
        raise ValueError(
            f"{name} holds numbers beyond {LARGEST:g}, whose squares are not finite; rescale them."
        )
    bad = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    if len(bad):
        raise ValueError(
            f"{name}[{bad[0]}] is not finite ({len(bad)} of {len(rows)} samples are not); "
            "a failed draw is not a sample, and must not be dropped unreported."
        )
    return rows


def sample_pair(
    samples_p: ArrayLike, samples_q: ArrayLike, least: int = 2
) -> tuple[Floats, Floats]:
    """Return samples of both worlds, of one dimension."""
    p, q = sample_rows("samples_p", samples_p, least), sample_rows("samples_q", samples_q, least)
    if p.shape[1] != q.shape[1]:
        raise ValueError(
            f"samples_p has {p.shape[1]} numbers a sample and samples_q {q.shape[1]}, must be as "
            "many; draw both from the same mechanism."
        )
    return p, q


def claim_of_both_orders(claim: TradeoffFunction) -> TradeoffFunction:
    """Return the claim, unless it states that it covers only one order of the two data sets."""
    direction = getattr(claim, "direction", "both")
    if direction != "both":
        raise ValueError(
            f"claim={claim!r} is of the direction {direction!r} only, must be of both, as f-DP is; "
            "take direction='both'."
        )
    return claim


# --- Kernel estimates of densities and of their ratio; estimates, not bounds.

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
            self._kernels = scipy.stats.gaussian_kde(p.T), scipy.stats.gaussian_kde(q.T)
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
    smooth = scipy.signal.fftconvolve(counts, kernel, mode="full")[reach : reach + size]
    # The transform leaves rounding errors of either sign where the mass is zero.
    mass = np.maximum(smooth, 0.0)
    return np.asarray(mass / mass.sum())


# --- Likelihood ratios by nearest neighbors, in any dimension; estimates, not bounds.

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
        self._tree = scipy.spatial.cKDTree(both[order] / self._scale)
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


# --- Estimates of a whole trade-off curve from samples of a mechanism's outputs.

#: Likelihood ratios at which the curve is estimated: those of the paper.
DEFAULT_THRESHOLDS: Floats = np.linspace(0.0, 15.0, 1000)


@dataclass(frozen=True, eq=False)
class TradeoffEstimate:
    """An estimated trade-off curve, which is not a bound.

    It proves nothing: with few samples it is on either side of the true curve. Use it to find a
    suspicious point, and test it on other samples.

    Args:
        method: How the likelihood ratio was estimated.
        thresholds: Likelihood ratios eta, increasing, ``[m]``.
        alpha: Estimated type I errors of "q if the ratio exceeds eta", ``[m]``.
        beta: Estimated type II errors, ``[m]``.
        samples: Number of samples of each world.
    """

    method: Literal["kernel", "neighbours"]
    thresholds: Floats
    alpha: Floats
    beta: Floats
    samples: tuple[int, int]

    def __call__(self, alpha: float | NDArray[Any]) -> float | Floats:
        """Return the estimated type II error at ``alpha`` in [0, 1], linear between the points."""
        rates = each(closed_unit, "alpha", alpha)
        x = np.concatenate([[0.0], self.alpha, [1.0]])
        y = np.concatenate([[1.0], self.beta, [0.0]])
        order = np.lexsort((-y, x))
        return like_input(np.asarray(np.interp(rates, x[order], y[order]), dtype=np.float64))

    def convex(self) -> PiecewiseTradeoff:
        """Return the largest trade-off function on or below the points, for epsilon and delta."""
        return PiecewiseTradeoff(self.alpha, self.beta)


def estimate_by_kernel(
    samples_p: ArrayLike,
    samples_q: ArrayLike,
    *,
    thresholds: ArrayLike | None = None,
    smoothing: float = 0.1,
    bandwidth: float | None = None,
    grid_size: int = 1000,
) -> TradeoffEstimate:
    r"""Estimate a trade-off curve by the perturbed likelihood-ratio test on kernel densities.

    .. math:: \hat\alpha_h(\eta) = \int \hat p\, c\Bigl(\frac{\hat q}{\hat p}\Bigr), \qquad
        \hat\beta_h(\eta) = 1 - \int \hat q\, c\Bigl(\frac{\hat q}{\hat p}\Bigr), \qquad
        c(r) = \mathrm{clip}\Bigl(\frac{r - \eta}{h} + \frac12,\, 0,\, 1\Bigr)

    c is the mean over x in [-h/2, h/2] of "the ratio exceeds eta + x", in closed form: the error
    rates are those of a test with a randomized threshold. So the estimate is continuous in the
    densities even if the ratio has plateaus, as for Laplace noise.

    Args:
        samples_p: Samples of the first world, ``[n]`` or ``[n, d]``.
        samples_q: Samples of the second world, ``[n']`` or ``[n', d]``.
        thresholds: Likelihood ratios eta >= 0, ``[m]``; None for 1000 from 0 to 15.
        smoothing: Width h of the threshold's perturbation, >= 0.
        bandwidth: As in `GridRatio`; one dimension only.
        grid_size: As in `GridRatio`.

    Returns:
        The estimate. In more than one dimension the integrals are means over samples, with the
        densities from the other half of them.

    Raises:
        ValueError: If samples are not finite, too few or of different dimensions; if a threshold
            or ``smoothing`` is negative.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> estimate = estimate_by_kernel(rng.normal(0, 1, 10_000), rng.normal(1, 1, 10_000))
        >>> round(estimate(0.1), 2)  # the true one is .61
        0.61

    References:
        Askin et al., "General-purpose f-DP estimation and auditing in a black-box setting", USENIX
        Security 2025, arXiv:2502.07066, Algorithm 1. Its code divides p by q instead of q by p, and
        passes a bandwidth where SciPy expects a factor; see docs/estimators/black-box.md.
    """
    p, q = sample_pair(samples_p, samples_q)
    etas = _thresholds(thresholds)
    width = _validate.non_negative("smoothing", smoothing)
    if p.shape[1] == 1:
        ratio = GridRatio(p, q, bandwidth=bandwidth, grid_size=grid_size)
        above = [exceedance(ratio.ratios, mass, etas, width) for mass in (ratio.p, ratio.q)]
    else:
        if bandwidth is not None:
            raise ValueError(
                f"bandwidth={bandwidth!r} must be None for samples of {p.shape[1]} numbers; it is "
                "for one dimension."
            )
        above = _cross_fitted(p, q, etas, width, KernelRatio)
    return TradeoffEstimate("kernel", etas, *_rates(above), (len(p), len(q)))


def estimate_by_neighbours(
    samples_p: ArrayLike,
    samples_q: ArrayLike,
    *,
    thresholds: ArrayLike | None = None,
    neighbours: int | None = None,
) -> TradeoffEstimate:
    """Estimate a trade-off curve by the risk of nearest-neighbor classifiers, in any dimension.

    Each half of the samples is classified by the other half (`NeighbourRatio`), and the error rates
    of both are averaged.

    Args:
        samples_p: As in `estimate_by_kernel`, like the next two.
        samples_q: Samples of the second world.
        thresholds: Likelihood ratios eta >= 0, ``[m]``.
        neighbours: As in `NeighbourRatio`, less than half of the samples.

    Returns:
        The estimate.

    Raises:
        ValueError: As in `estimate_by_kernel`.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> p, q = rng.normal(0, 1, (4000, 2)), rng.normal([0.6, 0.8], 1, (4000, 2))
        >>> round(estimate_by_neighbours(p, q)(0.1), 2)  # the true one is .61
        0.62

    References:
        Askin et al., "General-purpose f-DP estimation and auditing in a black-box setting", USENIX
        Security 2025, arXiv:2502.07066, Algorithm 2 (BayBox), with weights instead of thinning.
    """
    p, q = sample_pair(samples_p, samples_q, least=4)
    etas = _thresholds(thresholds)
    above = _cross_fitted(
        p, q, etas, 0.0, lambda first, second: NeighbourRatio(first, second, neighbours)
    )
    return TradeoffEstimate("neighbours", etas, *_rates(above), (len(p), len(q)))


def exceedance(ratios: Floats, weights: Floats, thresholds: Floats, smoothing: float) -> Floats:
    r"""Return the weight of ratios ``[n]`` above each threshold ``[m]``, smoothed, ``[m]``.

    .. math:: \sum_i w_i\, \mathrm{clip}\Bigl(\frac{r_i - \eta}{h} + \frac12,\, 0,\, 1\Bigr)

    Computed by sums over sorted ratios. A width h of 0 counts the ratios that exceed eta.
    """
    order = np.argsort(ratios)
    r, w = ratios[order], weights[order]
    # Summed from small ratios on, so that large ones cause no error in sums without them.
    mass = np.concatenate([[0.0], np.cumsum(w)])
    low = np.searchsorted(r, thresholds - 0.5 * smoothing, side="right")
    high = np.searchsorted(r, thresholds + 0.5 * smoothing, side="right")
    above = mass[-1] - mass[high]
    if smoothing > 0:
        moment = np.concatenate([[0.0], np.cumsum(w * r)])
        within = mass[high] - mass[low]
        above = above + (moment[high] - moment[low] - thresholds * within) / smoothing
        above = above + 0.5 * within
    return np.asarray(above)


def _cross_fitted(p: Floats, q: Floats, etas: Floats, width: float, fit: Any) -> list[Floats]:
    """Return weights above each threshold in both worlds; each half uses the other half's ratio."""
    above = [np.zeros(len(etas)), np.zeros(len(etas))]
    for judge, judged in ((0, 1), (1, 0)):
        ratio = fit(p[judge::2], q[judge::2])
        for world, samples in enumerate((p, q)):
            at = ratio(samples[judged::2])
            above[world] += exceedance(at, np.full(len(at), 1.0 / len(samples)), etas, width)
    return above


def _thresholds(thresholds: ArrayLike | None) -> Floats:
    if thresholds is None:
        return DEFAULT_THRESHOLDS
    etas = np.sort(np.asarray(thresholds, dtype=np.float64).ravel())
    if not etas.size or not np.isfinite(etas).all() or etas[0] < 0:
        raise ValueError(
            f"thresholds={_validate.shown(thresholds)} must hold finite likelihood ratios >= 0, at "
            "least one."
        )
    return etas


def _rates(above: list[Floats]) -> tuple[Floats, Floats]:
    # Sums of weights that add up to one may exceed one by rounding.
    return np.clip(above[0], 0.0, 1.0), np.clip(1.0 - above[1], 0.0, 1.0)
