"""Shared parts of a figure's panels: colors, and an axis that is logarithmic down to zero.

The colors are the Okabe-Ito palette, darkened for text, which color-blind readers can distinguish.
Markers and dashes distinguish the lines without color.
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
    """Return a white figure without a window and without pyplot's state.

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
    """Escape text of a report so that matplotlib draws it literally.

    Matplotlib interprets text between two dollar signs as a formula, and ignores a label that
    starts with an underscore.
    """
    shown = visible(text).replace("$", r"\$")
    return f" {shown}" if shown.startswith("_") else shown


def plain_axes(axes: Axes) -> None:
    """Style axes dark on white, regardless of the user's matplotlib style."""
    axes.set_facecolor("white")
    axes.grid(True, color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, labelsize=9)
    axes.xaxis.label.set_color(INK)
    axes.yaxis.label.set_color(INK)
    for spine in axes.spines.values():
        spine.set_color(INK)


def log_from_zero(axes: Axes, directions: str, smallest: float, top: float) -> None:
    """Make axes logarithmic above a number and linear below it, so that they include zero.

    The scale is the inverse hyperbolic sine: unlike "symlog" it keeps a smooth curve smooth.

    Args:
        axes: the axes.
        directions: "x", "y" or "xy".
        smallest: smallest number that must be distinguishable from zero, > 0.
        top: largest number shown.
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
