"""Separation of two worlds by scores: ROC curve, area, TPR at an FPR, privacy curve.

A curve or an area of observed scores is an estimate. Functions named lower or upper return bounds,
by bands that hold for both error rates at all thresholds at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from lightning_audit import _validate
from lightning_audit.stats._arguments import Floats, significance_level
from lightning_audit.stats._confusion import score_vector
from lightning_audit.stats.bounds._stairs import Stairs
from lightning_audit.stats.bounds.bands import Band, simultaneous_upper_limits
from lightning_audit.stats.bounds.thresholds import candidate_thresholds
from lightning_audit.stats.tradeoff.piecewise import PiecewiseTradeoff

__all__ = ["RocCurve", "auroc", "roc_curve", "tpr_at_fpr", "tpr_at_fpr_lower", "tradeoff_upper"]

# Number of thresholds of `tradeoff_upper`: any choice is valid, and more make no difference.
_MOST = 4096


@dataclass(frozen=True, eq=False)
class RocCurve:
    """Observed rates of the guess "in if the score exceeds the threshold".

    Args:
        fpr: False positive rates, non-decreasing from 0 to 1, ``[k]``.
        tpr: True positive rates, non-decreasing from 0 to 1, ``[k]``.
        thresholds: Thresholds, decreasing, ``[k]``.
    """

    fpr: Floats
    tpr: Floats
    thresholds: Floats


def roc_curve(scores_in: ArrayLike, scores_out: ArrayLike) -> RocCurve:
    """Return every pair of error rates of a threshold, once.

    Args:
        scores_in: Scores with the canary in, larger if it seems to be in, ``[n_in]``.
        scores_out: Scores with the canary out, ``[n_out]``, in the same unit.

    Returns:
        The curve, from "never in" to "always in".

    Raises:
        ValueError: If a group is empty, or scores are not one-dimensional or hold nan.

    Example:
        >>> curve = roc_curve([1.0, 2.0, 3.0], [0.0, 2.0])
        >>> curve.fpr, curve.tpr.round(2)
        (array([0. , 0. , 0.5, 0.5, 1. ]), array([0.  , 0.33, 0.67, 1.  , 1.  ]))
    """
    inside, outside = _groups(scores_in, scores_out)
    stairs = _backwards(inside, outside)
    return RocCurve(
        fpr=(stairs.n_out - stairs.tn) / stairs.n_out,
        tpr=(stairs.n_in - stairs.fn) / stairs.n_in,
        thresholds=stairs.thresholds,
    )


def auroc(scores_in: ArrayLike, scores_out: ArrayLike) -> float:
    r"""Return the area under the ROC curve: the probability that a score "in" exceeds one "out".

    Exact, as a ratio of whole numbers; ties count half, which gives the area under straight lines
    between the points of the curve, and the Mann-Whitney statistic over its maximum.

    .. math:: \frac{1}{n_1 n_0} \sum_{i,j} \bigl(\mathbf 1\{x_i > y_j\}
        + \tfrac12 \mathbf 1\{x_i = y_j\}\bigr)

    Arguments and errors are those of `roc_curve`.

    Returns:
        The area in [0, 1]; .5 if the scores do not separate the worlds.

    Example:
        >>> auroc([1.0, 2.0, 3.0], [0.0, 2.0])
        0.75

    References:
        Mann and Whitney, Annals of Mathematical Statistics 18, 1947, doi:10.1214/aoms/1177730491.
        Hanley and McNeil, "The meaning and use of the area under a ROC curve", Radiology 143, 1982,
        doi:10.1148/radiology.143.1.7063747.
    """
    inside, outside = _groups(scores_in, scores_out)
    below, up_to = (np.searchsorted(outside, inside, side=side) for side in ("left", "right"))
    # Python's whole numbers do not overflow.
    wins = int(below.sum()) + int(up_to.sum())
    return wins / (2 * len(inside) * len(outside))


def tpr_at_fpr(scores_in: ArrayLike, scores_out: ArrayLike, fpr: float) -> float:
    """Return the observed true positive rate at an observed false positive rate <= ``fpr``.

    The rate is that of a threshold, without interpolation between points of the curve. With fewer
    than 1 / fpr scores "out", none of them may pass.

    Args:
        scores_in: As in `roc_curve`, ``[n_in]``.
        scores_out: As in `roc_curve`, ``[n_out]``.
        fpr: False positive rate in [0, 1].

    Returns:
        The rate in [0, 1], an estimate.

    Raises:
        ValueError: As in `roc_curve`; if ``fpr`` is out of its range.

    Example:
        >>> tpr_at_fpr([1.0, 2.0, 3.0, 4.0], [0.0, 0.5, 1.5, 3.5], fpr=0.25)
        0.75

    References:
        Carlini et al., "Membership inference attacks from first principles", IEEE S&P 2022,
        arXiv:2112.03570.
    """
    inside, outside = _groups(scores_in, scores_out)
    # Number of scores "out" that may pass; the factor keeps rounding from removing one.
    passing = int(np.floor(_rate(fpr) * len(outside) * (1 + 1e-12)))
    if passing == len(outside):
        return 1.0
    return float(np.mean(inside > outside[len(outside) - passing - 1]))


def tpr_at_fpr_lower(
    scores_in: ArrayLike,
    scores_out: ArrayLike,
    fpr: float,
    significance: float,
    band: Band = "berk_jones",
) -> float:
    """Return a lower bound on the true positive rate at a true FPR of at most ``fpr``.

    With probability at least ``1 - significance`` there is a threshold with a true false positive
    rate of at most ``fpr`` and a true positive rate of at least the result. A band for each rate
    has half of the significance, so the threshold may be chosen afterwards. The scores must be
    independent.

    Args:
        scores_in: As in `roc_curve`, ``[n_in]``.
        scores_out: As in `roc_curve`, ``[n_out]``.
        fpr: False positive rate in [0, 1].
        significance: Probability in (0, 1) with which the bound may fail.
        band: As in `stats.bounds.bands.simultaneous_upper_limits`, which has its source.

    Returns:
        The bound in [0, 1]; 0 if too few scores "out" were seen to limit a rate to ``fpr``.

    Raises:
        ValueError: As in `roc_curve`; if another argument is out of its range.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> scores = 2 + rng.standard_normal(5000), rng.standard_normal(5000)
        >>> round(tpr_at_fpr(*scores, 0.01), 2), round(tpr_at_fpr_lower(*scores, 0.01, 0.05), 2)
        (0.37, 0.3)
    """
    inside, outside = _groups(scores_in, scores_out)
    limit, level = _rate(fpr), significance_level(significance) / 2
    fnr_upper = simultaneous_upper_limits(len(inside), level, band)
    fpr_upper = simultaneous_upper_limits(len(outside), level, band)
    passing = int(np.searchsorted(fpr_upper, limit, side="right")) - 1
    if passing < 0:
        return 0.0
    if passing == len(outside):
        return 1.0
    missed = int(np.sum(inside <= outside[len(outside) - passing - 1]))
    return float(1.0 - fnr_upper[missed])


def tradeoff_upper(
    scores_in: ArrayLike,
    scores_out: ArrayLike,
    significance: float,
    band: Band = "berk_jones",
) -> PiecewiseTradeoff:
    """Return a trade-off function that is nowhere below that of the mechanism.

    With probability at least ``1 - significance`` the mechanism's trade-off function is on or below
    the result. So `PiecewiseTradeoff.epsilon_at` is a lower bound on epsilon at every delta, and
    `PiecewiseTradeoff.delta_at` one on delta at every epsilon, at all of them together: the privacy
    curve may be read at its most informative point.

    The upper limits of both error rates at up to 4,096 thresholds are points above the function,
    and so are their mirror images, because adding and removing a canary both give neighbors. The
    result is the largest convex function below these points.

    Args:
        scores_in: As in `roc_curve`, ``[n_in]``.
        scores_out: As in `roc_curve`, ``[n_out]``.
        significance: Probability in (0, 1) with which the function may fail anywhere.
        band: As in `tpr_at_fpr_lower`.

    Returns:
        The trade-off function.

    Raises:
        ValueError: As in `tpr_at_fpr_lower`.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> scores = 2 + rng.standard_normal(5000), rng.standard_normal(5000)
        >>> f = tradeoff_upper(*scores, significance=0.05)
        >>> f.epsilon_at(np.array([1e-5, 1e-2, 0.1])).round(2)
        array([4.01, 3.92, 3.03])
    """
    inside, outside = _groups(scores_in, scores_out)
    level = significance_level(significance) / 2
    stairs = _backwards(inside, outside, _MOST)
    fnr = simultaneous_upper_limits(stairs.n_in, level, band)[stairs.fn]
    fpr = simultaneous_upper_limits(stairs.n_out, level, band)[stairs.n_out - stairs.tn]
    return PiecewiseTradeoff(np.concatenate([fpr, fnr]), np.concatenate([fnr, fpr]))


def _rate(fpr: float) -> float:
    if fpr != 0:
        _validate.rate("fpr", fpr, "or 0; it is a false positive rate")
    return float(fpr)


def _groups(scores_in: ArrayLike, scores_out: ArrayLike) -> tuple[Floats, Floats]:
    groups = []
    for name, scores in (("scores_in", scores_in), ("scores_out", scores_out)):
        groups.append(np.sort(score_vector(name, scores)))
        if not groups[-1].size:
            raise ValueError(
                f"{name} is empty, must hold at least one score; an empty group has no rate."
            )
    return groups[0], groups[1]


def _backwards(inside: Floats, outside: Floats, most: int | None = None) -> Stairs:
    """Return counts at decreasing thresholds: all, or a subset that misses no rate by much."""
    if most is None or len(inside) + len(outside) < most:
        thresholds = candidate_thresholds(inside, outside)
    else:
        # Counts at equal distances in units of their standard deviations, for either group.
        turns = np.sin(np.linspace(0.0, np.pi / 2, most // 2)) ** 2
        thresholds = np.unique(
            np.concatenate(
                [s[np.floor(turns * (len(s) - 1)).astype(int)] for s in (inside, outside)]
            )
        )
    return Stairs.of(inside, outside, thresholds[::-1])
