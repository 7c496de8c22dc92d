r"""Epsilon*: how well a threshold on one model's losses tells training data from other data.

Epsilon* is the smallest epsilon, at a given delta, at which the losses of the training data and
those of the population are indistinguishable in the sense of differential privacy, by any
threshold on the loss. It needs one trained model and its losses, nothing else.

What it is not: a bound on the privacy of the training. The random draw is that of a data point, not
of the training, and no error probability goes with it. It is positive for finite samples without
any leakage, and grows with the number of thresholds that the clip admits. Use it to compare models
at the same delta, clip and sample sizes, with `epsilon_star_null` beside it.

The clip is part of the number. At delta = 0 the largest ratio usually stands in the far tail, and
the value is that of the clip; Gaussian fits have no finite value at all without one. The parametric
form trusts the tails of a fitted Gaussian, where there are no losses to check them: on Gamma losses
it lies above the truth by 0.8 to 1, and more losses do not help.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lightning_audit import _validate
from lightning_audit.stats._arguments import delta_or_zero
from lightning_audit.stats._loss_fit import (
    FitQuality,
    GaussianMixture,
    LogitScale,
    fit,
    kolmogorov_smirnov,
)
from lightning_audit.stats._membership import (
    INEQUALITIES,
    Distribution,
    EpsilonStar,
    Inequality,
    LogRates,
    grid_of,
    quantile_grid,
    ratios,
    same_tails,
    supremum,
)

__all__ = [
    "Distribution",
    "Empirical",
    "EpsilonStar",
    "FitQuality",
    "GaussianMixture",
    "Inequality",
    "Parametric",
    "PermutationNull",
    "epsilon_star",
    "epsilon_star_null",
    "epsilon_star_of_distributions",
]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Empirical:
    """Epsilon* of the losses themselves: every threshold that separates two of them.

    Args:
        clip: Least rate in [0, 1/2) in a denominator. One loss is the least in any case, so that a
            rate of 0 out of n counts as 1/n. The paper drops thresholds with a rate outside of
            [clip, 1 - clip] instead, 0.001 there; the value is the same but where that would drop
            the threshold that separates best, in the extreme all of them.

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
        clip: Least rate in [0, 1/2) in a denominator; the tails of the fits decide what lies
            beyond it.
        components: Number of Gaussians a side: 1 in the paper. More are fitted by EM from equal
            parts of the sorted losses, without any randomness, in time and memory proportional to
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


@dataclass(frozen=True)
class PermutationNull:
    """Epsilon* as it is when the losses are dealt to the two sides at random.

    Args:
        value: Epsilon* of the sides as given.
        p_value: Probability, at most, of so large a value if training and population losses are
            exchangeable: (1 + permutations with a value at least as large) / (1 + permutations).
        median: Median over the permutations: what no leakage reads.
        quantile_95: Their 95 % quantile.
        permutations: How many there are.
    """

    value: float
    p_value: float
    median: float
    quantile_95: float
    permutations: int


def epsilon_star(
    losses_train: ArrayLike, losses_population: ArrayLike, delta: float, method: Method
) -> EpsilonStar:
    r"""Epsilon* of one model from its losses: a description of this model, not a bound.

    A loss up to the threshold is guessed "train". With the rates at threshold t

    .. math:: \varepsilon^* = \max_t \ln \max\Big\{
        \frac{1 - \delta - \mathrm{FNR}}{\mathrm{FPR}},
        \frac{1 - \delta - \mathrm{FPR}}{\mathrm{FNR}},
        \frac{\mathrm{FPR} - \delta}{1 - \mathrm{FNR}},
        \frac{\mathrm{FNR} - \delta}{1 - \mathrm{FPR}}, 1 \Big\}

    where no denominator is taken below the method's clip. Increasing transforms of the losses do
    not change the empirical value, nor do decreasing ones or exchanging the two sides.

    Args:
        losses_train: Losses of training data, ``[n]``, at least one. Infinite ones are allowed for
            `Empirical`.
        losses_population: Losses of data of the same distribution that was not trained on, ``[m]``.
        delta: Delta in [0, 1).
        method: `Empirical` or `Parametric`, with its clip.

    Returns:
        The value, and the threshold and the inequality that attain it, the first of equal ones. It
        is infinite only for `Parametric` at delta = 0 without a clip.

    Raises:
        ValueError: If losses are not one-dimensional, are empty or hold nan, ``delta`` is not in
            [0, 1), or losses are too few or too equal for a fit.
        TypeError: If ``method`` is none of the classes of this module.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> train, population = rng.gamma(5, 1, 10_000), rng.gamma(7, 1, 10_000)
        >>> star = epsilon_star(train, population, 1e-5, Empirical(clip=1e-3))
        >>> round(star.value, 1), star.inequality, star.at_clip
        (2.9, 'train_below', True)
        >>> star = epsilon_star(train, population, 1e-5, Parametric(clip=1e-3))
        >>> round(star.value, 1), star.fit.p_population < 0.05
        (3.0, True)

    References:
        Negoescu et al., "Epsilon*: privacy metric for machine learning models", PPAI 2024,
        definition 2, theorem 3 and appendix B.
    """
    train, population = _losses(losses_train, losses_population)
    small = delta_or_zero(delta)
    match method:
        case Empirical():
            return _Ranked.of(train, population).best(small, method.clip)
        case Parametric():
            scale = LogitScale.of(np.concatenate([train, population]))
            sides = scale.forward(train), scale.forward(population)
            fits = _fits(*sides, method.components)
            found = epsilon_star_of_distributions(*fits, small, clip=method.clip)
            (ks_train, p_train), (ks_population, p_population) = (
                kolmogorov_smirnov(side, fitted) for side, fitted in zip(sides, fits, strict=True)
            )
            quality = FitQuality(ks_train, ks_population, p_train, p_population)
            at = None if found.threshold is None else scale.backward(found.threshold)
            return dataclasses.replace(found, threshold=at, fit=quality)
    raise TypeError(f"method={method!r} must be Empirical(...) or Parametric(...).")


