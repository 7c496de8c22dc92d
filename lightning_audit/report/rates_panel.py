"""Draws the measured error rates of guessing a step's coins against the claimed curve."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from lightning_audit.report.drawing import BLUE, GREY, INK, SHADE, VIOLATION, log_from_zero
from lightning_audit.results.audit_report import AuditReport, OperatingPoint
from lightning_audit.stats.bounds.intervals import clopper_pearson_lower, clopper_pearson_upper
from lightning_audit.stats.tradeoff.tradeoff_functions import GaussianTradeoff

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_rates"]


class _Region(NamedTuple):
    """Measured error rates, and the rectangle that covers the true ones."""

    fpr: float
    fnr: float
    left: float
    right: float
    bottom: float
    top: float


def draw_rates(axes: Axes, report: AuditReport) -> list[str]:
    """Draw the panel.

    Args:
        axes: the axes to draw on.
        report: the report of the run.

    Returns:
        Notes for the title, for example that there is no claim to draw.
    """
    curve, notes = _claimed_curve(report)
    significance = report.settings.get("bound_significance", 0.05)
    regions = list(_regions(report.operating_points, significance))
    if not regions:
        notes.append("no error rates were measured")
    alpha = np.concatenate(([0.0], special.ndtr(np.linspace(-38.0, 8.0, 600)), [1.0]))
    axes.plot(alpha, 1.0 - alpha, color=GREY, linewidth=1.0, linestyle=":", label="guessing")
    if curve is not None:
        _draw_claim(axes, curve, alpha)
    _draw_regions(axes, regions, curve, significance)
    _scale_rates(axes, regions, curve)
    axes.set_xlabel("false positive rate")
    axes.set_ylabel("false negative rate")
    return notes


def _claimed_curve(report: AuditReport) -> tuple[GaussianTradeoff | None, list[str]]:
    if not report.history:
        return None, ["no step was audited"]
    sigma = min(phase[0] for phase in report.history)
    if not sigma > 0:
        return None, ["a step has noise_multiplier 0: it claims no privacy"]
    return GaussianTradeoff(1.0 / sigma), []


def _regions(points: Sequence[OperatingPoint], significance: float) -> Iterator[_Region]:
    """Yield points with their rectangles, if both rates have at least one trial."""
    share = significance / 4.0
    for point in points:
        out, inside = point.fp + point.tn, point.fn + point.tp
        if out and inside:
            yield _Region(
                point.fp / out,
                point.fn / inside,
                float(clopper_pearson_lower(point.fp, out, share)),
                float(clopper_pearson_upper(point.fp, out, share)),
                float(clopper_pearson_lower(point.fn, inside, share)),
                float(clopper_pearson_upper(point.fn, inside, share)),
            )


def _is_forbidden(region: _Region, curve: GaussianTradeoff | None) -> bool:
    """Return whether a region is entirely below the curve, or above that of inverted guesses."""
    if curve is None:
        return False
    inverted = 1.0 - curve(1.0 - region.left)
    return bool(region.top < curve(region.right) or region.bottom > inverted)


def _draw_claim(axes: Axes, curve: GaussianTradeoff, alpha: NDArray[np.float64]) -> None:
    beta = curve(alpha)
    label = f"claimed: {curve.mu:.3g}-GDP"
    axes.plot(alpha, beta, color=INK, linewidth=1.8, label=label, zorder=3)
    shade: dict[str, Any] = {"color": SHADE, "linewidth": 0, "zorder": 0.6}
    axes.fill_between(alpha, 0.0, beta, label="forbidden by the claim", **shade)
    axes.fill_between(1.0 - alpha, 1.0 - beta, 1.0, **shade)


def _draw_regions(
    axes: Axes, regions: Sequence[_Region], curve: GaussianTradeoff | None, significance: float
) -> None:
    from matplotlib.patches import Rectangle

    labels = {
        False: (f"measured, {100.0 * (1.0 - significance):.4g} % region", BLUE, "o", "-"),
        True: ("measured, outside the claim", VIOLATION, "X", "--"),
    }
    for bad, (label, colour, marker, dashes) in labels.items():
        chosen = [region for region in regions if _is_forbidden(region, curve) == bad]
        for r in chosen:
            box = Rectangle((r.left, r.bottom), r.right - r.left, r.top - r.bottom, zorder=4)
            box.set(facecolor=(colour, 0.15), edgecolor=colour, linestyle=dashes, clip_on=False)
            axes.add_patch(box)
        if chosen:
            x, y = [r.fpr for r in chosen], [r.fnr for r in chosen]
            style: dict[str, Any] = {"marker": marker, "color": colour, "linestyle": "none"}
            axes.plot(x, y, **style, markersize=6, label=label, zorder=5, clip_on=False)


def _scale_rates(axes: Axes, regions: Sequence[_Region], curve: GaussianTradeoff | None) -> None:
    """Scale the axes logarithmically if the curve or a region is close to zero error rates."""
    corners = [max(region.right, region.top) for region in regions]
    if curve is not None:
        corners.append(float(special.ndtr(-curve.mu / 2.0)))  # where both rates are equal
    closest = max(min(corners, default=1.0), 1e-6)
    if closest < 0.05:
        log_from_zero(axes, "xy", closest, 1.0)
    axes.set_xlim(0.0, 1.0)
    axes.set_ylim(0.0, 1.0)
