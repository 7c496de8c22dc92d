"""Figure of a run step by step: epsilons above, evidence against the claim below."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from markupsafe import Markup

from lightning_audit.page import report_extras
from lightning_audit.page.shown_text import number, plural, power_of_ten
from lightning_audit.page.svg_parts import Point, Scale, element, figure, line, nice, path, text
from lightning_audit.results.audit_report import AuditReport

#: Ends of epochs from which epsilon has a curve.
LEAST_EPOCHS = 3
#: Epochs up to which each has its mark.
_MARKED = 14
_WIDE, _NARROW = 800.0, 356.0
_TOP, _EPSILON, _BETWEEN, _EVIDENCE, _BELOW = 22.0, 190.0, 52.0, 116.0, 46.0
#: Lines of epsilon by metric: CSS class, and name.
_LINES = {"epsilon_spent": ("spent", "spent"), "epsilon_lower": ("proved", "proved at least")}


@dataclass(frozen=True)
class Timeline:
    """The section of a run over time.

    Args:
        wide: the figure for a screen.
        narrow: the figure for a phone.
        says: what it shows, and what it lacks.
    """

    wide: Markup
    narrow: Markup
    says: str


def timeline(report: AuditReport) -> Timeline | None:
    """Return the section of a report; None if it has neither epsilons nor evidence by step."""
    if not report.steps or not (_has_epsilons(report) or _has_evidence(report)):
        return None
    wide, narrow = _Drawing(report, _WIDE, "wide"), _Drawing(report, _NARROW, "narrow")
    return Timeline(wide.picture(), narrow.picture(), " ".join(_says(report)))


def _has_epsilons(report: AuditReport) -> bool:
    return sum("step" in row for row in report.epochs) >= LEAST_EPOCHS


def _has_evidence(report: AuditReport) -> bool:
    rows = any("e_value" in row and "step" in row for row in report.epochs)
    return bool(report.tests) or rows


def _says(report: AuditReport) -> Iterator[str]:
    if _has_evidence(report):
        yield (
            "The evidence is the wealth of a bet against the claim. It starts at 1 and has no "
            "expected growth if the claim is true. Each check bets with its share of the stake; "
            "the figure shows the largest."
        )
        root = report.verdict.root
        check = next((c for c in report.checks if root and c.name == root.finding), None)
        if check is not None and check.log_e_value is None:
            yield (
                "The fault of this run was seen directly and has no such bet: the line is that of "
                "the other checks."
            )
    if not report.tests:
        yield "This report holds the evidence at alarms and at the ends of epochs only."
    if not _has_epsilons(report):
        times = plural(len(report.epochs), "time")
        yield f"Epsilon was computed {times} only, so it has no curve."


@dataclass
class _Drawing:
    """One picture of a run, at a width of its own.

    Args:
        report: of the run.
        width: in pixels; a narrow one has its labels within the picture.
        name: "wide" or "narrow".
    """

    report: AuditReport
    width: float
    name: str
    body: list[Markup] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.is_wide = self.name == "wide"
        self.left, self.right = 46.0, self.width - (156.0 if self.is_wide else 12.0)
        self.last = max(1, self.report.steps)
        self.x = Scale(0.0, self.last, self.left, self.right)

    def picture(self) -> Markup:
        """Return the whole picture."""
        top, parts = _TOP, []
        if _has_epsilons(self.report):
            self.body += self._epsilons(top)
            parts.append("epsilon spent, proved and claimed")
            top += _EPSILON + _BETWEEN
        crossed = ""
        if _has_evidence(self.report):
            self.body += self._evidence(top)
            parts.append("the evidence against the claim")
            first = self._alarm()
            crossed = (
                f" The alarm level was reached after {plural(first, 'step')}."
                if first
                else " The alarm level was not reached."
            )
            top += _EVIDENCE
        else:
            top -= _BETWEEN
        self.body += self._steps(top)
        words = " and ".join(parts)
        description = f"{words[:1].upper()}{words[1:]} over {plural(self.last, 'step')}.{crossed}"
        size = (self.width, top + _BELOW)
        title = "The run, step by step"
        return figure(size, self.body, f"time-{self.name}", title, description, self.name)

    # -------------------------------------------------------------- epsilon

    def _epsilons(self, top: float) -> Iterator[Markup]:
        claim = self.report.claimed_epsilon
        claim = claim if claim is not None and math.isfinite(claim) else None
        rows = {key: report_extras.epsilons_by_step(self.report, key) for key in _LINES}
        highest = max([claim or 0.0, *(y for row in rows.values() for _, y in row)]) or 1.0
        y = Scale(0.0, 1.12 * highest, top + _EPSILON, top)
        for tick in nice(y.high, 4):
            yield line((self.left, y(tick)), (self.right, y(tick)), "grid")
            yield text((self.left - 8, y(tick) + 4), f"{tick:g}", "tick", "end")
        yield text((self.left, top - 8), "epsilon", "axis")
        ends: list[tuple[float, str, str]] = []
        if claim is not None:
            yield line((self.left, y(claim)), (self.right, y(claim)), "claim dash")
            ends.append((y(claim), f"claimed {number(claim)}", "lab"))
        for key, (kind, words) in _LINES.items():
            points = [(self.x(step), y(value)) for step, value in rows[key]]
            if not points:
                continue
            start = [(self.x(0), y(0))] if kind == "proved" else []
            yield path([*start, *points], kind)
            yield from (_mark(p, kind) for p in (points if len(points) <= _MARKED else points[-1:]))
            ends.append((points[-1][1], f"{words} {number(rows[key][-1][1])}", f"lab {kind}"))
        yield from self._end_labels(ends)

    def _end_labels(self, ends: list[tuple[float, str, str]]) -> Iterator[Markup]:
        """Yield the labels of lines at their ends, none on another."""
        at = -99.0
        for y, words, kind in sorted(ends):
            at = max(y, at + 16.0)
            place = (self.right + 9, at + 4) if self.is_wide else (self.right - 2, at - 8)
            yield text(place, words, kind, "start" if self.is_wide else "end")

    # -------------------------------------------------------------- evidence

    def _level(self) -> float:
        """Return the log e-value of an alarm."""
        return -math.log(float(self.report.settings.get("significance", 1e-3)))

    def _alarm(self) -> int | None:
        """Return the steps after which the alarm level was reached."""
        rows = report_extras.growth(self.report)
        return next((step for step, log_e in rows if log_e >= self._level() - 1e-9), None)

    def _evidence(self, top: float) -> Iterator[Markup]:
        alarm, cap = self._level(), 3.0 * self._level()
        y = Scale(0.0, cap, top + _EVIDENCE, top)
        yield text((self.left, top - 10), "evidence against the claim (e-value)", "axis")
        for tick in (0.0, alarm, 2.0 * alarm, cap):
            kind = "alarm" if tick == alarm else "grid"
            yield line((self.left, y(tick)), (self.right, y(tick)), kind)
            words = power_of_ten(tick) if tick else "1"
            yield text((self.left - 8, y(tick) + 4), words, "tick", "end")
        rows = report_extras.growth(self.report)
        first = self._alarm()
        if self.is_wide:
            yield text((self.right + 9, y(alarm) + 4), "alarm", "lab badtext")
        elif first is None:
            yield text((self.right - 2, y(alarm) - 7), "alarm", "lab badtext", "end")
        yield from self._growth(rows, y, cap)
        best = max((log_e for _, log_e in rows), default=0.0)
        if first is None:
            words = f"largest so far: {math.exp(best):.2g}, no alarm"
            yield text((self.left + 9, y(0) - 9), words, "lab")
            return
        yield from self._alarm_label(first, y(alarm) + 17)
        leaves = next((step for step, log_e in rows if log_e > cap), None)
        if leaves is not None:
            yield self._beside(leaves, top + 14, "higher than shown", "lab")

    def _growth(self, rows: list[tuple[int, float]], y: Scale, cap: float) -> Iterator[Markup]:
        """Yield the line of the evidence, with an arrow where it leaves the picture."""
        points: list[Point] = [(self.x(0), y(0))]
        for step, log_e in rows:
            at = self.x(min(step, self.last))
            points += [(at, points[-1][1]), (at, y(min(log_e, cap)))]
            if log_e > cap:
                tip = y(cap) - 5
                yield path([(at - 5, tip + 8), (at, tip), (at + 5, tip + 8)], "evid")
                break
        else:
            points.append((self.x(self.last), points[-1][1]))
        yield path(points, "evid")

    def _alarm_label(self, first: int, at: float) -> Iterator[Markup]:
        stops = self.report.settings.get("on_violation") in ("raise", "stop")
        stopped = ", training stopped" if stops and first >= self.last else ""
        words = f"first alarm after {plural(first, 'step')}{stopped}"
        yield self._beside(first, at, words, "lab badtext")

    def _beside(self, step: int, y: float, words: str, kind: str) -> Markup:
        """Return text next to a step, on the side that has room."""
        x = self.x(min(step, self.last))
        right = x < (self.left + self.right) / 2
        return text((x + (10 if right else -10), y), words, kind, "start" if right else "end")

    def _steps(self, bottom: float) -> Iterator[Markup]:
        for tick in nice(self.last, 5 if self.is_wide else 3):
            if tick == int(tick):
                yield text((self.x(tick), bottom + 18), f"{tick:,.0f}", "tick", "middle")
        yield text(((self.left + self.right) / 2, bottom + 38), "step", "axis", "middle")


def _mark(at: Point, kind: str) -> Markup:
    x, y = at
    if kind == "proved":
        return element("circle", class_="dot proved", cx=x, cy=y, r=3.5)
    return element("path", class_="dot spent", d=f"M{x:.1f} {y - 5:.1f}l5 5l-5 5l-5 -5Z")
