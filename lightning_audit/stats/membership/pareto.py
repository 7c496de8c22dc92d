"""Pareto front of several models: those that no other model beats."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lightning_audit._validate import shown
from lightning_audit.stats._arguments import Floats
from lightning_audit.stats.tradeoff.piecewise import hull_of_few

__all__ = ["pareto_front"]


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
