"""Draws power against observations: how long an audit must run to detect a violation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lightning_audit.report.drawing import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PINK,
    blank_figure,
    plain_axes,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["PowerCurve", "power_figure"]

_STYLES = (("-", BLUE), ("-", GREEN), ("--", ORANGE), ("--", PINK), ("--", GREY))


@dataclass(frozen=True)
class PowerCurve:
    """Power of one test over the number of observations.

    Args:
        name: name of the test.
        observations: increasing numbers > 0.
        power: probability of a flag at each of them.
    """

    name: str
    observations: Sequence[float]
    power: Sequence[float]


def power_figure(curves: Sequence[PowerCurve], target: float, title: str) -> Figure:
    """Draw the power of several tests, and the required power.

    Args:
        curves: at most five curves.
        target: the required power, in (0, 1).
        title: title of the figure: the violation.

    Returns:
        The figure, 800 x 500 pixels, on an Agg canvas.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: there are more than five curves.
    """
    if len(curves) > len(_STYLES):
        raise ValueError(f"curves are {len(curves)}, must be at most {len(_STYLES)}.")
    drawn = blank_figure((8.0, 5.0))
    axes = drawn.subplots()
    plain_axes(axes)
    for curve, (dashes, colour) in zip(curves, _STYLES, strict=False):
        axes.plot(curve.observations, curve.power, dashes, color=colour, label=curve.name)
    axes.axhline(target, color=INK, linewidth=0.8)
    axes.set_xscale("log")
    axes.set_ylim(-0.02, 1.02)
    axes.set_xlabel("canary readings")
    axes.set_ylabel("power")
    axes.set_title(title, color=INK, fontsize=11)
    axes.legend(frameon=False, fontsize=9, labelcolor=INK, loc="upper left")
    return drawn
