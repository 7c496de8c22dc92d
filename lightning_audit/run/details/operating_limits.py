"""Limits of the error rates at each operating point, and whether they fit the claim."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from lightning_audit.results.audit_report import OperatingPoint
from lightning_audit.stats.bounds.intervals import clopper_pearson_lower, clopper_pearson_upper
from lightning_audit.stats.tradeoff.tradeoff_functions import GaussianTradeoff


def with_limits(
    points: Iterable[OperatingPoint], claimed_mu: float | None, significance: float
) -> tuple[OperatingPoint, ...]:
    """Return the points with the limits of their rates.

    Args:
        points: counts at each threshold.
        claimed_mu: of the step with the least noise; None if no noise is claimed.
        significance: probability that the four limits of a point miss its rates.
    """
    curve = None if claimed_mu is None else GaussianTradeoff(claimed_mu)
    return tuple(_limited(point, curve, significance / 4.0) for point in points)


def _limited(point: OperatingPoint, curve: GaussianTradeoff | None, share: float) -> OperatingPoint:
    fpr = _limits(point.fp, point.fp + point.tn, share)
    fnr = _limits(point.fn, point.fn + point.tp, share)
    outside = False
    if curve is not None and fpr is not None and fnr is not None:
        inverted = 1.0 - curve(1.0 - fpr[0])
        outside = bool(fnr[1] < curve(fpr[1]) or fnr[0] > inverted)
    return dataclasses.replace(point, fpr=fpr, fnr=fnr, outside=outside)


def _limits(errors: int, trials: int, share: float) -> tuple[float, float] | None:
    """Return the limits of a rate, each wrong with probability ``share``; None without a trial."""
    if not trials:
        return None
    return (
        float(clopper_pearson_lower(errors, trials, share)),
        float(clopper_pearson_upper(errors, trials, share)),
    )