def epsilon_star_of_distributions(
    train: Distribution | GaussianMixture,
    population: Distribution | GaussianMixture,
    delta: float,
    *,
    clip: float,
) -> EpsilonStar:
    """Epsilon* of two known distributions of losses: the supremum over all thresholds.

    A grid of thresholds and a search between them give about 8 digits, as long as logcdf and logsf
    of the distributions have them.

    Args:
        train: Distribution of the training losses: a `GaussianMixture`, or any with the methods
            logcdf, logsf, ppf and isf of a frozen one of `scipy.stats`. Both are of one kind.
        population: Distribution of the population's losses.
        delta: Delta in [0, 1).
        clip: Least rate in [0, 1/2) in a denominator.

    Returns:
        The value and where it is attained. For Gaussians it is infinite at delta = 0 and clip = 0,
        unless their tails are the same.

    Raises:
        ValueError: If an argument is out of its range, or delta and clip are both 0 for others than
            Gaussians: then the value is a limit that no threshold attains.
        TypeError: If only one of the distributions is a `GaussianMixture`.

    Example:
        >>> from scipy import stats
        >>> train, population = stats.norm(0, 1), stats.norm(3, 1)
        >>> round(epsilon_star_of_distributions(train, population, 1e-5, clip=1e-3).value, 4)
        6.14

    References:
        Negoescu et al., "Epsilon*: privacy metric for machine learning models", PPAI 2024,
        section 3.1.
    """
    small, least = delta_or_zero(delta), _check_clip(clip)
    if isinstance(train, GaussianMixture) and isinstance(population, GaussianMixture):
        if small == least == 0 and not same_tails(train, population):
            return EpsilonStar(math.inf, None, None, None, None, True, small, least)
        grid = grid_of(train, population)
    elif isinstance(train, GaussianMixture) or isinstance(population, GaussianMixture):
        raise TypeError(
            f"train={train!r} and population={population!r} must both be GaussianMixture or "
            "neither; write the other one as a mixture of one component."
        )
    elif small == least == 0:
        raise ValueError(
            "clip=0 must be > 0 where delta=0: the supremum is then a limit in the tails; pass a "
            "clip such as 1e-6, or a delta > 0."
        )
    else:
        exact = [level for level in (small, least) if level > 0]
        levels = np.concatenate([np.logspace(-300, -20, 200), np.logspace(-20, -0.30103, 600)])
        grid = quantile_grid(train, population, np.concatenate([levels, exact]))
    return supremum(_log_rates(train, population), grid, small, least)


