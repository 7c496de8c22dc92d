"""Draws several models: their Epsilon* against their utility."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from lightning_audit.report.drawing import (
    BLUE,
    GREY,
    INK,
    ORANGE,
    PINK,
    TEAL,
    blank_figure,
    plain_axes,
)
from lightning_audit.stats.membership.pareto import pareto_front

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Model", "privacy_utility_figure"]

Floats = NDArray[np.float64]

_COLOURS = (BLUE, ORANGE, TEAL, PINK, GREY)
_MARKERS = ("o", "s", "^", "D", "v")


@dataclass(frozen=True)
class Model:
    """One model, or the mean of several of one kind.

    Args:
        epsilon_star: its Epsilon*; for all models at the same delta, clip and number of losses.
        utility: its utility, such as an accuracy; larger is better.
        group: label shared with other models, such as "DP" or "no DP".
        name: text next to its marker; "" for none.
        spread: smallest and largest Epsilon* if it is a mean; None for one model.
    """

    epsilon_star: float
    utility: float
    group: str = ""
    name: str = ""
    spread: tuple[float, float] | None = None


def privacy_utility_figure(models: Sequence[Model], utility_label: str = "utility") -> Figure:
    """Draw models by Epsilon* and utility, with the Pareto front and the groups' densities.

    The line is the published front: no mixture of two models has a higher utility at a smaller
    Epsilon*. Rings mark models that no other model dominates. Epsilon* is not a bound: the front
    compares these models with one another, on these records.

    Args:
        models: at least one, of at most five groups.
        utility_label: label of the utility axis.

    Returns:
        The figure, 800 x 600 pixels, on an Agg canvas without a window.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: there is no model, a number is not finite, or there are too many groups.

    References:
        Negoescu et al., "Epsilon*: privacy metric for machine learning models", PPAI 2024,
        figures 1 and 2.
    """
    cost = np.array([model.epsilon_star for model in models])
    utility = np.array([model.utility for model in models])
    convex = pareto_front(cost, utility, convex=True)
    groups = list(dict.fromkeys(model.group for model in models))
    if len(groups) > len(_COLOURS):
        raise ValueError(f"models have {len(groups)} groups, must have at most {len(_COLOURS)}.")
    drawn = blank_figure((8.0, 6.0))
    grid = drawn.subplots(2, 2, width_ratios=(4, 1), height_ratios=(1, 4))
    (top, corner), (main, right) = grid
    corner.set_axis_off()
    plain_axes(main)
    for group, colour, marker in zip(groups, _COLOURS, _MARKERS, strict=False):
        own = np.array([model.group == group for model in models])
        spread = np.array([m.spread or (m.epsilon_star,) * 2 for m in models if m.group == group])
        bars = np.abs(spread.T - cost[own])
        main.errorbar(
            cost[own], utility[own], xerr=bars, fmt=marker, color=colour, label=group or None
        )
        _density(top, cost[own], colour, upright=True)
        _density(right, utility[own], colour, upright=False)
    main.plot(cost[convex], utility[convex], color=INK, linewidth=1.2, label="Pareto front")
    plain = pareto_front(cost, utility)
    main.plot(cost[plain], utility[plain], "o", ms=13, mfc="none", mec=INK, label="not beaten")
    for model in models:
        at = (model.epsilon_star, model.utility)
        main.annotate(model.name, at, xytext=(8, -10), textcoords="offset points", fontsize=8)
    top.set_xlim(main.get_xlim())
    right.set_ylim(main.get_ylim())
    main.set_xlabel("Epsilon* of the model (not a bound)")
    main.set_ylabel(utility_label)
    main.legend(loc="lower right", fontsize=9, frameon=False, labelcolor=INK)
    return drawn


def _density(axes: Axes, values: Floats, colour: str, *, upright: bool) -> None:
    """Draw the kernel density of a group, or its values if fewer than 3 are distinct."""
    axes.set_axis_off()
    if np.unique(values).size < 3:
        for value in values.tolist():
            if upright:
                axes.axvline(value, ymax=0.1, color=colour)
            else:
                axes.axhline(value, xmax=0.1, color=colour)
        return
    margin = np.ptp(values)
    points = np.linspace(values.min() - margin, values.max() + margin, 200)
    density = stats.gaussian_kde(values)(points)
    axes.plot(*((points, density) if upright else (density, points)), color=colour)
