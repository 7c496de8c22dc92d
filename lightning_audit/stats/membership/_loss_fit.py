"""Gaussian mixtures, fitted to losses after a logit transform, and the quality of the fit."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from lightning_audit.stats._arguments import Floats

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
    n = len(values)
    cdf = np.exp(fitted.logcdf(np.sort(values)))
    steps = np.arange(n + 1) / n
    distance = float(max(np.max(steps[1:] - cdf), np.max(cdf - steps[:-1])))
    return distance, float(special.kolmogorov(math.sqrt(n) * distance))


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