def epsilon_star_null(
    losses_train: ArrayLike,
    losses_population: ArrayLike,
    delta: float,
    method: Method,
    *,
    permutations: int,
    rng: np.random.Generator,
) -> PermutationNull:
    """Compare Epsilon* with its values when the losses are dealt to the sides at random.

    Epsilon* is positive without leakage too; this says by how much. The p-value holds exactly, for
    any sample sizes and either method, if without leakage the losses of both sides are
    exchangeable: single draws from one population, not several of one person on one side, nor a
    population that is another one. A small p-value says that the losses differ, not that a claim of
    privacy is false: private training allows such a difference.

    Args:
        losses_train: Losses of training data, ``[n]``.
        losses_population: Losses of the population, ``[m]``.
        delta: Delta in [0, 1).
        method: `Empirical` or `Parametric`, with its clip.
        permutations: How many, at least 1; 999 make p-values of 0.001 possible.
        rng: Generator of the permutations; it is advanced.

    Returns:
        The value, its p-value and what the permutations gave.

    Raises:
        ValueError: As `epsilon_star`; if ``permutations`` is no whole number >= 1.
        TypeError: If ``rng`` is no `numpy.random.Generator`, or ``method`` none of the classes.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> losses = rng.gamma(5, 1, 2000)
        >>> null = epsilon_star_null(losses[:1000], losses[1000:], 1e-5, Empirical(clip=1e-3),
        ...                          permutations=99, rng=rng)
        >>> null.value > 1, null.p_value > 0.05
        (True, True)

    References:
        Phipson and Smyth, "Permutation p-values should never be zero", Statistical Applications in
        Genetics and Molecular Biology 9, 2010.
    """
    _validate.positive_int("permutations", permutations, "999 are usual")
    if not isinstance(rng, np.random.Generator):
        raise TypeError(f"rng={rng!r} must be a numpy.random.Generator; use default_rng(seed).")
    train, population = _losses(losses_train, losses_population)
    small = delta_or_zero(delta)
    values = np.empty(permutations)
    match method:
        case Empirical():
            ranked = _Ranked.of(train, population)
            value = ranked.best(small, method.clip).value
            for i in range(permutations):
                values[i] = ranked.dealt(rng).best(small, method.clip).value
        case Parametric():
            pooled = np.concatenate([train, population])
            pooled = LogitScale.of(pooled).forward(pooled)
            value = _parametric_value(pooled, len(train), small, method)
            for i in range(permutations):
                values[i] = _parametric_value(rng.permutation(pooled), len(train), small, method)
        case _:
            raise TypeError(f"method={method!r} must be Empirical(...) or Parametric(...).")
    p_value = (1 + int(np.count_nonzero(values >= value))) / (1 + permutations)
    median, quantile = np.quantile(values, [0.5, 0.95]).tolist()
    return PermutationNull(value, p_value, median, quantile, permutations)


@dataclass(frozen=True)
class _Ranked:
    """Losses of both sides in one order, with the place where each group of equal ones ends."""

    is_train: NDArray[np.int8]
    ends: Ints
    thresholds: Floats

    @classmethod
    def of(cls, train: Floats, population: Floats) -> _Ranked:
        pooled = np.concatenate([train, population])
        order = np.argsort(pooled)
        pooled = pooled[order]
        ends = np.flatnonzero(np.append(pooled[1:] != pooled[:-1], True))
        return cls((order < len(train)).astype(np.int8), ends, pooled[ends])

    def dealt(self, rng: np.random.Generator) -> _Ranked:
        return dataclasses.replace(self, is_train=rng.permutation(self.is_train))

    def best(self, delta: float, clip: float) -> EpsilonStar:
        up_to = np.cumsum(self.is_train, dtype=np.int64)
        n, m = int(up_to[-1]), len(up_to) - int(up_to[-1])
        tp = up_to[self.ends]
        fp = self.ends + 1 - tp
        values = ratios(tp, fp, n, m, delta, clip)
        i, at = divmod(int(np.argmax(values)), len(self.ends))
        if values[i, at] <= 1:
            return EpsilonStar(0.0, None, None, None, None, False, delta, clip)
        rates = int(tp[at]) / n, int(fp[at]) / m, (n - int(tp[at])) / n, (m - int(fp[at])) / m
        denominator, size = ((rates[1], m), (rates[2], n), (rates[0], n), (rates[3], m))[i]
        return EpsilonStar(
            value=math.log(values[i, at]),
            threshold=float(self.thresholds[at]),
            fpr=rates[1],
            fnr=rates[2],
            inequality=INEQUALITIES[i],
            at_clip=denominator <= max(clip, 1 / size),
            delta=delta,
            clip=clip,
        )


def _fits(
    train: Floats, population: Floats, components: int
) -> tuple[GaussianMixture, GaussianMixture]:
    return (
        fit("losses_train", train, components),
        fit("losses_population", population, components),
    )


def _parametric_value(pooled: Floats, n: int, delta: float, method: Parametric) -> float:
    fits = _fits(pooled[:n], pooled[n:], method.components)
    return epsilon_star_of_distributions(*fits, delta, clip=method.clip).value


def _log_rates(
    train: Distribution | GaussianMixture, population: Distribution | GaussianMixture
) -> LogRates:
    def rates(at: Floats) -> tuple[Floats, Floats, Floats, Floats]:
        return train.logcdf(at), population.logcdf(at), train.logsf(at), population.logsf(at)

    return rates


def _check_clip(clip: Any) -> float:
    advice = "it is the least error rate that is believed, such as 0.001, or 0 for none"
    if _validate.non_negative("clip", clip, advice) >= 0.5:
        raise ValueError(f"clip={clip!r} must be in [0, 0.5); {advice}")
    return float(clip)


def _losses(train: ArrayLike, population: ArrayLike) -> tuple[Floats, Floats]:
    return _vector("losses_train", train), _vector("losses_population", population)


def _vector(name: str, losses: ArrayLike) -> Floats:
    array = np.asarray(losses, dtype=np.float64)
    if array.ndim != 1:
        raise ValueError(f"{name} has shape {array.shape}, must be [n]; ravel it.")
    if not array.size:
        raise ValueError(f"{name}=[] must hold at least one loss; evaluate the model on some data.")
    if np.any(np.isnan(array)):
        raise ValueError(f"{name} holds nan, must hold numbers; a missing loss is no loss.")
    return array
