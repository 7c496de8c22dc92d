"""What figures draw of a report, in steps that count from 1; empty where an older one lacks it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from lightning_audit.checks.base.registry import REGISTRY
from lightning_audit.results.audit_report import AuditReport

#: A number by the number of steps taken.
BySteps = list[tuple[int, float]]


@dataclass(frozen=True)
class MeasuredTensor:
    """Noise of one tensor over the stated one, with all its numbers.

    Args:
        name: of the tensor, and of its optimizer if there are several.
        reads: numbers that were read.
        ratio: measured over stated.
        lower: lower limit of the ratio.
        upper: upper limit of the noise.
        flagged: whether the check found too little noise in it.
    """

    name: str
    reads: int
    ratio: float
    lower: float
    upper: float
    flagged: bool


def growth(report: AuditReport) -> BySteps:
    """Return the e-value that all checks share: (steps taken, its log), growing.

    Of each step the largest of share times e-value counts, without checks that only warn. If a
    report holds no course of its checks, the values at alarms and at the ends of epochs.
    """
    significance = float(report.settings.get("significance", 1e-3))
    rows = [
        # The threshold is that of the check's own share.
        (step + 1, log_e - test.threshold - math.log(significance))
        for name, test in report.tests.items()
        if not _warns(name)
        for step, log_e in test.growth
    ]
    if not report.tests:
        rows = [*_at_alarms(report, significance), *_at_epochs(report)]
    found, best = [], 0.0
    for step, log_e in sorted(rows):
        if log_e > best:
            best = log_e
            found.append((step, log_e))
    return found


def epsilons_by_step(report: AuditReport, name: str) -> BySteps:
    """Return a metric at the ends of epochs: (steps taken, value), finite values only."""
    rows = ((row.get("step"), row.get(name)) for row in report.epochs)
    return [
        (int(step), float(value))
        for step, value in rows
        if step is not None and value is not None and math.isfinite(value)
    ]


def tensors(report: AuditReport) -> list[MeasuredTensor]:
    """Return the noise of each tensor of which something was read."""
    found = []
    for row in report.tensors:
        name = f"{row.optimizer}: {row.name}" if row.optimizer else row.name
        numbers = row.ratio, row.lower, row.upper
        if None not in numbers and all(math.isfinite(x) for x in numbers if x is not None):
            ratio, lower, upper = (float(x) for x in numbers if x is not None)
            found.append(MeasuredTensor(name, row.reads, ratio, lower, upper, row.flagged))
    return found


def _at_alarms(report: AuditReport, significance: float) -> Iterator[tuple[int, float]]:
    """Yield the alarms of checks, with the level that they reached at least."""
    for check in report.checks:
        step = check.evidence.get("violated_at_step")
        if isinstance(step, int) and check.share and not _warns(check.name):
            yield step + 1, -math.log(significance)


def _at_epochs(report: AuditReport) -> Iterator[tuple[int, float]]:
    for row in report.epochs:
        if {"step", "e_value"} <= row.keys() and row["e_value"] > 0:
            yield int(row["step"]), math.log(row["e_value"])


def _warns(name: str) -> bool:
    return name in REGISTRY and REGISTRY[name].warns
