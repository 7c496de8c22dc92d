"""Every number of the page with its method, level and assumptions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from markupsafe import Markup

from lightning_audit.files.printable import visible
from lightning_audit.page import trainings_words
from lightning_audit.page.epsilon_rows import adjacency_words, sampling_words
from lightning_audit.page.shown_text import (
    DASH,
    level,
    marked,
    number,
    plural,
    power_words,
    sentence,
)
from lightning_audit.results.audit_report import AuditReport, EpsilonBound

_HOW = {
    "betting": ("Proved ε, at least", "bets on the coins from the readings"),
    "mu": ("Proved ε, if constant", "least signal over most noise"),
    **trainings_words.METHODS,
}
_POWER = {"noise": "Power, noise", "sensitivity": "Power, clipping"}
#: Assumption of what the run could have shown.
_VARIANCE = "the data add as much variance to later readings as to those so far"


@dataclass(frozen=True)
class MethodRow:
    """One number.

    Args:
        name: what it is.
        value: the number.
        how: its method.
        holds: its level, and at how many looks.
        assumes: letters of its assumptions; a dash if it has none.
    """

    name: str
    value: str
    how: str
    holds: str
    assumes: str


@dataclass(frozen=True)
class MethodTable:
    """All numbers.

    Args:
        rows: the numbers.
        assumptions: all assumptions, in the order of their letters.
    """

    rows: tuple[MethodRow, ...]
    assumptions: tuple[Markup, ...]


def method_table(report: AuditReport) -> MethodTable:
    """Return the table of a report."""
    rows = list(_rows(report))
    every = list(dict.fromkeys(text for *_, assumed in rows for text in assumed))
    letters = {text: _letter(i) for i, text in enumerate(every)}
    return MethodTable(
        rows=tuple(
            MethodRow(name, value, how, holds, " ".join(letters[a] for a in assumed) or DASH)
            for name, value, how, holds, assumed in rows
        ),
        assumptions=tuple(marked(sentence(text)) for text in every),
    )


def _letter(number_of: int) -> str:
    """Return A to Z, then AA, AB and so on, as an ordered list in HTML counts."""
    most, last = divmod(number_of, 26)
    return (_letter(most - 1) if most else "") + chr(65 + last)


_Row = tuple[str, str, str, str, tuple[str, ...]]


def _rows(report: AuditReport) -> Iterator[_Row]:
    claim, significance = report.claimed_epsilon, report.settings.get("significance")
    trainings = report.trainings
    if claim is not None:
        stated = report.settings.get("claimed_epsilon", claim) is not None
        how = "stated by the user" if stated else "the accountant's epsilon of these steps"
        how = how if trainings is None else f"of {visible(trainings.claim)}"
        yield "Claimed ε", number(claim, 4), how, DASH, ()
    if report.epsilon_spent is not None:
        how = "composed from the stated noise and the steps that ran"
        yield (
            "Spent ε",
            number(report.epsilon_spent, 4),
            how,
            "computed, rounded up",
            _of_spent(report),
        )
    for bound in report.bounds:
        yield _bound(bound)
    if report.epsilon_not_excluded is not None:
        how = "ε of the worst mechanism that this run could have missed"
        value = number(report.epsilon_not_excluded, 4)
        assumed = _stated(report, "epsilon_not_excluded") or (_VARIANCE,)
        yield "Not excluded, up to", value, how, "95 % power", assumed
    if trainings is not None:
        yield from trainings_words.numbers(report, trainings)
    elif significance is not None:
        how = "e-values, shares over all checks (Ville's inequality, union bound)"
        yield (
            "False alarm",
            f"≤ {number(significance)}",
            how,
            "any number of looks",
            ("fair private coins",),
        )
    for part, name in _POWER.items():
        row = report.power.get(part) or {}
        if {"power", "size", "steps_needed"} <= row.keys():
            how = (
                f"probability of an alarm at {number(float(row['size']))} times the stated, within "
                f"the steps that ran; 95 % needs {plural(int(row['steps_needed']), 'step')}"
            )
            yield name, power_words(float(row["power"])), how, "computed", (_VARIANCE,)


def _stated(report: AuditReport, name: str) -> tuple[str, ...]:
    """Return the assumptions of a number as the report has them."""
    return tuple(one.sentence for one in report.assumptions.get(name, ()))


def _of_spent(report: AuditReport) -> tuple[str, ...]:
    return _stated(report, "epsilon_spent") or (
        f"Gaussian noise as stated, independent steps, {sampling_words(report)}",
        f"neighboring data sets: {adjacency_words(report)}",
    )


def _bound(bound: EpsilonBound) -> _Row:
    other = (f"ε by {visible(bound.name)}", "a bound of the literature, in addition to the verdict")
    name, how = _HOW.get(bound.name, other)
    anytime = bound.looks == "anytime"
    if not anytime and bound.name in trainings_words.METHODS:
        name += ", at the planned end"
    looks = "at all looks together" if anytime else "for one look"
    searched = ", threshold searched on the same data" if bound.threshold == "searched" else ""
    holds = f"{level(bound.significance)} {bound.interpretation}, {looks}{searched}"
    return name, number(bound.epsilon_lower, 4), how, holds, bound.assumptions
