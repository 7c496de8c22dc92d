"""The verdict of a report in plain words, made by rule, and its root finding."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from markupsafe import Markup

from lightning_audit.checks.base.registry import REGISTRY
from lightning_audit.files.printable import visible
from lightning_audit.page import trainings_words
from lightning_audit.page.check_groups import alarm_words
from lightning_audit.page.run_details import CodeShown, code_of
from lightning_audit.page.shown_text import (
    inner,
    listed,
    marked,
    number,
    plural,
    power_words,
    sentence,
)
from lightning_audit.report.in_words import headline, headline_of
from lightning_audit.results.audit_report import AuditReport, CheckResult, LikelyFault, Place

#: How the sentence of a violation starts, and what it means for the epsilons.
_VIOLATIONS = {
    "mechanism": (
        "This training is less private than it says",
        "Its epsilon is computed for a mechanism that did not run, so do not rely on it.",
    ),
    "epsilon": ("More leaks than is claimed", "Do not rely on the claimed epsilon."),
    "accounting": (
        "The claimed epsilon does not hold",
        "The steps may be sound; the number that is claimed for them is not.",
    ),
}
#: Parameters that a place names.
_PARAMETERS = 5


@dataclass(frozen=True)
class FindingShown:
    """A finding that the verdict names.

    Args:
        headline: the fault in a few words.
        means: what it means.
        evidence: what was measured.
        where: when and where it was first seen.
        look_at: where to look in the code.
        code: the user's own code that it points to.
        alternatives: other faults that the same check may show.
        follows: titles of the checks that it explains.
    """

    headline: Markup
    means: Markup
    evidence: Markup
    where: Markup
    look_at: Markup
    code: tuple[CodeShown, ...]
    alternatives: tuple[Markup, ...]
    follows: tuple[str, ...]


def verdict_sentence(report: AuditReport) -> str:
    """Return the verdict in one sentence for a reader who is no expert."""
    if report.trainings is not None:
        return sentence(headline(report))
    verdict, steps = report.verdict, plural(report.steps, "step")
    if verdict.outcome == "PASS":
        further = "No further fault" if verdict.allowed else "No fault"
        claim = _claim(report)
        return f"{further} was found: in {steps} this training did what {claim} rests on."
    if verdict.outcome == "INCONCLUSIVE":
        return f"No verdict: no fault was found, but {steps} did not show enough for a pass."
    start, _ = _VIOLATIONS[verdict.kind or "mechanism"]
    root = verdict.root
    return f"{start}: {inner(headline_of(root) if root else verdict.summary)}."


def verdict_meaning(report: AuditReport) -> str:
    """Return what the verdict means, in one or two sentences below it."""
    if report.trainings is not None:
        return trainings_words.meaning(report, report.trainings)
    verdict = report.verdict
    if verdict.outcome == "PASS":
        allowed = ""
        if verdict.allowed:
            holds = f"; {visible(verdict.holds)}" if verdict.holds else ""
            allowed = f"Allowed: {visible(listed(verdict.allowed))}{holds}. "
        return f"{allowed}{_resolution(report)}A pass is evidence, not a proof of privacy."
    if verdict.outcome == "INCONCLUSIVE":
        return (
            "The training is neither passed nor accused. What a pass still needs is listed below."
        )
    _, means = _VIOLATIONS[verdict.kind or "mechanism"]
    significance = number(float(report.settings.get("significance", 1e-3)))
    alarm = f"A correct training is accused with probability {significance} at most."
    return f"{means} {alarm}"


def _claim(report: AuditReport) -> str:
    if report.claimed_epsilon is None:
        return "its privacy"
    source = report.settings.get("claimed_epsilon", 0.0) is None
    whose = "the accountant's" if source else "its claim of"
    return f"{whose} ε = {number(report.claimed_epsilon)}"


def _resolution(report: AuditReport) -> str:
    """Return the faults that the run would have shown, with their power."""
    words = {
        "noise": "noise of {} times the stated",
        "sensitivity": "clipping at {} times the norm",
    }
    parts = [
        f"{text.format(number(float(row['size'])))} ({power_words(float(row['power']))})"
        for part, text in words.items()
        if (row := report.power.get(part)) and {"size", "power"} <= row.keys()
    ]
    return f"It would have shown {listed(parts)}. " if parts else ""


# ------------------------------------------------------------------ the findings


def root_finding(report: AuditReport) -> FindingShown | None:
    """Return the finding that the verdict leads with; None if there is none."""
    root = report.verdict.root
    if root is None:
        return None
    rest = report.verdict.faults[1:]
    alternatives = (marked(inner(headline_of(o))) for o in rest if o.shares_finding(root))
    shown = _shown(report, root, tuple(alternatives))
    advice = report.verdict.advice
    return shown if not advice else _with_advice(shown, advice)


def further_findings(report: AuditReport) -> list[FindingShown]:
    """Return the findings that the root does not explain."""
    return [_shown(report, fault) for fault in report.verdict.further]


def _with_advice(shown: FindingShown, advice: str) -> FindingShown:
    return dataclasses.replace(shown, look_at=marked(sentence(advice)))


def _shown(
    report: AuditReport, fault: LikelyFault, alternatives: tuple[Markup, ...] = ()
) -> FindingShown:
    result, known = _result_of(report, fault), REGISTRY.get(fault.finding)
    significance = float(report.settings.get("significance", 1e-3))
    evidence = sentence(result.message if result else fault.sentence)
    if result is not None and result.status == "violated":
        evidence += f" {alarm_words(result, significance)}"
    look_at = fault.look_at or (known.look_at if known else "")
    return FindingShown(
        headline=marked(headline_of(fault)),
        means=marked(known.meaning if known else ""),
        evidence=marked(evidence),
        where=_where(fault.place),
        look_at=marked(sentence(look_at)) if look_at else Markup(""),
        code=code_of(fault),
        alternatives=alternatives,
        follows=tuple(_failed_title(name) for name in fault.consequences),
    )


def _result_of(report: AuditReport, fault: LikelyFault) -> CheckResult | None:
    whose = ("", fault.place.optimizer)
    own = (c for c in report.checks if c.name == fault.finding)
    return next((c for c in own if not fault.place.optimizer or c.optimizer in whose), None)


def _failed_title(name: str) -> str:
    known = REGISTRY.get(name)
    return visible(known.heading(failed=True) if known else name)


def _where(place: Place) -> Markup:
    """Return when and where a fault was first seen; steps count from 1."""
    parts = []
    if place.step is not None:
        parts.append(f"after {plural(place.step + 1, 'step')}")
    if place.optimizer:
        parts.append(f"in optimizer {place.optimizer}")
    if place.parameters:
        names = [f"`{name}`" for name in place.parameters[:_PARAMETERS]]
        more = len(place.parameters) - _PARAMETERS
        parts.append(f"in {', '.join(names)}{f' and {more} more' if more > 0 else ''}")
    if place.process is not None:
        parts.append(f"in process {place.process}")
    if place.code:
        parts.append(f"see {', '.join(map(str, place.code))}")
    return marked(sentence(", ".join(parts) or "unknown"))
