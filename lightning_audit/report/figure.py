"""Draws a report: the measured error rates of one step, epsilon over the run, power.

**Shared parts of a figure's panels: colors, and an axis that is logarithmic down to zero.** The
colors are the Okabe-Ito palette, darkened for text, which color-blind readers can distinguish.
Markers and dashes distinguish the lines without color.
"""

from __future__ import annotations

import math
import os
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from lightning_audit.files import replacing, visible, with_extra
from lightning_audit.results.audit_report import (
    AuditReport,
    Verdict,
    first_of,
    outcome_in_words,
)
from lightning_audit.stats.binomial import clopper_pearson_lower, clopper_pearson_upper
from lightning_audit.stats.tradeoff import GaussianTradeoff

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# --- Shared parts of a figure's panels: colors, and an axis that is logarithmic down to zero.

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
        raise ImportError(f"drawing a report needs matplotlib; {with_extra('report')}") from error
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
    for axis in directions:
        getattr(axes, f"set_{axis}scale")("asinh", linear_width=10.0**lowest)
        place = getattr(axes, f"set_{axis}ticks")
        place(ticks, labels)
        place([], minor=True)


# --- Measured error rates of guessing a step's coins, with their regions, and the claimed curve.


class RateRegion(NamedTuple):
    """Measured error rates, and the rectangle that covers the true ones.

    Args:
        threshold: a reading above it is guessed "in".
        fpr: rate of false positives.
        fnr: rate of false negatives.
        left: lower limit of the false positive rate.
        right: upper limit of the false positive rate.
        bottom: lower limit of the false negative rate.
        top: upper limit of the false negative rate.
        outside: whether it is entirely below the claimed curve, or above that of inverted guesses.
    """

    threshold: float
    fpr: float
    fnr: float
    left: float
    right: float
    bottom: float
    top: float
    outside: bool


def claimed_curve(report: AuditReport) -> tuple[GaussianTradeoff | None, str]:
    """Return the trade-off function of the step with the least noise, and why there is none."""
    if not report.history:
        return None, "no step was audited"
    sigma = min(phase[0] for phase in report.history)
    if not sigma > 0:
        return None, "a step has noise_multiplier 0: it claims no privacy"
    return GaussianTradeoff(1.0 / sigma), ""


def rate_regions(report: AuditReport, curve: GaussianTradeoff | None) -> list[RateRegion]:
    """Return the points of a report with their rectangles, if both rates have a trial.

    A rectangle misses the true rates with probability ``bound_significance``, at most.
    """
    share = report.settings.get("bound_significance", 0.05) / 4.0
    regions = []
    for point in report.operating_points:
        out, inside = point.fp + point.tn, point.fn + point.tp
        if out and inside:
            fpr, fnr = (point.fp, out), (point.fn, inside)
            left, bottom = (float(clopper_pearson_lower(*of, share)) for of in (fpr, fnr))
            right, top = (float(clopper_pearson_upper(*of, share)) for of in (fpr, fnr))
            outside = curve is not None and is_forbidden(left, right, bottom, top, curve)
            rates = point.fp / out, point.fn / inside
            regions.append(RateRegion(point.threshold, *rates, left, right, bottom, top, outside))
    return regions


def is_forbidden(
    left: float, right: float, bottom: float, top: float, curve: GaussianTradeoff
) -> bool:
    """Return whether a region is entirely below the curve, or above that of inverted guesses."""
    return bool(top < curve(right) or bottom > 1.0 - curve(1.0 - left))


# --- Draws the measured error rates of guessing a step's coins against the claimed curve.


def draw_rates(axes: Axes, report: AuditReport) -> list[str]:
    """Draw the panel.

    Args:
        axes: the axes to draw on.
        report: the report of the run.

    Returns:
        Notes for the title, for example that there is no claim to draw.
    """
    curve, lack = claimed_curve(report)
    notes = [lack] if lack else []
    regions = rate_regions(report, curve)
    if not regions:
        notes.append("no error rates were measured")
    alpha = np.concatenate(([0.0], special.ndtr(np.linspace(-38.0, 8.0, 600)), [1.0]))
    axes.plot(alpha, 1.0 - alpha, color=GREY, linewidth=1.0, linestyle=":", label="guessing")
    if curve is not None:
        _draw_claim(axes, curve, alpha)
    sure = 1.0 - report.settings.get("bound_significance", 0.05)
    _draw_regions(axes, regions, f"measured, {100.0 * sure:.4g} % region")
    _scale_rates(axes, regions, curve)
    axes.set_xlabel("false positive rate")
    axes.set_ylabel("false negative rate")
    return notes


