"""How the e-values of the checks grew, as far as it may leave the process."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence

from lightning_audit.checks.base.disclosure import coarse
from lightning_audit.checks.base.evidence import Evidence
from lightning_audit.checks.base.registry import REGISTRY
from lightning_audit.results.audit_report import CheckResult
from lightning_audit.results.report_details import CheckGrowth

#: Most points of a check.
MOST_POINTS = 12
_Points = list[tuple[int, float]]


def with_threshold(check: CheckResult, significance: float) -> CheckResult:
    """Return the check with the log e-value at which it flags.

    Args:
        check: its result; its share is that of one of several optimizers, if it is of one.
        significance: of the whole run.
    """
    if check.log_e_value is None or not check.share:
        return check
    return dataclasses.replace(check, log_e_threshold=-math.log(check.share * significance))


def growth_of(
    checks: Sequence[CheckResult], tests: Iterable[tuple[str, Evidence]]
) -> dict[str, CheckGrowth]:
    """Return how the e-value of each check grew that has one and observed something.

    Args:
        checks: results as the report shows them, with their thresholds.
        tests: label of the optimizer, or empty, and test, of all checks by e-process.

    Returns:
        By name of the check; if several optimizers have it, of the one closest to its threshold.
    """
    shown = {(c.name, c.optimizer): c for c in checks if c.status != "not_run"}
    found: dict[str, CheckGrowth] = {}
    for label, test in tests:
        check = shown.get((test.name, label))
        if check is None or check.log_e_threshold is None or not test.observed:
            continue
        private = REGISTRY[check.name].private
        points = _coarse(test.growth, check.log_e_threshold) if private else [*test.growth]
        told = _thinned(points, check.log_e_threshold)
        growth = CheckGrowth(check.log_e_threshold, tuple(told), label)
        if check.name not in found or _height(growth) > _height(found[check.name]):
            found[check.name] = growth
    return found


def _height(growth: CheckGrowth) -> float:
    return max((log_e / growth.threshold for _, log_e in growth.growth), default=0.0)


def _coarse(points: Iterable[tuple[int, float]], threshold: float) -> _Points:
    """Return the points at which the e-value reached a power of ten, for numbers of the data."""
    told: _Points = []
    last = 0.0
    for step, log_e in points:
        if (rounded := coarse(log_e, threshold)) > last:
            told.append((step, rounded))
            last = rounded
    return told


def _thinned(points: _Points, threshold: float) -> _Points:
    """Return the first and the last point, the first above the threshold, and some between."""
    if len(points) <= MOST_POINTS:
        return points
    crossed = next((i for i, (_, log_e) in enumerate(points) if log_e >= threshold), 0)
    between = MOST_POINTS - 2
    kept = {round(i * (len(points) - 1) / between) for i in range(between + 1)} | {crossed}
    return [points[i] for i in sorted(kept)]
