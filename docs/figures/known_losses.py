"""Epsilon* of two distributions of losses that are known, such as those of `scipy.stats`."""

from __future__ import annotations

from typing import Any

import numpy as np

from lightning_audit.stats.epsilon_star import EpsilonStar, rates_of, supremum

#: Levels at whose quantiles, of both tails, thresholds are tried.
LEVELS = np.concatenate([np.logspace(-300, -20, 200), np.logspace(-20, -0.30103, 600)])


def known_epsilon_star(train: Any, population: Any, delta: float, *, clip: float) -> EpsilonStar:
    """Return the supremum over all thresholds; ``delta`` or ``clip`` must be > 0.

    Args:
        train: frozen distribution of the training losses.
        population: that of the population's losses.
        delta: delta of Epsilon*.
        clip: least rate in a denominator.
    """
    levels = np.concatenate([LEVELS, [level for level in (delta, clip) if level > 0]])
    ends = [of(levels) for each in (train, population) for of in (each.ppf, each.isf)]
    grid = np.unique(np.concatenate(ends))
    return supremum(rates_of(train, population), grid[np.isfinite(grid)], delta, clip)