def _draw_claim(axes: Axes, curve: GaussianTradeoff, alpha: NDArray[np.float64]) -> None:
    beta = curve(alpha)
    label = f"claimed: {curve.mu:.3g}-GDP"
    axes.plot(alpha, beta, color=INK, linewidth=1.8, label=label, zorder=3)
    shade: dict[str, Any] = {"color": SHADE, "linewidth": 0, "zorder": 0.6}
    axes.fill_between(alpha, 0.0, beta, label="forbidden by the claim", **shade)
    axes.fill_between(1.0 - alpha, 1.0 - beta, 1.0, **shade)


def _draw_regions(axes: Axes, regions: Sequence[RateRegion], measured: str) -> None:
    from matplotlib.patches import Rectangle

    styles = (measured, BLUE, "o", "-"), ("measured, outside the claim", VIOLATION, "X", "--")
    for outside, (label, colour, marker, dashes) in enumerate(styles):
        chosen = [region for region in regions if region.outside == outside]
        for r in chosen:
            box = Rectangle((r.left, r.bottom), r.right - r.left, r.top - r.bottom, zorder=4)
            box.set(facecolor=(colour, 0.15), edgecolor=colour, linestyle=dashes, clip_on=False)
            axes.add_patch(box)
        if chosen:
            x, y = [r.fpr for r in chosen], [r.fnr for r in chosen]
            style: dict[str, Any] = {"marker": marker, "color": colour, "linestyle": "none"}
            axes.plot(x, y, **style, markersize=6, label=label, zorder=5, clip_on=False)


def _scale_rates(axes: Axes, regions: Sequence[RateRegion], curve: GaussianTradeoff | None) -> None:
    """Scale the axes logarithmically if the curve or a region is close to zero error rates."""
    corners = [max(region.right, region.top) for region in regions]
    if curve is not None:
        corners.append(float(special.ndtr(-curve.mu / 2.0)))  # where both rates are equal
    closest = max(min(corners, default=1.0), 1e-6)
    if closest < 0.05:
        log_from_zero(axes, "xy", closest, 1.0)
    axes.set_xlim(0.0, 1.0)
    axes.set_ylim(0.0, 1.0)


# --- Epsilon over the run: proved, spent and claimed.

#: The single-look bounds, by their logged names: label, color, dashes, marker.
_METHOD_STYLES: Mapping[str, tuple[str, str, str, str]] = {
    "fdp_cp": ("f-DP, Clopper-Pearson", ORANGE, "-", "s"),
    "fdp_pooled_cp": ("f-DP, CP pooled", AMBER, "-", "^"),
    "fdp_bayes": ("f-DP, Bayes", TEAL, "-", "v"),
    "fdp_t": ("f-DP, t", PINK, "-", "D"),
    "eps_cp": ("eps, Clopper-Pearson", ORANGE, "--", "P"),
    "eps_jeffreys": ("eps, Jeffreys", AMBER, "--", "<"),
    "eps_bayes": ("eps, Bayes", TEAL, "--", ">"),
    "katz": ("eps, Katz", PINK, ":", "X"),
    "mu": ("signal over noise", BLUE, ":", "p"),
}
_OTHER = (GREY, "-.", "*")
_PREFIX = "epsilon_lower/"


#: The known numbers of a line of the right panel, each with its place.
_Series = list[tuple[float, float]]


