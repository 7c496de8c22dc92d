"""Draws the measured error rates of guessing a step's coins against the claimed curve."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from lightning_audit.report.drawing import BLUE, GREY, INK, SHADE, VIOLATION, log_from_zero
from lightning_audit.report.rate_regions import (
    RateRegion,
    claimed_curve,
    is_forbidden,
    rate_regions,
)
from lightning_audit.results.audit_report import AuditReport
from lightning_audit.stats.tradeoff.tradeoff_functions import GaussianTradeoff

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_rates"]


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
    significance = report.settings.get("bound_significance", 0.05)
    regions = list(rate_regions(report.operating_points, significance))
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


def _draw_claim(axes: Axes, curve: GaussianTradeoff, alpha: NDArray[np.float64]) -> None:
    beta = curve(alpha)
    label = f"claimed: {curve.mu:.3g}-GDP"
    axes.plot(alpha, beta, color=INK, linewidth=1.8, label=label, zorder=3)
    shade: dict[str, Any] = {"color": SHADE, "linewidth": 0, "zorder": 0.6}
    axes.fill_between(alpha, 0.0, beta, label="forbidden by the claim", **shade)
    axes.fill_between(1.0 - alpha, 1.0 - beta, 1.0, **shade)


def _draw_regions(
    axes: Axes, regions: Sequence[RateRegion], curve: GaussianTradeoff | None, significance: float
) -> None:
    from matplotlib.patches import Rectangle

    labels = {
        False: (f"measured, {100.0 * (1.0 - significance):.4g} % region", BLUE, "o", "-"),
        True: ("measured, outside the claim", VIOLATION, "X", "--"),
    }
    for bad, (label, colour, marker, dashes) in labels.items():
        chosen = [region for region in regions if is_forbidden(region, curve) == bad]
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
