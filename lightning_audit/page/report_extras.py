"""Parts of a report that older ones lack, as the page uses them; empty where they are absent."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lightning_audit.checks.base.registry import REGISTRY
from lightning_audit.results.audit_report import AuditReport, LikelyFault

#: Lines of a place in the code that the page shows.
_MOST_LINES = 12


@dataclass(frozen=True)
class TensorNoise:
    """Noise of one tensor over the stated one.

    Args:
        name: of the tensor.
        reads: numbers that were read.
        ratio: measured over stated.
        lower: lower limit of the ratio.
        upper: upper limit of the ratio.
        flagged: whether the check found too little noise in it.
    """

    name: str
    reads: int
    ratio: float
    lower: float
    upper: float
    flagged: bool


@dataclass(frozen=True)
class CodeShown:
    """Lines of the user's code that a finding points to.

    Args:
        file: path from the repository.
        name: of the function.
        lines: number and text of each line.
    """

    file: str
    name: str
    lines: tuple[tuple[int, str], ...]


def growth(report: AuditReport) -> list[tuple[int, float]]:
    """Return the e-value that all checks share, by step: (steps taken, its log), growing.

    Of each step the largest of share times e-value counts, without checks that only warn. If a
    report holds no course of its checks, the values at alarms and at the ends of epochs.
    """
    shares = {check.name: check.share for check in report.checks}
    rows = [
        (int(step) + 1, float(log_e) + math.log(shares[name]))
        for name, test in _field(report, "tests", {}).items()
        if shares.get(name) and not _warns(name)
        for step, log_e in _field(test, "growth", ())
    ]
    if not has_course(report):
        rows = [*_at_alarms(report), *_at_epochs(report)]
    found, best = [], 0.0
    for step, log_e in sorted(rows):
        if log_e > best:
            best = log_e
            found.append((step, log_e))
    return found


def _at_alarms(report: AuditReport) -> Iterator[tuple[int, float]]:
    """Yield the alarms of checks, with the level that they reached at least."""
    level = -math.log(float(report.settings.get("significance", 1e-3)))
    for check in report.checks:
        step = check.evidence.get("violated_at_step")
        if isinstance(step, int) and check.share and not _warns(check.name):
            yield step + 1, level


def _at_epochs(report: AuditReport) -> Iterator[tuple[int, float]]:
    for row in report.epochs:
        if {"step", "e_value"} <= row.keys() and row["e_value"] > 0:
            yield int(row["step"]), math.log(row["e_value"])


def has_course(report: AuditReport) -> bool:
    """Return whether the report holds the course of its checks' evidence."""
    return bool(_field(report, "tests", {}))


def epsilons_by_step(report: AuditReport, name: str) -> list[tuple[float, float]]:
    """Return a metric at the ends of epochs: (steps taken, value), finite values only."""
    return [
        (float(row["step"]), float(row[name]))
        for row in report.epochs
        if row.get("step") is not None and math.isfinite(row.get(name) or 0.0) and name in row
    ]


def tensors(report: AuditReport) -> list[TensorNoise]:
    """Return the noise of each tensor; those without a finite ratio are left out."""
    rows = [
        TensorNoise(
            name=_of_optimizer(row),
            reads=int(_field(row, "reads", 0)),
            ratio=float(_field(row, "ratio", math.nan)),
            lower=float(_field(row, "lower", math.nan)),
            upper=float(_field(row, "upper", math.nan)),
            flagged=bool(_field(row, "flagged", False)),
        )
        for row in _field(report, "tensors", ())
    ]
    return [t for t in rows if all(map(math.isfinite, (t.ratio, t.lower, t.upper)))]


def code_of(fault: LikelyFault) -> list[CodeShown]:
    """Return the code that a fault points to."""
    found = []
    for place in _field(fault.place, "sources", ()):
        lines = str(_field(place, "source", "")).rstrip("\n").split("\n")[:_MOST_LINES]
        indent = min((len(s) - len(s.lstrip()) for s in lines if s.strip()), default=0)
        first = int(_field(place, "line", 1))
        rows = tuple((first + i, s[indent:]) for i, s in enumerate(lines))
        found.append(
            CodeShown(str(_field(place, "file", "")), str(_field(place, "name", "")), rows)
        )
    return found


def settings_given(report: AuditReport) -> tuple[str, ...] | None:
    """Return the names of the settings that the user gave; None if the report does not say."""
    given = _field(report, "settings_given", None)
    return None if given is None else tuple(map(str, given))


def _warns(name: str) -> bool:
    return name in REGISTRY and REGISTRY[name].warns


def _of_optimizer(row: Any) -> str:
    name, optimizer = str(_field(row, "name", "")), str(_field(row, "optimizer", "") or "")
    return f"{optimizer}: {name}" if optimizer else name


def _field(owner: Any, name: str, otherwise: Any) -> Any:
    if isinstance(owner, Mapping):
        return owner.get(name, otherwise)
    return getattr(owner, name, otherwise)
