"""The four inequalities of empirical privacy, and the largest epsilon that they refute."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from lightning_audit.stats._arguments import Floats
from lightning_audit.stats.membership._loss_fit import FitQuality, GaussianMixture

Ints = NDArray[np.int64]

#: Which side has too many losses on which side of the threshold.
Inequality = Literal["train_below", "population_below", "population_above", "train_above"]
INEQUALITIES: tuple[Inequality, ...] = (
    "train_below",
    "population_below",
    "population_above",
    "train_above",
)

#: Function of thresholds that returns the logarithms of TPR, FPR, FNR and TNR.
LogRates = Callable[[Floats], tuple[Floats, Floats, Floats, Floats]]

_POINTS = 33
_ZOOMS = 9
# A ratio rises by less than this between adjacent grid points, so lower peaks stay lower.
_REACH = 4.0
_MOST_PEAKS = 16
# Grid points of different origin may coincide up to rounding, so one adjacent cell is not enough.
_CELLS = 4


class Distribution(Protocol):
    """Interface of a known distribution of losses; those of `scipy.stats` have it."""

    def logcdf(self, x: Any, /) -> Any: ...

    def logsf(self, x: Any, /) -> Any: ...

    def ppf(self, q: Any, /) -> Any: ...

    def isf(self, q: Any, /) -> Any: ...


@dataclass(frozen=True)
class EpsilonStar:
    """Epsilon* of one model, and where it is attained. It is a description, not a bound.

    Args:
        value: Epsilon*, at least 0.
        threshold: Losses up to the threshold are guessed "train". This and the next three are None
            if ``value`` is 0 or infinite.
        fpr: Share of the population's losses up to the threshold.
        fnr: Share of the training losses above it.
        inequality: The one of the four that refutes every smaller epsilon. ``"train_below"``: too
            many training losses up to the threshold; ``"population_above"``: too few above it.
            These two are signs of memorization; the other two are the opposite, training losses
            that are larger than the population's.
        at_clip: Whether the rate in the denominator is at its limit: then the limit determines the
            value, not the data. The limit is the clip, or one loss of that side if this is more
            and no distribution is fitted.
        delta: Delta of Epsilon*.
        clip: Least rate in a denominator, as requested.
        fit: How well the fitted distributions describe the losses; None if none was fitted.
    """

    value: float
    threshold: float | None
    fpr: float | None
    fnr: float | None
    inequality: Inequality | None
    at_clip: bool
    delta: float
    clip: float
    fit: FitQuality | None = None


def supremum(log_rates: LogRates, grid: Floats, delta: float, clip: float) -> EpsilonStar:
    """Return the largest epsilon over all thresholds, by a grid and by zooming into its maxima.

    Args:
        log_rates: Logarithms of TPR, FPR, FNR and TNR at thresholds of any shape.
        grid: Distinct thresholds in increasing order, fine enough to have one maximum a cell.
        delta: Delta in [0, 1).
        clip: Least rate in a denominator.

    References:
        Negoescu et al., "Epsilon*: privacy metric for machine learning models", PPAI 2024,
        arXiv:2307.11280, definition 2.
    """
    values = _log_ratios(log_rates(grid), delta, clip)
    if values.max() == -math.inf:
        return EpsilonStar(0.0, None, None, None, None, False, delta, clip)
    value, at, i = _zoom(log_rates, *_brackets(values, grid), delta, clip)
    if value <= 0:
        return EpsilonStar(0.0, None, None, None, None, False, delta, clip)
    tpr, fpr, fnr, tnr = (float(np.exp(rate)) for rate in log_rates(np.array(at)))
    at_clip = (fpr, tpr, fnr, tnr)[i] <= clip * (1 + 1e-6)
    return EpsilonStar(value, at, fpr, fnr, INEQUALITIES[i], at_clip, delta, clip)


def grid_of(train: GaussianMixture, population: GaussianMixture) -> Floats:
    """Return thresholds a tenth of a standard deviation apart, up to 40 on each side of a mean."""
    steps = np.linspace(-40, 40, 801)
    parts = [
        mean + std * steps
        for mixture in (train, population)
        for mean, std in zip(mixture.means, mixture.stds, strict=True)
    ]
    grid = np.unique(np.concatenate(parts))
    least = 1e-3 * min(*train.stds, *population.stds)
    return np.asarray(grid[np.append(True, np.diff(grid) > least)])


def quantile_grid(train: Distribution, population: Distribution, levels: Floats) -> Floats:
    """Return thresholds at the given levels of both tails of both distributions."""
    ends = [f(levels) for d in (train, population) for f in (d.ppf, d.isf)]
    grid = np.unique(np.concatenate(ends).astype(np.float64))
    grid = grid[np.isfinite(grid)]
    if not grid.size:
        raise ValueError(
            f"train={train!r} and population={population!r} must have finite quantiles; check the "
            "parameters of the distributions."
        )
    return grid


def same_tails(train: GaussianMixture, population: GaussianMixture) -> bool:
    """Return whether the ratio of the distribution functions is bounded in both tails."""

    def ends(mixture: GaussianMixture) -> set[tuple[float, float]]:
        widest = max(mixture.stds)
        means = [m for m, s in zip(mixture.means, mixture.stds, strict=True) if s == widest]
        return {(widest, min(means)), (-widest, max(means))}

    return ends(train) == ends(population)


def _log_ratios(rates: tuple[Floats, Floats, Floats, Floats], delta: float, clip: float) -> Floats:
    """Return logarithms of the four ratios, ``[4, ...]``, in the order of `INEQUALITIES`."""
    log_tpr, log_fpr, log_fnr, log_tnr = rates
    top = np.stack([log_tpr, log_fpr, log_tnr, log_fnr])
    below = np.stack([log_fpr, log_tpr, log_fnr, log_tnr])
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        if clip > 0:
            below = np.maximum(below, math.log(clip))
        if delta > 0:
            top = top + np.log1p(-np.minimum(np.exp(math.log(delta) - top), 1.0))
        # If the numerator is not positive, nothing is refuted, for any denominator.
        return np.where(top > -np.inf, top - below, -np.inf)


def _brackets(values: Floats, grid: Floats) -> tuple[Floats, Floats, Ints]:
    """Return the ends of cells around local maxima that may hold the largest value, by row."""
    edge = np.full((len(values), 1), -np.inf)
    padded = np.hstack([edge, values, edge])
    # The first of equal adjacent values represents them all.
    peak = (values > padded[:, :-2]) & (values >= padded[:, 2:])
    rows, at = np.nonzero(peak & (values >= values.max() - _REACH))
    # If a ratio is flat, rounding creates very many local maxima.
    most = np.argsort(-values[rows, at], kind="stable")[:_MOST_PEAKS]
    rows, at = rows[most], at[most]
    last = len(grid) - 1
    return grid[np.maximum(at - _CELLS, 0)], grid[np.minimum(at + _CELLS, last)], rows


def _zoom(
    log_rates: LogRates, left: Floats, right: Floats, rows: Ints, delta: float, clip: float
) -> tuple[float, float, int]:
    """Return the largest value between left and right ends, its threshold and its inequality.

    All intervals are narrowed at once, each by the ratio of its own inequality.
    """
    best = (-math.inf, math.nan, 0)
    each = np.arange(len(rows))
    for _ in range(_ZOOMS):
        points = np.linspace(left, right, _POINTS, axis=1)
        values = _log_ratios(log_rates(points), delta, clip)[rows, each]
        peaks = np.argmax(values, axis=1)
        k = int(np.argmax(values[each, peaks]))
        if values[k, peaks[k]] > best[0]:
            best = float(values[k, peaks[k]]), float(points[k, peaks[k]]), int(rows[k])
        left = points[each, np.maximum(peaks - 1, 0)]
        right = points[each, np.minimum(peaks + 1, _POINTS - 1)]
    return best
