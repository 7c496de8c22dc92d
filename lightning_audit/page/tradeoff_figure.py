"""Figure of how often the coins of a step were guessed wrong, against the claim."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup
from scipy import special

from lightning_audit.page.shown_text import DASH, PERCENT, level, number, percent, plural
from lightning_audit.page.svg_parts import Point, Scale, cross, element, figure, line, path, text
from lightning_audit.report.rate_regions import (
    RateRegion,
    claimed_curve,
    is_forbidden,
    rate_regions,
)
from lightning_audit.results.audit_report import AuditReport
from lightning_audit.stats.tradeoff.tradeoff_functions import GaussianTradeoff

#: Readings below which a region says almost nothing.
LEAST_READINGS = 30
#: False positive rate at which the attack is stated.
FPR = 0.01
_SIZE, _LEFT, _EDGE = 400.0, 50.0, 14.0
_TICKS = (0.0, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True)
class Tradeoff:
    """The section of one step.

    Args:
        picture: the figure; empty if it has too few readings.
        says: what the figure shows.
        words: mu and the attack's rate as text.
        outside: whether a region is outside of the claim.
        level: confidence level of a region.
        claim: the claimed curve by name, or why there is none.
        rows: the numbers of the figure as text.
    """

    picture: Markup
    says: str
    words: tuple[str, ...]
    outside: bool
    level: str
    claim: str
    rows: tuple[tuple[str, ...], ...]


def tradeoff(report: AuditReport) -> Tradeoff:
    """Return the section of a report."""
    significance = report.settings.get("bound_significance", 0.05)
    curve, lack = claimed_curve(report)
    regions: list[RateRegion] = []
    if report.observations >= LEAST_READINGS:
        regions = list(rate_regions(report.operating_points, significance))
    bad = [is_forbidden(region, curve) for region in regions]
    return Tradeoff(
        picture=_picture(regions, bad, curve) if regions else Markup(""),
        says=_says(report, regions, bad, curve) if regions else "",
        words=tuple(_words(report, curve)),
        outside=any(bad),
        level=level(significance),
        claim=f"claimed for one step: {number(curve.mu)}-GDP" if curve else f"no claim: {lack}",
        rows=tuple(_row(region, wrong) for region, wrong in zip(regions, bad, strict=True)),
    )


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


def is_correlated(report: AuditReport) -> bool:
    """Return whether noise that is correlated over steps is claimed."""
    return bool((report.settings.get("claim") or {}).get("noise_coefficients"))


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


def _says(
    report: AuditReport,
    regions: Sequence[RateRegion],
    bad: Sequence[bool],
    curve: GaussianTradeoff | None,
) -> str:
    points = plural(len(regions), "measured point")
    if curve is None:
        return f"{points}; nothing is claimed that they could contradict."
    if any(bad):
        verb = "lies" if sum(bad) == 1 else "lie"
        return f"{sum(bad)} of {points} {verb} where the claim allows none."
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


def _row(region: RateRegion, wrong: bool) -> tuple[str, ...]:
    def span(low: float, high: float) -> str:
        return f"{100 * low:.1f}{DASH}{100 * high:.1f}"

    return (
        f"{region.threshold:g}",
        f"{100 * region.fpr:.1f}{PERCENT}",
        span(region.left, region.right),
        f"{100 * region.fnr:.1f}{PERCENT}",
        span(region.bottom, region.top),
        "✕ outside" if wrong else "✓ within",
    )


# ------------------------------------------------------------------ the picture


def _picture(
    regions: Sequence[RateRegion], bad: Sequence[bool], curve: GaussianTradeoff | None
) -> Markup:
    x, y = Scale(0.0, 1.0, _LEFT, _SIZE - _EDGE), Scale(0.0, 1.0, _SIZE - _LEFT, _EDGE)
    lower = _curve_points(curve, x, y) if curve else []
    body = [
        *(_forbidden(curve, lower, x, y) if curve else ()),
        *_grid(x, y),
        path([(x(0), y(1)), (x(1), y(0))], "guess"),
        *([path(lower, "claim")] if curve else ()),
        text((x(0.56), y(0.47) - 3), "pure guessing", "lab soft"),
        *_boxes(regions, bad, x, y),
        *_marks(regions, bad, x, y),
    ]
    if curve:  # above everything, with a halo
        body.append(text((x(0.035), y(0.05)), "forbidden by the claim", "lab"))
        body.append(text((x(0.965), y(0.93)), "forbidden, too", "lab", "end"))
    count = sum(bad)
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
    for tick in _TICKS:
        yield line((x(tick), y(0)), (x(tick), y(1)), "grid")
        yield line((x(0), y(tick)), (x(1), y(tick)), "grid")
        yield text((x(tick), y(0) + 18), f"{100 * tick:g}", "tick", "middle")
        yield text((x(0) - 8, y(tick) + 4), f"{100 * tick:g}", "tick", "end")
    middle = (x(0) + x(1)) / 2, (y(0) + y(1)) / 2
    words = "false positives: out, guessed in (%)", "false negatives: in, guessed out (%)"
    yield text((middle[0], _SIZE - 8), words[0], "axis", "middle")
    turned = f"translate(13 {middle[1]:g}) rotate(-90)"
    yield text((0.0, 0.0), words[1], "axis", "middle", transform=turned)


def _boxes(
    regions: Sequence[RateRegion], bad: Sequence[bool], x: Scale, y: Scale
) -> Iterator[Markup]:
    for region, wrong in zip(regions, bad, strict=True):
        within = "outside the claim" if wrong else "within the claim"
        yield element(
            "rect",
            element("title", f"threshold {region.threshold:g}: {within}"),
            class_=f"region {'bad' if wrong else 'good'}",
            x=x(region.left),
            y=y(region.top),
            width=max(1.0, x(region.right) - x(region.left)),
            height=max(1.0, y(region.bottom) - y(region.top)),
        )


def _marks(
    regions: Sequence[RateRegion], bad: Sequence[bool], x: Scale, y: Scale
) -> Iterator[Markup]:
    for region, wrong in zip(regions, bad, strict=True):
        px, py = x(region.fpr), y(region.fnr)
        yield (cross(px, py) if wrong else element("circle", class_="dot good", cx=px, cy=py, r=4))
