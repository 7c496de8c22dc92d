"""Distribution of Epsilon* without leakage, over random permutations."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from lightning_audit import _validate
from lightning_audit.stats._arguments import Floats, delta_or_zero
from lightning_audit.stats.membership._loss_fit import LogitScale, fit_both
from lightning_audit.stats.membership._ranked_losses import RankedLosses, sorted_losses
from lightning_audit.stats.membership.epsilon_star import (
    Empirical,
    Method,
    Parametric,
    epsilon_star_of_distributions,
)

__all__ = ["PermutationNull", "epsilon_star_null"]


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
    train = sorted_losses("losses_train", losses_train)
    population = sorted_losses("losses_population", losses_population)
    small = delta_or_zero(delta)
    match method:
        case Empirical():
            value, dealt = _empirical(train, population, small, method, rng)
        case Parametric():
            value, dealt = _parametric(train, population, small, method, rng)
        case _:
            raise TypeError(f"method={method!r} must be Empirical(...) or Parametric(...).")
    values = np.array([dealt() for _ in range(permutations)])
    # The same sides in another order may differ by a rounding error.
    as_large = int(np.count_nonzero(values >= value * (1 - 1e-9)))
    median, high = np.quantile(values, [0.5, 0.95], method="higher").tolist()
    return PermutationNull(value, (1 + as_large) / (1 + permutations), median, high, permutations)


def _empirical(
    train: Floats, population: Floats, delta: float, method: Empirical, rng: np.random.Generator
) -> tuple[float, Callable[[], float]]:
    """Return the value, and a function that returns that of randomly assigned sides."""
    ranked = RankedLosses.of(train, population)
    value = ranked.epsilon_star(delta, method.clip).value
    return value, lambda: ranked.dealt(rng).epsilon_star(delta, method.clip).value


def _parametric(
    train: Floats, population: Floats, delta: float, method: Parametric, rng: np.random.Generator
) -> tuple[float, Callable[[], float]]:
    pooled = np.concatenate([train, population])
    pooled = LogitScale.of(pooled).forward(pooled)

    def value_of(losses: Floats) -> float:
        fits = fit_both(losses[: len(train)], losses[len(train) :], method.components)
        return epsilon_star_of_distributions(*fits, delta, clip=method.clip).value

    def dealt() -> float:
        try:
            return value_of(rng.permutation(pooled))
        except ValueError:
            # A side of equal losses has no fit. Counted as the largest, the p-value stays valid.
            return math.inf

    return value_of(pooled), dealt