def draw_epsilon(axes: Axes, report: AuditReport) -> list[str]:
    """Draw the panel.

    Args:
        axes: the axes to draw on.
        report: the report of the run.

    Returns:
        Notes for the title, for example that no epsilon was claimed.
    """
    unit, at = _positions(report.epochs)
    names = [name for name in _names(report.epochs) if name.startswith(_PREFIX)]
    series = {
        name: _series(report.epochs, at, name)
        for name in ("epsilon_lower", "epsilon_spent", *names)
    }
    thick: dict[str, Any] = {"linewidth": 3.0, "markersize": 7, "zorder": 5}
    _draw_series(axes, series["epsilon_lower"], "proved, anytime", BLUE, "-", "o", **thick)
    claim = report.claimed_epsilon
    if claim is not None and math.isfinite(claim):
        label = "claimed" if report.claim_holds else "claimed, not known to hold"
        axes.axhline(claim, color=INK, linewidth=1.8, linestyle=(0, (6, 3)), label=label)
    _draw_series(axes, series["epsilon_spent"], "spent", GREY, "-.", "d", linewidth=1.8)
    for key in names:
        name = key.removeprefix(_PREFIX)
        look = _METHOD_STYLES.get(name, (plain(name), *_OTHER))
        _draw_series(axes, series[key], *look, linewidth=1.0)
    _scale_epsilon(axes, list(series.values()), claim)
    if report.epochs:
        axes.locator_params(axis="x", integer=True)
    else:
        axes.set_xticks([])
    axes.set_xlabel(unit)
    axes.set_ylabel(f"epsilon at delta {report.delta:g}{report.of_items}")
    return list(_notes(report))


def _positions(rows: Sequence[Mapping[str, float]]) -> tuple[str, list[float]]:
    """Return the x axis: steps, or epochs if an old report has no steps, else row numbers."""
    for unit in ("step", "epoch"):
        if rows and all(row.get(unit) is not None for row in rows):
            return unit, [float(row[unit]) for row in rows]
    return "epoch", [float(i) for i in range(len(rows))]


def _names(rows: Sequence[Mapping[str, float]]) -> list[str]:
    """Return all logged names, the literature's bounds in their usual order first."""
    known = [_PREFIX + name for name in _METHOD_STYLES]
    logged = {name for row in rows for name in row}
    return [name for name in known if name in logged] + sorted(logged.difference(known))


def _series(rows: Sequence[Mapping[str, float]], at: Sequence[float], name: str) -> _Series:
    """Return one line without missing and infinite numbers."""
    pairs = [(x, row.get(name)) for x, row in zip(at, rows, strict=True)]
    return [(x, float(y)) for x, y in pairs if y is not None and math.isfinite(y)]


def _draw_series(
    axes: Axes, series: _Series, label: str, colour: str, dashes: str, marker: str, **more: Any
) -> None:
    if series:
        look = {"label": label, "color": colour, "linestyle": dashes, "marker": marker}
        usual = {"markersize": 5, "markevery": max(1, len(series) // 8), "clip_on": False}
        axes.plot(*zip(*series, strict=True), **{**usual, **look, **more})


def _scale_epsilon(axes: Axes, drawn: Sequence[_Series], claim: float | None) -> None:
    """Scale the y axis from zero, logarithmically if the final values differ by a factor of 20."""
    final = [series[-1][1] for series in drawn if series]
    highest = [max(y for _, y in series) for series in drawn if series]
    if claim is not None and math.isfinite(claim):
        final.append(claim)
        highest.append(claim)
    if not highest:
        axes.set_yticks([])
    top = max(highest, default=1.0) or 1.0
    positive = [value for value in final if value > 0]
    if positive and top > 20.0 * min(positive):
        log_from_zero(axes, "y", max(min(positive), 1e-4 * top), 1.5 * top)
        top *= 1.5
    axes.set_ylim(0.0, 1.08 * top)


def _notes(report: AuditReport) -> Iterator[str]:
    if not report.epochs:
        yield "no epoch was logged"
    if report.claimed_epsilon is None:
        yield "no epsilon was claimed"
    elif not math.isfinite(report.claimed_epsilon):
        yield "the claimed epsilon is infinite"
    if report.epsilon_spent is not None and not math.isfinite(report.epsilon_spent):
        yield "the epsilon spent is infinite"


# --- Draws a report: the measured error rates of one step, and epsilon over the run.

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
    also = f"; also {first_of(further, 2)}" if further else ""
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
