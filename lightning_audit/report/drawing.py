"""What the panels of a figure share: colours, and an axis that is logarithmic down to zero.

The colours are the Okabe-Ito palette, darkened where it is read as text: colour-blind readers tell
them apart; where there is no colour at all, markers and dashes do.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["log_from_zero"]

BLUE, GREEN, VIOLATION = "#0072B2", "#007A5A", "#C44601"
INK, GREY, SHADE, GRID = "#222222", "#6E6E6E", "#DCDCDC", "#E3E3E3"
#: For many thin lines.
ORANGE, AMBER, TEAL, PINK = "#D55E00", "#E69F00", "#009E73", "#CC79A7"


def log_from_zero(axes: Axes, directions: str, smallest: float, top: float) -> None:
    """Make axes logarithmic above a number and linear below it, so that zero is still there.

    The scale is the inverse hyperbolic sine: unlike "symlog" it puts no kink into a smooth curve.

    Args:
        axes: whose.
        directions: "x", "y" or "xy".
        smallest: what must be told apart from zero, > 0.
        top: the largest number shown.
    """
    lowest, highest = math.floor(math.log10(smallest)), math.floor(math.log10(top))
    powers = range(lowest, highest + 1)
    ticks = [0.0, *(10.0**power for power in powers)]
    labels = ["0", *(f"{10.0**p:g}" if -3 <= p <= 3 else f"1e{p}" for p in powers)]
    if "x" in directions:
        axes.set_xscale("asinh", linear_width=10.0**lowest)
        axes.set_xticks(ticks, labels)
        axes.set_xticks([], minor=True)
    if "y" in directions:
        axes.set_yscale("asinh", linear_width=10.0**lowest)
        axes.set_yticks(ticks, labels)
        axes.set_yticks([], minor=True)
