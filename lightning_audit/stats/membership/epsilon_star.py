r"""Epsilon*: how well a threshold on one model's losses separates training data from other data.

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
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from lightning_audit import _validate
from lightning_audit.stats._arguments import Floats, delta_or_zero
from lightning_audit.stats.membership._loss_fit import (
    FitQuality,
    GaussianMixture,
    LogitScale,
    fit_both,
    kolmogorov_smirnov,
)
from lightning_audit.stats.membership._membership import (
    Distribution,
    EpsilonStar,
    Inequality,
    grid_of,
    quantile_grid,
    same_tails,
    supremum,
)
from lightning_audit.stats.membership._ranked_losses import RankedLosses, sorted_losses

__all__ = [
    "Distribution",
    "Empirical",
    "EpsilonStar",
    "FitQuality",
    "GaussianMixture",
    "Inequality",
    "Parametric",
    "epsilon_star",
    "epsilon_star_of_distributions",
]


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
    train = sorted_losses("losses_train", losses_train)
    population = sorted_losses("losses_population", losses_population)
    small = delta_or_zero(delta)
    match method:
        case Empirical():
            return RankedLosses.of(train, population).epsilon_star(small, method.clip)
        case Parametric():
            return _of_fits(train, population, small, method)
    raise TypeError(f"method={method!r} must be Empirical(...) or Parametric(...).")


def _of_fits(train: Floats, population: Floats, delta: float, method: Parametric) -> EpsilonStar:
    scale = LogitScale.of(np.concatenate([train, population]))
    sides = scale.forward(train), scale.forward(population)
    fits = fit_both(*sides, method.components)
    found = epsilon_star_of_distributions(*fits, delta, clip=method.clip)
    (ks_train, p_train), (ks_population, p_population) = (
        kolmogorov_smirnov(side, fitted) for side, fitted in zip(sides, fits, strict=True)
    )
    quality = FitQuality(ks_train, ks_population, p_train, p_population)
    at = None if found.threshold is None else scale.backward(found.threshold)
    return dataclasses.replace(found, threshold=at, fit=quality)


def epsilon_star_of_distributions(
    train: Distribution | GaussianMixture,
    population: Distribution | GaussianMixture,
    delta: float,
    *,
    clip: float,
) -> EpsilonStar:
    """Return Epsilon* of two known distributions of losses: the supremum over all thresholds.

    A grid of thresholds and a search between them give about 8 digits, if logcdf and logsf of the
    distributions have them.

    Args:
        train: Distribution of the training losses: a `GaussianMixture`, or any with the methods
            logcdf, logsf, ppf and isf of a frozen distribution of `scipy.stats`. Both must be of
            one kind.
        population: Distribution of the population's losses.
        delta: Delta in [0, 1).
        clip: Least rate in [0, 1/2) in a denominator.

    Returns:
        The value and where it is attained. For Gaussians it is infinite at delta = 0 and clip = 0,
        unless their tails are the same.

    Raises:
        ValueError: If an argument is out of its range, or delta and clip are both 0 for
            distributions other than Gaussians: then no threshold attains the supremum.
        TypeError: If only one of the distributions is a `GaussianMixture`.

    Example:
        >>> from scipy import stats
        >>> train, population = stats.norm(0, 1), stats.norm(3, 1)
        >>> round(epsilon_star_of_distributions(train, population, 1e-5, clip=1e-3).value, 4)
        6.14
    """
    small, least = delta_or_zero(delta), _check_clip(clip)
    if isinstance(train, GaussianMixture) and isinstance(population, GaussianMixture):
        if small == least == 0 and not same_tails(train, population):
            return EpsilonStar(math.inf, None, None, None, None, True, small, least)
        grid = grid_of(train, population)
    else:
        grid = _grid_of_others(train, population, small, least)

    def log_rates(at: Floats) -> tuple[Floats, Floats, Floats, Floats]:
        return train.logcdf(at), population.logcdf(at), train.logsf(at), population.logsf(at)

    return supremum(log_rates, grid, small, least)


def _grid_of_others(
    train: Distribution | GaussianMixture,
    population: Distribution | GaussianMixture,
    delta: float,
    clip: float,
) -> Floats:
    if isinstance(train, GaussianMixture) or isinstance(population, GaussianMixture):
        raise TypeError(
            f"train={train!r} and population={population!r} must both be GaussianMixture or "
            "neither; write the other one as a mixture of one component."
        )
    if delta == clip == 0:
        raise ValueError(
            "clip=0 must be > 0 if delta=0: the supremum is then a limit in the tails; pass a "
            "clip such as 1e-6, or a delta > 0."
        )
    exact = [level for level in (delta, clip) if level > 0]
    levels = np.concatenate([np.logspace(-300, -20, 200), np.logspace(-20, -0.30103, 600)])
    return quantile_grid(train, population, np.concatenate([levels, exact]))


def _check_clip(clip: Any) -> float:
    advice = "it is the smallest error rate to trust, such as 0.001, or 0 for none"
    if _validate.non_negative("clip", clip, advice) >= 0.5:
        raise ValueError(f"clip={clip!r} must be in [0, 0.5); {advice}")
    return float(clip)
