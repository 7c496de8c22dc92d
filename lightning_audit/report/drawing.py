"""What the panels of a figure share: colours, and an axis that is logarithmic down to zero.

The colours are the Okabe-Ito palette, darkened where it is read as text: colour-blind readers tell
them apart; where there is no colour at all, markers and dashes do.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from lightning_audit.files.printable import visible

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["blank_figure", "log_from_zero", "plain", "plain_axes"]

BLUE, GREEN, VIOLATION = "#0072B2", "#007A5A", "#C44601"
INK, GREY, SHADE, GRID = "#222222", "#6E6E6E", "#DCDCDC", "#E3E3E3"
#: For many thin lines.
ORANGE, AMBER, TEAL, PINK = "#D55E00", "#E69F00", "#009E73", "#CC79A7"


def blank_figure(inches: tuple[float, float], dpi: int = 100) -> Figure:
    """A white figure of no window and no state of pyplot.

    Raises:
        ImportError: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
    except ImportError as error:
        raise ImportError(
            'drawing a report needs matplotlib; pip install "lightning-audit[report]"'
        ) from error
    layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1)
    drawn = Figure(figsize=inches, dpi=dpi, facecolor="white", layout=layout)
    FigureCanvasAgg(drawn)
    return drawn


def plain(text: str) -> str:
    """Text of a report in a picture: none of it is a formula, an escape, or left out.

    Matplotlib takes what stands between two dollars for a formula, and a label that begins with an
    underscore for none.
    """
    shown = visible(text).replace("$", r"\$")
    return f" {shown}" if shown.startswith("_") else shown


def plain_axes(axes: Axes) -> None:
    """Dark on white, whatever style the user has set for the figures of the training."""
    axes.set_facecolor("white")
    axes.grid(True, color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, labelsize=9)
    axes.xaxis.label.set_color(INK)
    axes.yaxis.label.set_color(INK)
    for spine in axes.spines.values():
        spine.set_color(INK)


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
