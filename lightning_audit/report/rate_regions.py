"""Measured error rates of guessing a step's coins, with their regions, and the claimed curve."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from lightning_audit.results.audit_report import AuditReport, OperatingPoint
from lightning_audit.stats.bounds.intervals import clopper_pearson_lower, clopper_pearson_upper
from lightning_audit.stats.tradeoff.tradeoff_functions import GaussianTradeoff

__all__ = ["RateRegion", "claimed_curve", "is_forbidden", "rate_regions"]


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
    """

    threshold: float
    fpr: float
    fnr: float
    left: float
    right: float
    bottom: float
    top: float


def claimed_curve(report: AuditReport) -> tuple[GaussianTradeoff | None, str]:
    """Return the trade-off function of the step with the least noise, and why there is none."""
    if not report.history:
        return None, "no step was audited"
    sigma = min(phase[0] for phase in report.history)
    if not sigma > 0:
        return None, "a step has noise_multiplier 0: it claims no privacy"
    return GaussianTradeoff(1.0 / sigma), ""


def rate_regions(points: Sequence[OperatingPoint], significance: float) -> Iterator[RateRegion]:
    """Yield points with their rectangles, if both rates have at least one trial.

    Args:
        points: of a report.
        significance: probability that a rectangle misses the true rates, at most.
    """
    share = significance / 4.0
    for point in points:
        out, inside = point.fp + point.tn, point.fn + point.tp
        if out and inside:
            yield RateRegion(
                point.threshold,
                point.fp / out,
                point.fn / inside,
                float(clopper_pearson_lower(point.fp, out, share)),
                float(clopper_pearson_upper(point.fp, out, share)),
                float(clopper_pearson_lower(point.fn, inside, share)),
                float(clopper_pearson_upper(point.fn, inside, share)),
            )


def is_forbidden(region: RateRegion, curve: GaussianTradeoff | None) -> bool:
    """Return whether a region is entirely below the curve, or above that of inverted guesses."""
    if curve is None:
        return False
    inverted = 1.0 - curve(1.0 - region.left)
    return bool(region.top < curve(region.right) or region.bottom > inverted)
