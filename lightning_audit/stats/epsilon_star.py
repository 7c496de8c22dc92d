"""Epsilon*: how well a threshold on one model's losses separates training data from other data.

Epsilon* is the smallest epsilon, at a given delta, at which the losses of the training data and
those of the population are indistinguishable in the sense of differential privacy, for any
threshold on the loss. It needs only one trained model and its losses.

Epsilon* is not a bound on the privacy of the training: the random draw is that of a data point, not
that of the training, and there is no error probability. It is positive for finite samples without
any leakage, and grows with the number of thresholds that the clip admits. Use it to compare models
at the same delta, clip and sample sizes, together with `epsilon_star_null`.

The clip is part of the value. At delta = 0 the largest ratio is usually in the far tail, and the
value is that of the clip; for Gaussian fits there is no finite value without a clip. The parametric
form extrapolates the tails of a fitted Gaussian, where no losses can check them: on Gamma losses it
exceeds the true value by 0.8 to 1, and more losses do not help (by simulation).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray
from scipy import special

from lightning_audit import _validate
from lightning_audit._validate import shown
from lightning_audit.stats._arguments import Floats, delta_or_zero, places
from lightning_audit.stats.tradeoff import hull_of_few

# --- Gaussian mixtures, fitted to losses after a logit transform, and the quality of the fit.

_MAX_ITERATIONS = 300
_LEAST_GAIN = 1e-8
# A component that shrinks onto equal losses has an unbounded likelihood.
_LEAST_STD = 1e-3
_GROUPS = 8192


@dataclass(frozen=True)
class GaussianMixture:
    """A mixture of Gaussians; one component is the ordinary case.

    Args:
        weights: Weights > 0 of the components, with the sum 1.
        means: Means of the components.
        stds: Standard deviations > 0 of the components.

    Raises:
        ValueError: If the three have different lengths, or one is out of its range.
    """

    weights: tuple[float, ...]
    means: tuple[float, ...]
    stds: tuple[float, ...]

    def __post_init__(self) -> None:
        if not 0 < len(self.weights) == len(self.means) == len(self.stds):
            raise ValueError(
                f"weights, means and stds have {len(self.weights)}, {len(self.means)} and "
                f"{len(self.stds)} elements, must have equally many each, at least 1."
            )
        if not (min(self.weights) > 0 and math.isclose(sum(self.weights), 1, rel_tol=1e-9)):
            raise ValueError(f"weights={self.weights!r} must be > 0 with the sum 1; rescale them.")
        if not all(math.isfinite(mean) for mean in self.means):
            raise ValueError(f"means={self.means!r} must be finite.")
        if not all(0 < std < math.inf for std in self.stds):
            raise ValueError(f"stds={self.stds!r} must be finite numbers > 0.")

    def logcdf(self, x: ArrayLike) -> Floats:
        """Return the logarithm of the distribution function."""
        return self._log_sum(special.log_ndtr(self._standardized(x)))

    def logsf(self, x: ArrayLike) -> Floats:
        """Return the logarithm of one minus the distribution function, without cancellation."""
        return self._log_sum(special.log_ndtr(-self._standardized(x)))

    def _standardized(self, x: ArrayLike) -> Floats:
        points = np.asarray(x, dtype=np.float64)[..., None]
        return np.asarray((points - np.asarray(self.means)) / np.asarray(self.stds))

    def _log_sum(self, log_parts: Floats) -> Floats:
        if len(self.weights) == 1:
            return log_parts[..., 0]
        return np.asarray(special.logsumexp(log_parts + np.log(self.weights), axis=-1))


@dataclass(frozen=True)
class LogitScale:
    r"""The published transform of losses, which makes both sides nearly Gaussian.

    .. math:: y = -\operatorname{logit}(e^{-z}) = \ln(e^z - 1), \qquad
        z = 1 + \frac{\ell - \ell_{\min}}{\ell_{\max} - \ell_{\min}}

    with the extremes of both sides together. It increases with the loss.

    Args:
        low: Smallest loss of both sides.
        span: Largest loss less the smallest one, > 0.

    References:
        Negoescu et al., "Epsilon*: privacy metric for machine learning models", PPAI 2024,
        arXiv:2307.11280, section 3.1.
    """

    low: float
    span: float

    @classmethod
    def of(cls, pooled: Floats) -> LogitScale:
        """Return the scale of all losses together.

        Raises:
            ValueError: If a loss is infinite, or all of them are equal.
        """
        low, high = float(pooled.min()), float(pooled.max())
        if not math.isfinite(high - low):
            raise ValueError(
                f"the losses lie between {low!r} and {high!r}, must span a finite range for a "
                "Gaussian fit; use Empirical, which needs their order only."
            )
        if low == high:
            raise ValueError(
                f"the losses of both sides are all {low!r}, must differ for a Gaussian fit; "
                "use Empirical, for which this is 0."
            )
        return cls(low, high - low)

    def forward(self, losses: Floats) -> Floats:
        """Map losses to the fitted scale."""
        return np.log(np.expm1(1 + (losses - self.low) / self.span))

    def backward(self, fitted: float) -> float:
        """Map a point of the fitted scale to a loss, which may be outside the observed ones."""
        return self.low + self.span * (float(np.logaddexp(0, fitted)) - 1)


@dataclass(frozen=True)
class FitQuality:
    """Kolmogorov-Smirnov distances between losses and the distributions fitted to them.

    The p-values are those for distributions known beforehand. The same losses chose the fit, so
    they are too large: a small p-value is evidence against the fit, a large one is hardly evidence
    for it. Nor does the distance over the whole range detect a misfit in the tails, which determine
    Epsilon*.

    Args:
        ks_train: Largest difference of the distribution functions, training losses.
        ks_population: Largest difference of the distribution functions, population losses.
        p_train: The p-value of ``ks_train``, too large.
        p_population: The p-value of ``ks_population``, too large.
    """

    ks_train: float
    ks_population: float
    p_train: float
    p_population: float


def fit(name: str, values: Floats, components: int) -> GaussianMixture:
    """Fit a mixture: one component by mean and standard deviation, several by EM.

    Raises:
        ValueError: If there are fewer than two values a component, or all are equal.
    """
    if len(values) < 2 * components or values.min() == values.max():
        raise ValueError(
            f"{name} has {len(values)} losses, {len(np.unique(values))} of them distinct; a fit of "
            f"{components} Gaussians needs {2 * components} that are not all equal; use Empirical, "
            "or fewer components."
        )
    if components == 1:
        return GaussianMixture((1.0,), (float(values.mean()),), (float(values.std(ddof=1)),))
    return _expectation_maximization(values, components)


def fit_both(
    train: Floats, population: Floats, components: int
) -> tuple[GaussianMixture, GaussianMixture]:
    """Fit each side; see `fit`."""
    return (
        fit("losses_train", train, components),
        fit("losses_population", population, components),
    )


def kolmogorov_smirnov(values: Floats, fitted: GaussianMixture) -> tuple[float, float]:
    """Return the distance between values and their fit, and its p-value for a known fit."""

    def cdf(x: Any) -> Any:
        return np.exp(fitted.logcdf(x))

    found = scipy.stats.ks_1samp(values, cdf, method="asymp")
    return float(found.statistic), float(found.pvalue)


def _expectation_maximization(values: Floats, components: int) -> GaussianMixture:
    values = np.sort(values)
    least = _LEAST_STD * float(values.std())
    parts = np.array_split(values, components)
    weights = np.array([len(part) / len(values) for part in parts])
    means = np.array([part.mean() for part in parts])
    stds = np.maximum([part.std() for part in parts], least)
    points, counts = _grouped(values)
    previous = -math.inf
    for _ in range(_MAX_ITERATIONS):
        log_parts = np.log(weights / stds) - 0.5 * ((points[:, None] - means) / stds) ** 2
        peak = log_parts.max(axis=1, keepdims=True)
        shares = np.exp(log_parts - peak)
        total = shares.sum(axis=1, keepdims=True)
        log_likelihood = float(counts @ (peak + np.log(total))[:, 0]) / len(values)
        shares *= counts[:, None] / total
        # A component without losses keeps its position, with almost no weight.
        mass = np.maximum(shares.sum(axis=0), 1e-10)
        weights = mass / mass.sum()
        means = shares.T @ points / mass
        variances = np.einsum("nk,nk->k", shares, (points[:, None] - means) ** 2) / mass
        stds = np.maximum(np.sqrt(variances), least)
        if log_likelihood - previous < _LEAST_GAIN:
            break
        previous = log_likelihood
    return GaussianMixture(*(tuple(x.tolist()) for x in (weights, means, stds)))


def _grouped(values: Floats) -> tuple[Floats, Floats]:
    """Return means and sizes of narrow groups of few adjacent values, to limit the cost of EM."""
    if len(values) <= _GROUPS:
        return values, np.ones(len(values))
    by_count = np.linspace(0, len(values), _GROUPS // 2, endpoint=False).astype(np.int64)
    by_width = np.searchsorted(values, np.linspace(values[0], values[-1], _GROUPS // 2)[:-1])
    starts = np.unique(np.concatenate([by_count, by_width]))
    counts = np.diff(np.append(starts, len(values))).astype(np.float64)
    return np.add.reduceat(values, starts) / counts, counts


# --- The four inequalities of empirical privacy, and the largest epsilon that they refute.

Ints = NDArray[np.int64]

#: Which side has too many losses on which side of the threshold.
Inequality = Literal["train_below", "population_below", "population_above", "train_above"]
INEQUALITIES: tuple[Inequality, ...] = get_args(Inequality)

#: Function of thresholds that returns the logarithms of TPR, FPR, FNR and TNR.
LogRates = Callable[[Floats], tuple[Floats, Floats, Floats, Floats]]

_POINTS = 33
_ZOOMS = 9
# A ratio rises by less than this between adjacent grid points, so lower peaks stay lower.
_REACH = 4.0
_MOST_PEAKS = 16
# Grid points of different origin may coincide up to rounding, so one adjacent cell is not enough.
_CELLS = 4


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


# --- Losses of both sides in one order: the input of the empirical Epsilon*.


@dataclass(frozen=True)
class RankedLosses:
    """The side of each loss, in increasing order, and the ends of groups of equal losses.

    Args:
        is_train: 1 for a training loss, 0 for one of the population, ``[n + m]``.
        ends: Index of the last loss of each group of equal losses.
        thresholds: The distinct losses.
    """

    is_train: NDArray[np.int8]
    ends: Ints
    thresholds: Floats

    @classmethod
    def of(cls, train: Floats, population: Floats) -> RankedLosses:
        """Rank the losses of both sides, each sorted."""
        pooled = np.concatenate([train, population])
        # The stable sort merges two sorted runs in linear time.
        order = np.argsort(pooled, kind="stable")
        pooled = pooled[order]
        ends = np.flatnonzero(np.append(pooled[1:] != pooled[:-1], True))
        return cls((order < len(train)).astype(np.int8), ends, pooled[ends])

    def epsilon_star(self, delta: float, clip: float) -> EpsilonStar:
        """Return Epsilon* over all thresholds; ties go to the first inequality and threshold."""
        up_to = np.cumsum(self.is_train, dtype=np.int64)
        n, m = int(up_to[-1]), len(up_to) - int(up_to[-1])
        tp = up_to[self.ends]
        fp = self.ends + 1 - tp
        best = (1.0, 0, 0)
        for i, values in enumerate(_ratios(tp, fp, n, m, delta, clip)):
            at = int(np.argmax(values))
            best = max(best, (float(values[at]), i, at), key=lambda item: item[0])
        ratio, i, at = best
        if ratio <= 1:
            return EpsilonStar(0.0, None, None, None, None, False, delta, clip)
        tpr, fnr = int(tp[at]) / n, (n - int(tp[at])) / n
        fpr, tnr = int(fp[at]) / m, (m - int(fp[at])) / m
        denominator, size = ((fpr, m), (tpr, n), (fnr, n), (tnr, m))[i]
        value, threshold = math.log(ratio), float(self.thresholds[at])
        at_clip = denominator <= max(clip, 1 / size)
        return EpsilonStar(value, threshold, fpr, fnr, INEQUALITIES[i], at_clip, delta, clip)


def sorted_losses(name: str, losses: ArrayLike) -> Floats:
    """Return the losses of one side in increasing order.

    Raises:
        ValueError: If they are not one-dimensional, empty, or hold nan.
    """
    array = np.asarray(losses, dtype=np.float64)
    if array.ndim != 1:
        raise ValueError(f"{name} has shape {array.shape}, must be [n]; ravel it.")
    if not array.size:
        raise ValueError(f"{name}=[] must hold at least one loss; evaluate the model on some data.")
    ordered = np.sort(array)
    if np.isnan(ordered[-1]):
        raise ValueError(
            f"{name} holds nan, must hold numbers; leave out missing losses "
            f"({places(np.isnan(array))})."
        )
    return ordered


def _ratios(tp: Ints, fp: Ints, n: int, m: int, delta: float, clip: float) -> Iterator[Floats]:
    """Yield the ratios of the four inequalities at each threshold, one inequality at a time."""
    least_train, least_population = max(clip, 1 / n), max(clip, 1 / m)
    tpr, fpr = tp / n, fp / m
    yield (tpr - delta) / np.maximum(fpr, least_population)
    yield (fpr - delta) / np.maximum(tpr, least_train)
    del tpr, fpr
    # From counts, because one minus a rate would lose digits.
    fnr, tnr = (n - tp) / n, (m - fp) / m
    yield (tnr - delta) / np.maximum(fnr, least_train)
    yield (fnr - delta) / np.maximum(tnr, least_population)


# --- Epsilon*: how well a threshold on one model's losses separates training data from other data.


@dataclass(frozen=True)
class Empirical:
    """Epsilon* of the losses themselves: every threshold that separates two of them.

    Args:
        clip: Least rate in [0, 1/2) in a denominator. The least is at least one loss, so a rate of
            0 out of n counts as 1/n. The paper instead drops thresholds with a rate outside of
            [clip, 1 - clip], with clip 0.001: that never gives more, usually the same, and 0 for
            two sides that are separated entirely.

    Raises:
        ValueError: If ``clip`` is out of its range.
    """

    clip: float

    def __post_init__(self) -> None:
        _check_clip(self.clip)


@dataclass(frozen=True)
class Parametric:
    """Epsilon* of Gaussians, or mixtures of them, fitted to each side after a logit transform.

    Args:
        clip: Least rate in [0, 1/2) in a denominator; the fitted tails determine the rates down to
            it.
        components: Number of Gaussians a side: 1 in the paper. Several are fitted by EM from equal
            parts of the sorted losses, without randomness, in time and memory proportional to
            losses times components.

    Raises:
        ValueError: If an argument is out of its range.
    """

    clip: float
    components: int = 1

    def __post_init__(self) -> None:
        _check_clip(self.clip)
        _validate.positive_int("components", self.components, "1 is a Gaussian")


Method = Empirical | Parametric


def checked_method(method: Any) -> Method:
    """Return a method; raise a TypeError if it is none."""
    if not isinstance(method, Method):
        raise TypeError(f"method={method!r} must be Empirical(...) or Parametric(...).")
    return method


def epsilon_star(
    losses_train: ArrayLike, losses_population: ArrayLike, delta: float, method: Method
) -> EpsilonStar:
    r"""Return Epsilon* of one model from its losses: a description of this model, not a bound.

    A loss up to the threshold is guessed "train". With the rates at threshold t

    .. math:: \varepsilon^* = \max_t \ln \max\Big\{
        \frac{1 - \delta - \mathrm{FNR}}{\mathrm{FPR}},
        \frac{1 - \delta - \mathrm{FPR}}{\mathrm{FNR}},
        \frac{\mathrm{FPR} - \delta}{1 - \mathrm{FNR}},
        \frac{\mathrm{FNR} - \delta}{1 - \mathrm{FPR}}, 1 \Big\}

    where no denominator is below the method's clip. Increasing transforms of the losses do not
    change the empirical value, nor do decreasing ones or exchanging the two sides.

    Args:
        losses_train: Losses of training data, ``[n]``, at least one. Infinite ones are allowed for
            `Empirical`.
        losses_population: Losses of data of the same distribution that was not trained on, ``[m]``.
        delta: Delta in [0, 1).
        method: `Empirical` or `Parametric`, with its clip.

    Returns:
        The value, and the threshold and the inequality that attain it; ties go to the first. It is
        infinite only for `Parametric` at delta = 0 without a clip.

    Raises:
        ValueError: If losses are not one-dimensional, are empty or hold nan, ``delta`` is not in
            [0, 1), or losses are too few or too equal for a fit.
        TypeError: If ``method`` is not one of the classes of this module.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> train, population = rng.gamma(5, 1, 10_000), rng.gamma(7, 1, 10_000)
        >>> star = epsilon_star(train, population, 1e-5, Empirical(clip=1e-3))
        >>> round(star.value, 1), star.inequality, star.at_clip
        (2.7, 'train_below', False)
        >>> star = epsilon_star(train, population, 1e-5, Parametric(clip=1e-3))
        >>> round(star.value, 1), star.fit.p_population < 0.05
        (3.3, True)

    References:
        Negoescu et al., "Epsilon*: privacy metric for machine learning models", PPAI 2024,
        arXiv:2307.11280, definition 2, theorem 3, section 3.1 and appendix B.
    """
    train, population, small = _checked(losses_train, losses_population, delta, method)
    if isinstance(method, Empirical):
        return RankedLosses.of(train, population).epsilon_star(small, method.clip)
    scale = LogitScale.of(np.concatenate([train, population]))
    sides = scale.forward(train), scale.forward(population)
    fits = fit_both(*sides, method.components)
    found = epsilon_star_of_distributions(*fits, small, clip=method.clip)
    (ks_train, p_train), (ks_population, p_population) = (
        kolmogorov_smirnov(side, fitted) for side, fitted in zip(sides, fits, strict=True)
    )
    quality = FitQuality(ks_train, ks_population, p_train, p_population)
    at = None if found.threshold is None else scale.backward(found.threshold)
    return dataclasses.replace(found, threshold=at, fit=quality)


def _checked(
    losses_train: ArrayLike, losses_population: ArrayLike, delta: float, method: Method
) -> tuple[Floats, Floats, float]:
    train = sorted_losses("losses_train", losses_train)
    population = sorted_losses("losses_population", losses_population)
    small = delta_or_zero(delta)
    checked_method(method)
    return train, population, small


def epsilon_star_of_distributions(
    train: GaussianMixture, population: GaussianMixture, delta: float, *, clip: float
) -> EpsilonStar:
    """Return Epsilon* of two known distributions of losses: the supremum over all thresholds.

    A grid of thresholds and a search between them give about 8 digits.

    Args:
        train: Distribution of the training losses.
        population: Distribution of the population's losses.
        delta: Delta in [0, 1).
        clip: Least rate in [0, 1/2) in a denominator.

    Returns:
        The value and where it is attained. It is infinite at delta = 0 and clip = 0, unless the
        tails are the same.

    Raises:
        ValueError: If an argument is out of its range.

    Example:
        >>> train, population = (GaussianMixture((1.0,), (mean,), (1.0,)) for mean in (0.0, 3.0))
        >>> round(epsilon_star_of_distributions(train, population, 1e-5, clip=1e-3).value, 4)
        6.14
    """
    small, least = delta_or_zero(delta), _check_clip(clip)
    if small == least == 0 and not same_tails(train, population):
        return EpsilonStar(math.inf, None, None, None, None, True, small, least)
    return supremum(rates_of(train, population), grid_of(train, population), small, least)


def rates_of(train: Any, population: Any) -> LogRates:
    """Return the rates of two distributions that have logcdf and logsf, by threshold."""
    return lambda at: (
        train.logcdf(at),
        population.logcdf(at),
        train.logsf(at),
        population.logsf(at),
    )


def _check_clip(clip: Any) -> float:
    advice = "it is the smallest error rate to trust, such as 0.001, or 0 for none"
    if _validate.non_negative("clip", clip, advice) >= 0.5:
        raise ValueError(f"clip={clip!r} must be in [0, 0.5); {advice}")
    return float(clip)


# --- Distribution of Epsilon* without leakage, over random permutations.


@dataclass(frozen=True)
class PermutationNull:
    """Epsilon* of the losses as given, and if they are assigned to the two sides at random.

    Args:
        value: Epsilon* of the sides as given.
        p_value: Upper bound on the probability of a value at least as large if training and
            population losses are exchangeable: (1 + permutations with a value at least as large) /
            (1 + permutations).
        median: Median over the permutations: the typical value without leakage.
        quantile_95: 95 % quantile over the permutations.
        permutations: Number of permutations.
    """

    value: float
    p_value: float
    median: float
    quantile_95: float
    permutations: int


def epsilon_star_null(
    losses_train: ArrayLike,
    losses_population: ArrayLike,
    delta: float,
    method: Method,
    *,
    permutations: int,
    rng: np.random.Generator,
) -> PermutationNull:
    """Compare Epsilon* with its values if the losses are assigned to the sides at random.

    Epsilon* is positive without leakage too; this shows by how much. The p-value is valid exactly,
    for any sample sizes and either method, if without leakage the losses are exchangeable: single
    draws from one population, not several of one person. A small p-value means that the sides
    differ, not that a claim of privacy is false: private training allows a difference.

    Args:
        losses_train: Losses of training data, ``[n]``.
        losses_population: Losses of the population, ``[m]``.
        delta: Delta in [0, 1).
        method: `Empirical` or `Parametric`, with its clip.
        permutations: Number of permutations >= 1; 999 make p-values of 0.001 possible.
        rng: Generator of the permutations; its state advances.

    Returns:
        The value, its p-value and its distribution over the permutations.

    Raises:
        ValueError: As in `epsilon_star`; if ``permutations`` is not a whole number >= 1.
        TypeError: If ``rng`` is not a `numpy.random.Generator`, or ``method`` is neither class.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> sides, method = rng.gamma(5, 1, (2, 1000)), Empirical(clip=1e-3)
        >>> null = epsilon_star_null(*sides, 1e-5, method, permutations=99, rng=rng)
        >>> null.value > 1, null.p_value > 0.05
        (True, True)

    References:
        Phipson and Smyth, "Permutation p-values should never be zero", 2010, arXiv:1603.05766.
        Negoescu et al., "Epsilon*: privacy metric for machine learning models", arXiv:2307.11280.
    """
    _validate.positive_int("permutations", permutations, "999 are usual")
    if not isinstance(rng, np.random.Generator):
        raise TypeError(f"rng={rng!r} must be a numpy.random.Generator; use default_rng(seed).")
    train, population, small = _checked(losses_train, losses_population, delta, method)
    sides, value_of = _sides_and_value(train, population, small, method)

    def dealt() -> float:
        try:
            return value_of(rng.permutation(sides))
        except ValueError:
            # A side of equal losses has no fit. Counted as the largest, the p-value stays valid.
            return math.inf

    value = value_of(sides)
    values = np.array([dealt() for _ in range(permutations)])
    # The same sides in another order may differ by a rounding error.
    as_large = int(np.count_nonzero(values >= value * (1 - 1e-9)))
    median, high = np.quantile(values, [0.5, 0.95], method="higher").tolist()
    return PermutationNull(value, (1 + as_large) / (1 + permutations), median, high, permutations)


def _sides_and_value(
    train: Floats, population: Floats, delta: float, method: Method
) -> tuple[NDArray[Any], Callable[[NDArray[Any]], float]]:
    """Return what a permutation assigns to the two sides, and Epsilon* as a function of it."""
    if isinstance(method, Empirical):
        ranked = RankedLosses.of(train, population)

        def of_ranks(is_train: NDArray[Any]) -> float:
            dealt = dataclasses.replace(ranked, is_train=is_train)
            return dealt.epsilon_star(delta, method.clip).value

        return ranked.is_train, of_ranks
    pooled = np.concatenate([train, population])

    def of_losses(losses: NDArray[Any]) -> float:
        fits = fit_both(losses[: len(train)], losses[len(train) :], method.components)
        return epsilon_star_of_distributions(*fits, delta, clip=method.clip).value

    return LogitScale.of(pooled).forward(pooled), of_losses


# --- Pareto front of several models: those that no other model beats.


def pareto_front(cost: ArrayLike, benefit: ArrayLike, *, convex: bool = False) -> NDArray[np.int64]:
    """Return the models that no other one beats, in increasing order of cost.

    Args:
        cost: What should be small, such as Epsilon*, ``[n]``.
        benefit: What should be large, such as an accuracy, ``[n]``.
        convex: Whether to leave out models that a mixture of two models beats, as published: a
            mixture draws one of them at random for each use. Its front is concave.

    Returns:
        Indices of the front; the first of equal models.

    Raises:
        ValueError: If there are no models, their numbers differ, or a number is nan or infinite.

    Example:
        >>> pareto_front([0.1, 0.2, 0.3, 0.4], [0.5, 0.6, 0.9, 0.8])
        array([0, 1, 2])
        >>> pareto_front([0.1, 0.2, 0.3, 0.4], [0.5, 0.6, 0.9, 0.8], convex=True)
        array([0, 2])

    References:
        Negoescu et al., "Epsilon*: privacy metric for machine learning models", PPAI 2024,
        arXiv:2307.11280, section 4.2.
    """
    x, y = _finite("cost", cost), _finite("benefit", benefit)
    if x.shape != y.shape:
        raise ValueError(
            f"cost has {x.size} elements and benefit {y.size}, must have equally many; pass "
            "both values of each model."
        )
    order = np.lexsort((-y, x))
    best = np.maximum.accumulate(np.append(-np.inf, y[order]))
    front = order[y[order] > best[:-1]]
    # A mixture is a point between two others: on or below a concave front, as below a hull of -y.
    return front[hull_of_few(x[front].tolist(), (-y[front]).tolist())] if convex else front


def _finite(name: str, values: ArrayLike) -> Floats:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or not array.size or not np.all(np.isfinite(array)):
        raise ValueError(
            f"{name}={shown(values)} must be finite numbers, one for each of at least one model; "
            "leave models without a value out."
        )
    return array
