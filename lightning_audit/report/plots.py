"""Draws a report: the measured error rates of one step, and epsilon over the run."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_audit.files.replacing import replacing
from lightning_audit.report.drawing import (
    GREEN,
    GREY,
    INK,
    VIOLATION,
    blank_figure,
    plain,
    plain_axes,
)
from lightning_audit.report.epsilon_panel import draw_epsilon
from lightning_audit.report.rates_panel import draw_rates
from lightning_audit.results.audit_report import AuditReport, Verdict
from lightning_audit.results.verdict import outcome_in_words

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["figure", "save_drawn", "save_figure"]

_TITLE_COLOURS = {"PASS": GREEN, "VIOLATION": VIOLATION, "INCONCLUSIVE": GREY}
_FORMATS = (".png", ".svg", ".pdf")
_INCHES, _DPI = (12.0, 5.0), 100


def figure(report: AuditReport) -> Figure:
    """Draw a report.

    Left: the trade-off curve that one step claims (for the smallest noise multiplier of the run),
    the region that it excludes, and the measured false positive and false negative rates. A point's
    rectangle covers its true rates with probability 1 - ``bound_significance``: four
    Clopper-Pearson limits at a quarter each, for one look at one point. The rectangles are only an
    illustration; the checks decide the verdict. Right: epsilon over the run, proved at all times
    (thick), by the bounds of the literature (thin), spent, and claimed.

    The figure has no window and does not use pyplot's state.

    Args:
        report: the report; an unfinished run, or one without epochs, is drawn as far as it goes.

    Returns:
        The figure, 1200 x 500 pixels, on an Agg canvas.

    Raises:
        ImportError: matplotlib is not installed.
    """
    drawn = blank_figure(_INCHES, _DPI)
    left, right = drawn.subplots(1, 2, width_ratios=(1.0, 1.5))
    for axes in (left, right):
        plain_axes(axes)
    _finish(left, "Error rates of one step", draw_rates(left, report), columns=2)
    _finish(right, "Epsilon of the run", draw_epsilon(right, report), columns=4)
    drawn.suptitle(
        _title(report.verdict, report.complete),
        color=_TITLE_COLOURS[report.verdict.outcome],
        fontsize=15,
        fontweight="bold",
    )
    return drawn


def save_figure(report: AuditReport, path: str | os.PathLike[str]) -> Path:
    """Write the figure atomically: a reader sees the old file or the complete new one.

    Args:
        report: the report to draw.
        path: the file; its suffix, .png, .svg or .pdf, determines the format.

    Returns:
        The path.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: the suffix is another one.
    """
    return save_drawn(figure(report), path)


def save_drawn(drawn: Figure, path: str | os.PathLike[str]) -> Path:
    """Write a figure that is drawn already; see `save_figure`."""
    target = Path(path)
    suffix = target.suffix.lower()
    if suffix not in _FORMATS:
        raise ValueError(f"path={os.fspath(path)!r} must end in one of {', '.join(_FORMATS)}.")
    with replacing(target) as file:
        drawn.savefig(file, format=suffix[1:], dpi=_DPI)
    return target


def _title(verdict: Verdict, complete: bool) -> str:
    return f"{outcome_in_words(verdict)}{_findings(verdict)}" + (
        "" if complete else ", training not finished"
    )


def _findings(verdict: Verdict) -> str:
    """Return the root's finding, and at most two further ones."""
    if verdict.root is None:
        return ""
    further = list(dict.fromkeys(plain(fault.finding) for fault in verdict.further))
    more = f" and {len(further) - 2} more" if len(further) > 2 else ""
    also = f"; also {', '.join(further[:2])}{more}" if further else ""
    return f": {plain(verdict.root.finding)}{also}"


def _finish(axes: Axes, title: str, notes: Sequence[str], columns: int) -> None:
    """Put title and notes above the panel and the legend below it, so that they hide nothing."""
    lines = textwrap.wrap("; ".join(notes), 55)
    axes.set_title("\n".join([title, *lines]), color=INK, fontsize=11)
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        axes.legend(
            handles,
            labels,
            loc="upper center",
            bbox_to_anchor=(0.5, -0.14),
            ncols=columns,
            fontsize=9,
            frameon=False,
            labelcolor=INK,
            handlelength=2.2,
            columnspacing=1.0,
        )
