"""Estimates of a whole trade-off curve from samples of a mechanism's outputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lightning_audit import _validate
from lightning_audit.stats._arguments import Floats, closed_unit, each, like_input
from lightning_audit.stats.outputs._samples import sample_pair
from lightning_audit.stats.outputs.density import GridRatio, KernelRatio
from lightning_audit.stats.outputs.nearest_neighbours import NeighbourRatio
from lightning_audit.stats.tradeoff.piecewise import PiecewiseTradeoff

__all__ = ["DEFAULT_THRESHOLDS", "TradeoffEstimate", "estimate_by_kernel", "estimate_by_neighbours"]

#: Likelihood ratios at which the curve is estimated: those of the paper.
DEFAULT_THRESHOLDS: Floats = np.linspace(0.0, 15.0, 1000)


@dataclass(frozen=True, eq=False)
class TradeoffEstimate:
    """An estimated trade-off curve, which is not a bound.

    It proves nothing: with few samples it is on either side of the true curve. Use it to find a
    suspicious point, and test that point on other samples (`audit_tradeoff`).

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
