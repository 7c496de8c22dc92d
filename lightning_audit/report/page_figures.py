"""Figures of the page: noise of each tensor, epsilons over the steps, error rates."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup
from scipy import special

from lightning_audit.checks.check import REGISTRY
from lightning_audit.files import visible
from lightning_audit.report.figure import RateRegion, claimed_curve, rate_regions
from lightning_audit.report.page_parts import (
    DASH,
    PERCENT,
    Point,
    Scale,
    cross,
    element,
    figure,
    level,
    level_line,
    line,
    nice,
    number,
    path,
    percent,
    plural,
    power_of_ten,
    strip,
    text,
    tick_row,
    upright,
)
from lightning_audit.report.text import is_correlated, significance_of
from lightning_audit.results.audit_report import AuditReport
from lightning_audit.stats.tradeoff import GaussianTradeoff

# --- What figures draw of a report, in steps that count from 1; empty where an older one lacks it.

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
    significance = significance_of(report)
    rows = [
        # The threshold is that of the check's own share.
        (step + 1, log_e - test.threshold - math.log(significance))
        for name, test in report.tests.items()
        if not _warns(name)
        for step, log_e in test.growth
    ]
    if not report.tests:
        rows = _at_alarms_and_epochs(report, significance)
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
    for one in report.tensors:
        name = visible(f"{one.optimizer}: {one.name}" if one.optimizer else one.name)
        ratio, lower, upper = (
            math.nan if x is None else float(x) for x in (one.ratio, one.lower, one.upper)
        )
        if all(map(math.isfinite, (ratio, lower, upper))):
            found.append(MeasuredTensor(name, one.reads, ratio, lower, upper, one.flagged))
    return found


def _at_alarms_and_epochs(report: AuditReport, significance: float) -> BySteps:
    """Return the alarms of checks, with the level that they reached at least, and epochs."""
    alarms = (
        (step + 1, -math.log(significance))
        for check in report.checks
        if isinstance(step := check.evidence.get("violated_at_step"), int)
        and check.share
        and not _warns(check.name)
    )
    epochs = (
        (int(epoch["step"]), math.log(epoch["e_value"]))
        for epoch in report.epochs
        if {"step", "e_value"} <= epoch.keys() and epoch["e_value"] > 0
    )
    return [*alarms, *epochs]


def _warns(name: str) -> bool:
    return name in REGISTRY and REGISTRY[name].warns


# --- The noise of each tensor over the stated one, as rows of dots.

#: Tensors up to which all are shown; of more, the ones with the least noise.
_ALL, _SHOWN = 16, 14
#: Characters of a name, and those kept of its start and its end.
_LONGEST, _START, _END = 26, 9, 16
#: Ratio of a reading from which the data's part is pointed out.
_BY_DATA = 1.2
_RATIO_TICKS = (0.0, 0.5, 1.0, 1.5, 2.0, 2.5)


def tensor_section(report: AuditReport) -> dict[str, Any] | None:
    """Return the noise of all tensors, for the template; None if the report does not hold it."""
    every = tensors(report)
    if not every:
        return None
    shown = every
    if len(every) > _ALL:
        least = sorted(every, key=lambda tensor: (not tensor.flagged, tensor.ratio))[:_SHOWN]
        shown = [tensor for tensor in every if tensor in least]
    high = max(1.3, 1.06 * min(_RATIO_TICKS[-1], max(tensor.upper for tensor in shown)))
    resolution = float((report.settings.get("resolution") or {}).get("noise", 0.8))
    prefix = common_prefix([tensor.name for tensor in shown])
    return {
        "rows": [
            (one, _short(one.name[len(prefix) :]), _dot(one, high, resolution)) for one in shown
        ],
        "prefix": prefix,
        "says": _dots_say(every),
        "note": _note(report, every, shown, resolution),
        "ticks": tick_row([tick for tick in _RATIO_TICKS if tick <= high], high),
    }


def common_prefix(names: Sequence[str]) -> str:
    """Return the leading parts that all names share, if a name is long; empty for few names.

    Example:
        >>> common_prefix([f"encoder.layers.{i}.attention.weight" for i in range(3)])
        'encoder.layers.'
        >>> common_prefix(["net.0.weight", "net.0.bias", "net.3.weight"])
        ''
    """
    if len(names) < 3 or max(map(len, names)) <= 20:
        return ""
    shared: list[str] = []
    for parts in zip(*(name.split(".")[:-1] for name in names), strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    return "".join(f"{part}." for part in shared)


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST else f"{name[:_START]}…{name[-_END:]}"


def _dot(tensor: MeasuredTensor, high: float, resolution: float) -> Markup:
    def at(value: float) -> float:
        return 100.0 * min(max(value, 0.0), high) / high

    kind = "bad" if tensor.flagged else "good"
    parts = [
        level_line(0.0, 100.0, 14, "base"),
        upright(at(resolution), "res", 28),
        upright(at(1.0), "claim", 28),
        level_line(at(tensor.lower), at(tensor.upper), 14, f"ival {kind}"),
    ]
    x = f"{at(tensor.ratio):.2f}%"
    if tensor.ratio > high:  # outside of the picture
        arrow = path([(-9, -5), (-2, 0), (-9, 5)], "evid good")
        parts.append(element("svg", arrow, x="100%", y=14, overflow="visible"))
    elif tensor.flagged:
        sign = element("path", class_="cross", d="M-5 -5l10 10m0 -10l-10 10")
        parts.append(element("svg", sign, x=x, y=14, overflow="visible"))
    else:
        parts.append(element("circle", class_="dot good", cx=x, cy=14, r=5))
    return strip(28, *parts)


def _dots_say(every: Sequence[MeasuredTensor]) -> str:
    few = sum(tensor.flagged for tensor in every)
    if few:
        verb = "has" if few == 1 else "have"
        return f"{few} of {plural(len(every), 'tensor')} {verb} less noise than stated (✕)."
    more = " Above 1, data add to the noise." if max(t.ratio for t in every) > _BY_DATA else ""
    return f"None of {plural(len(every), 'tensor')} shows less noise than stated.{more}"


def _note(
    report: AuditReport,
    every: Sequence[MeasuredTensor],
    shown: Sequence[MeasuredTensor],
    resolution: float,
) -> str:
    read = plural(sum(tensor.reads for tensor in every), "number")
    words = (
        f"Read from {read} of released gradients without canaries. A reading is the noise plus "
        "what the data add to it: a ratio below 1 is a lack of noise, one above 1 may be data. "
        "The lower limit is for one look and Gaussian readings, the upper one for any data and all "
        "looks; crosses follow the check. Solid line: stated. Dotted: "
        f"{resolution:g} times that, the fault that this run must be able to see."
    )
    rest = [tensor.ratio for tensor in every if tensor not in shown]
    if rest:
        words += f" {len(rest)} more have {min(rest):.2f} to {max(rest):.2f} times."
    if report.tensors_left_out:
        left_out = plural(report.tensors_left_out, "further tensor")
        words += f" The report leaves out {left_out} with more noise."
    return words


# --- Figure of a run step by step: epsilons above, evidence against the claim below.

#: Ends of epochs from which epsilon has a curve.
LEAST_EPOCHS = 3
#: Epochs up to which each has its mark.
_MARKED = 14
_WIDE, _NARROW = 800.0, 356.0
_TOP, _EPSILON, _BETWEEN, _EVIDENCE, _BELOW = 22.0, 190.0, 52.0, 116.0, 46.0
#: Lines of epsilon by metric: CSS class, and name.
_LINES = {"epsilon_spent": ("spent", "spent"), "epsilon_lower": ("proved", "proved at least")}


def timeline(report: AuditReport) -> dict[str, Any] | None:
    """Return the run over time, for the template: its figure for a screen and for a phone.

    None if the report has neither epsilons nor evidence by step.
    """
    if not report.steps or not (_has_epsilons(report) or _has_evidence(report)):
        return None
    wide, narrow = _Drawing(report, _WIDE, "wide"), _Drawing(report, _NARROW, "narrow")
    says = " ".join(_timeline_says(report))
    return {"wide": wide.picture(), "narrow": narrow.picture(), "says": says}


def _has_epsilons(report: AuditReport) -> bool:
    return sum("step" in row for row in report.epochs) >= LEAST_EPOCHS


def _has_evidence(report: AuditReport) -> bool:
    rows = any("e_value" in row and "step" in row for row in report.epochs)
    return bool(report.tests) or rows


def _timeline_says(report: AuditReport) -> Iterator[str]:
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


class _Drawing:
    """One picture of a run, at a width of its own.

    Args:
        report: of the run.
        width: in pixels; a narrow one has its labels within the picture.
        name: "wide" or "narrow".
    """

    def __init__(self, report: AuditReport, width: float, name: str) -> None:
        self.report, self.width, self.name = report, width, name
        self.is_wide = name == "wide"
        self.left, self.right = 46.0, width - (156.0 if self.is_wide else 12.0)
        self.last = max(1, report.steps)
        self.x = Scale(0.0, self.last, self.left, self.right)
        #: The log e-value of an alarm.
        self.level = -math.log(significance_of(report))

    def picture(self) -> Markup:
        """Return the whole picture."""
        panels: list[tuple[str, Callable[[float], Iterator[Markup]], float]] = []
        if _has_epsilons(self.report):
            panels.append(("epsilon spent, proved and claimed", self._epsilons, _EPSILON))
        crossed = ""
        if _has_evidence(self.report):
            panels.append(("the evidence against the claim", self._evidence, _EVIDENCE))
            first = self._alarm()
            crossed = (
                f" First seen in step {first:,}." if first else " The alarm level was not reached."
            )
        body: list[Markup] = []
        top = _TOP - _BETWEEN
        for _, draw, height in panels:
            body += draw(top + _BETWEEN)
            top += _BETWEEN + height
        body += self._steps(top)
        words = " and ".join(words for words, _, _ in panels)
        description = f"{words[:1].upper()}{words[1:]} over {plural(self.last, 'step')}.{crossed}"
        size = (self.width, top + _BELOW)
        title = "The run, step by step"
        return figure(size, body, f"time-{self.name}", title, description, self.name)

    # -------------------------------------------------------------- epsilon

    def _epsilons(self, top: float) -> Iterator[Markup]:
        claim = self.report.claimed_epsilon
        claim = claim if claim is not None and math.isfinite(claim) else None
        rows = {key: epsilons_by_step(self.report, key) for key in _LINES}
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

    def _alarm(self) -> int | None:
        """Return the step, from 1, in which the fault was first seen; else of the first alarm."""
        root, rows = self.report.verdict.root, growth(self.report)
        if root is not None and root.place.step is not None:
            return root.place.step + 1
        return next((step for step, log_e in rows if log_e >= self.level - 1e-9), None)

    def _evidence(self, top: float) -> Iterator[Markup]:
        alarm, cap = self.level, 3.0 * self.level
        y = Scale(0.0, cap, top + _EVIDENCE, top)
        yield text((self.left, top - 10), "evidence against the claim (e-value)", "axis")
        for tick in (0.0, alarm, 2.0 * alarm, cap):
            kind = "alarm" if tick == alarm else "grid"
            yield line((self.left, y(tick)), (self.right, y(tick)), kind)
            words = power_of_ten(tick) if tick else "1"
            yield text((self.left - 8, y(tick) + 4), words, "tick", "end")
        rows = growth(self.report)
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
        stops = self.report.settings.get("on_violation") in ("raise", "stop")
        stopped = ", training stopped" if stops and first >= self.last else ""
        words = f"first seen in step {first:,}{stopped}"
        yield self._beside(first, y(alarm) + 17, words, "lab badtext")
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


# --- Figure of how often the coins of a step were guessed wrong, against the claim.

#: Readings below which a region says almost nothing.
LEAST_READINGS = 30
#: False positive rate at which the attack is stated.
FPR = 0.01
_SIZE, _LEFT, _EDGE = 400.0, 50.0, 14.0
_RATE_TICKS = (0.0, 0.25, 0.5, 0.75, 1.0)


def tradeoff(report: AuditReport) -> dict[str, Any]:
    """Return what one step shows, for the template; without a picture if it has few readings."""
    curve, lack = claimed_curve(report)
    regions = rate_regions(report, curve) if report.observations >= LEAST_READINGS else []
    return {
        "picture": _picture(regions, curve) if regions else "",
        "says": _tradeoff_says(report, regions, curve) if regions else "",
        "words": list(_words(report, curve)),
        "outside": any(region.outside for region in regions),
        "level": level(report.settings.get("bound_significance", 0.05)),
        "claim": f"claimed for one step: {number(curve.mu)}-GDP" if curve else f"no claim: {lack}",
        "rows": [_region_row(region) for region in regions],
    }


def true_positives(mu: float, fpr: float = FPR) -> float:
    r"""Return the true positive rate of the best test of N(0, 1) against N(mu, 1).

    .. math:: 1 - G_\mu(\alpha) = \Phi(\mu - \Phi^{-1}(1 - \alpha))

    Args:
        mu: Gaussian DP parameter, >= 0.
        fpr: false positive rate in (0, 1).

    Example:
        >>> round(true_positives(1.0), 4)
        0.0924

    References:
        Dong, Roth and Su, "Gaussian differential privacy", JRSS B 84, 2022, arXiv:1905.02383,
        Definition 2.6.
    """
    return float(special.ndtr(mu + special.ndtri(fpr)))


def _words(report: AuditReport, curve: GaussianTradeoff | None) -> Iterator[str]:
    """Yield mu, claimed and measured, with what an attack on one step finds."""
    if report.trainings is not None:  # no step is seen
        return
    if is_correlated(report):
        yield (
            "The claim states noise that is correlated over steps. What is read is the new draw of "
            "each step, after what earlier draws add; no μ and no ε of a step follow from it."
        )
        return
    accusing = f"an attack on one step that wrongly accuses {percent(FPR)} of the absent records"
    if curve is not None:
        yield (
            f"Claimed: μ = {number(curve.mu)} for one step (clipping norm over standard deviation "
            f"of the noise). Then {accusing} finds at most {percent(true_positives(curve.mu))} of "
            "the present ones."
        )
    for bound in report.bounds:
        if bound.name == "mu" and bound.looks == "single" and bound.mu_lower:
            sure, found = level(bound.significance), percent(true_positives(bound.mu_lower))
            yield (
                f"Measured: μ is at least {number(bound.mu_lower)} with {sure} confidence, if "
                "signal and noise kept a constant ratio to their claims. The audit's own attack "
                f"then finds at least {found} at the same rate of false accusations."
            )


def _tradeoff_says(
    report: AuditReport, regions: Sequence[RateRegion], curve: GaussianTradeoff | None
) -> str:
    points = plural(len(regions), "measured point")
    if curve is None:
        return f"{points}; nothing is claimed that they could contradict."
    if bad := sum(region.outside for region in regions):
        return f"{bad} of {points} {'lies' if bad == 1 else 'lie'} where the claim allows none."
    shaded = sum(_in_shade(region, curve) for region in regions)
    if shaded and report.verdict.outcome == "VIOLATION":
        return (
            f"{shaded} of {points} are in the shaded area, none of them by more than its error. "
            "The checks below see the fault much earlier."
        )
    return "All measured points are where the claim allows them, within their error."


def _in_shade(region: RateRegion, curve: GaussianTradeoff) -> bool:
    inverted = 1.0 - curve(1.0 - region.fpr)
    return bool(region.fnr < curve(region.fpr) or region.fnr > inverted)


def _region_row(region: RateRegion) -> tuple[str, ...]:
    def span(low: float, high: float) -> str:
        return f"{100 * low:.1f}{DASH}{100 * high:.1f}"

    return (
        f"{region.threshold:g}",
        f"{100 * region.fpr:.1f}{PERCENT}",
        span(region.left, region.right),
        f"{100 * region.fnr:.1f}{PERCENT}",
        span(region.bottom, region.top),
        "✕ outside" if region.outside else "✓ within",
    )


# ------------------------------------------------------------------ the picture


def _picture(regions: Sequence[RateRegion], curve: GaussianTradeoff | None) -> Markup:
    x, y = Scale(0.0, 1.0, _LEFT, _SIZE - _EDGE), Scale(0.0, 1.0, _SIZE - _LEFT, _EDGE)
    lower = _curve_points(curve, x, y) if curve else []
    body = [
        *(_forbidden(curve, lower, x, y) if curve else ()),
        *_grid(x, y),
        path([(x(0), y(1)), (x(1), y(0))], "guess"),
        *([path(lower, "claim")] if curve else ()),
        text((x(0.56), y(0.47) - 3), "pure guessing", "lab soft"),
        *(_box(region, x, y) for region in regions),
        *(_point(region, x, y) for region in regions),
    ]
    if curve:  # above everything, with a halo
        body.append(text((x(0.035), y(0.05)), "forbidden by the claim", "lab"))
        body.append(text((x(0.965), y(0.93)), "forbidden, too", "lab", "end"))
    count = sum(region.outside for region in regions)
    outside = f"{count} of them are" if count else "none of them is"
    description = (
        f"Measured error rates at {plural(len(regions), 'threshold')} with their confidence "
        f"regions; {outside} wholly in the area that the claim forbids."
    )
    title = "How often canaries were guessed wrong"
    return figure((_SIZE, _SIZE), body, "tradeoff-figure", title, description, "square")


def _curve_points(curve: GaussianTradeoff, x: Scale, y: Scale) -> list[Point]:
    # Thresholds around the means of both worlds, so that both ends of the curve are smooth.
    around = np.linspace(-5.0, 5.0, 60)
    alpha = special.ndtr(-np.concatenate((around, curve.mu + around)))
    alpha = np.unique(np.concatenate(([0.0], alpha, [1.0])))
    beta = np.asarray(curve(alpha))
    return [(x(float(a)), y(float(b))) for a, b in zip(alpha, beta, strict=True)]


def _forbidden(
    curve: GaussianTradeoff, lower: Sequence[Point], x: Scale, y: Scale
) -> Iterator[Markup]:
    """Yield the areas below the curve, and above that of inverted guesses."""
    yield element(
        "defs",
        element(
            "pattern",
            element("line", class_="hatch", x1=0, y1=0, x2=0, y2=6),
            id="hatch",
            width=6,
            height=6,
            patternUnits="userSpaceOnUse",
            patternTransform="rotate(45)",
        ),
    )
    (left, bottom), (right, top) = (x(0), y(0)), (x(1), y(1))
    upper = [(left + right - px, bottom + top - py) for px, py in lower]
    for shape in ([*lower, (left, bottom)], [*upper, (right, top)]):
        yield path(shape, "forbid", closed=True)
        yield path(shape, "hatched", closed=True, fill="url(#hatch)")


def _grid(x: Scale, y: Scale) -> Iterator[Markup]:
    for tick in _RATE_TICKS:
        yield line((x(tick), y(0)), (x(tick), y(1)), "grid")
        yield line((x(0), y(tick)), (x(1), y(tick)), "grid")
        yield text((x(tick), y(0) + 18), f"{100 * tick:g}", "tick", "middle")
        yield text((x(0) - 8, y(tick) + 4), f"{100 * tick:g}", "tick", "end")
    middle = (x(0) + x(1)) / 2, (y(0) + y(1)) / 2
    words = "false positives: out, guessed in (%)", "false negatives: in, guessed out (%)"
    yield text((middle[0], _SIZE - 8), words[0], "axis", "middle")
    turned = f"translate(13 {middle[1]:g}) rotate(-90)"
    yield text((0.0, 0.0), words[1], "axis", "middle", transform=turned)


def _box(region: RateRegion, x: Scale, y: Scale) -> Markup:
    within = "outside the claim" if region.outside else "within the claim"
    return element(
        "rect",
        element("title", f"threshold {region.threshold:g}: {within}"),
        class_=f"region {'bad' if region.outside else 'good'}",
        x=x(region.left),
        y=y(region.top),
        width=max(1.0, x(region.right) - x(region.left)),
        height=max(1.0, y(region.bottom) - y(region.top)),
    )


def _point(region: RateRegion, x: Scale, y: Scale) -> Markup:
    at = x(region.fpr), y(region.fnr)
    if region.outside:
        return cross(*at)
    return element("circle", class_="dot good", cx=at[0], cy=at[1], r=4)
