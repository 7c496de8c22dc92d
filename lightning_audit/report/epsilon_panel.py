"""Epsilon over the run: proved, spent and claimed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from lightning_audit.report.drawing import (
    AMBER,
    BLUE,
    GREY,
    INK,
    ORANGE,
    PINK,
    TEAL,
    log_from_zero,
    plain,
)
from lightning_audit.results.audit_report import AuditReport

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_epsilon"]

#: The single-look bounds, by their logged names: label, color, dashes, marker.
_STYLES: Mapping[str, tuple[str, str, str, str]] = {
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


class _Series(NamedTuple):
    """A line of the right panel."""

    name: str
    x: list[float]
    y: list[float]


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
    lower, spent, *others = (
        _series(report.epochs, at, name) for name in ("epsilon_lower", "epsilon_spent", *names)
    )
    thick: dict[str, Any] = {
        "color": BLUE,
        "linewidth": 3.0,
        "marker": "o",
        "markersize": 7,
        "zorder": 5,
    }
    _draw_series(axes, lower, label="proved, anytime", **thick)
    claim = report.claimed_epsilon
    if claim is not None and math.isfinite(claim):
        axes.axhline(claim, color=INK, linewidth=1.8, linestyle=(0, (6, 3)), label=_claim(report))
    used: dict[str, Any] = {"color": GREY, "linewidth": 1.8, "linestyle": "-.", "marker": "d"}
    _draw_series(axes, spent, label="spent", **used)
    for series in others:
        name = series.name.removeprefix(_PREFIX)
        label, colour, dashes, marker = _STYLES.get(name, (plain(name), *_OTHER))
        thin: dict[str, Any] = {"color": colour, "linestyle": dashes, "marker": marker}
        _draw_series(axes, series, label=label, linewidth=1.0, **thin)
    _scale_epsilon(axes, [lower, spent, *others], claim)
    if report.epochs:
        axes.locator_params(axis="x", integer=True)
    else:
        axes.set_xticks([])
    axes.set_xlabel(unit)
    axes.set_ylabel(f"epsilon at delta {report.delta:g}")
    return list(_notes(report))


def _claim(report: AuditReport) -> str:
    """Return the claim's label; if findings are allowed, the true epsilon may exceed it."""
    claim, spent = report.claimed_epsilon, report.epsilon_spent
    above = claim is not None and spent is not None and spent <= claim
    return "claimed" if above or not report.epsilon_refuted_by else "claimed, not known to hold"


def _positions(rows: Sequence[Mapping[str, float]]) -> tuple[str, list[float]]:
    """Return the x axis: steps, or epochs if an old report has no steps, else row numbers."""
    for unit in ("step", "epoch"):
        if rows and all(row.get(unit) is not None for row in rows):
            return unit, [float(row[unit]) for row in rows]
    return "epoch", [float(i) for i in range(len(rows))]


def _names(rows: Sequence[Mapping[str, float]]) -> list[str]:
    """Return all logged names, the literature's bounds in their usual order first."""
    known = [_PREFIX + name for name in _STYLES]
    logged = {name for row in rows for name in row}
    return [name for name in known if name in logged] + sorted(logged.difference(known))


def _series(rows: Sequence[Mapping[str, float]], at: Sequence[float], name: str) -> _Series:
    """Return one line without missing and infinite numbers."""
    pairs = [(x, row.get(name)) for x, row in zip(at, rows, strict=True)]
    known = [(x, float(y)) for x, y in pairs if y is not None and math.isfinite(y)]
    return _Series(name, [x for x, _ in known], [y for _, y in known])


def _draw_series(axes: Axes, series: _Series, **style: Any) -> None:
    if series.x:
        every = max(1, len(series.x) // 8)
        style = {"markersize": 5, "markevery": every, "clip_on": False, **style}
        axes.plot(series.x, series.y, **style)


def _scale_epsilon(axes: Axes, drawn: Sequence[_Series], claim: float | None) -> None:
    """Scale the y axis from zero, logarithmically if the final values differ by a factor of 20."""
    final = [series.y[-1] for series in drawn if series.y]
    highest = [max(series.y) for series in drawn if series.y]
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
