"""Tables of the page: epsilons on one axis, every number with its method."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from lightning_audit.checks import sampling
from lightning_audit.checks.check import OF_BATCHES
from lightning_audit.files import visible
from lightning_audit.report import page_verdict
from lightning_audit.report.page_figures import FPR
from lightning_audit.report.page_parts import (
    DASH,
    MethodRow,
    element,
    inner,
    level,
    level_line,
    nice,
    number,
    percent,
    plural,
    power_words,
    sentence,
    strip,
    tick_row,
    upright,
)
from lightning_audit.report.text import (
    accountant_of,
    by_accountant,
    is_correlated,
    lower,
    refutes_mechanism,
    stated,
    title_of,
)
from lightning_audit.results.audit_report import (
    AT_END,
    AuditReport,
    EpsilonBound,
    measured_words,
)

# --- The epsilons of a report as bars on one axis, each with a sentence.

#: Names of the checks of how batches are drawn.
_OF_BATCHES = {check.name for check in sampling.CHECKS if check.refutes == OF_BATCHES}
#: The axis ends at this multiple of the largest other epsilon, however much is not excluded.
_MOST = 2.2
#: Sign of each kind of epsilon, which distinguishes it without color.
_SIGNS = {
    "claimed": "┆",
    "measured": "●",
    "spent": "◆",
    "proved": "▶",
    "single": "▷",
    "open": "◁",
}


@dataclass(frozen=True)
class EpsilonRow:
    """One epsilon.

    Args:
        kind: one of `_SIGNS`; after a blank, a further CSS class of its bar.
        name: what it is.
        value: the number; None if nothing is proved.
        means: what it says, in a sentence or two.
        leads: whether it is one of the two that are not folded: the stated and the found one.
    """

    kind: str
    name: str
    value: float | None
    means: str
    leads: bool = False


def most_found(epsilon: float, delta: float, fpr: float = FPR) -> float:
    r"""Return the largest true positive rate of an attack on an (epsilon, delta)-DP mechanism.

    .. math:: \min(1,\; e^\epsilon \alpha + \delta,\; 1 - e^{-\epsilon}(1 - \delta - \alpha))

    Args:
        epsilon: >= 0, may be infinite.
        delta: in [0, 1].
        fpr: false positive rate alpha in (0, 1).

    Example:
        >>> round(most_found(1.0, 1e-5), 4), round(most_found(8.0, 1e-5), 4)
        (0.0272, 0.9997)

    References:
        Kairouz, Oh and Viswanath, "The composition theorem for differential privacy", ICML 2015,
        arXiv:1311.0776, Theorem 2.1.
    """
    first = 1.0 if epsilon > -math.log(fpr) else math.exp(epsilon) * fpr + delta
    return min(1.0, first, 1.0 - math.exp(-epsilon) * (1.0 - delta - fpr))


def epsilon_section(report: AuditReport) -> dict[str, Any]:
    """Return all epsilons on one axis, for the template.

    Each row is an `EpsilonRow` with its sign, number and bar; what does not lead is folded.
    """
    claim, high = report.claimed_epsilon, _end_of_axis(report)
    found = list(_epsilons(report, high))
    shown = [DASH if row.value is None else number(row.value) for row in found]
    pairs = list(zip(found, shown, strict=True))
    names = ", ".join(f"{inner(row.name)} {text}" for row, text in pairs if not row.leads)
    return {
        "rows": [
            (row, _SIGNS[row.kind.split()[0]], text, _bar(row, high, report)) for row, text in pairs
        ],
        "ticks": tick_row(nice(high, 5), high),
        "note": _note(report, bool(found)),
        "claimed": claim is not None,
        "folded": names[:1].upper() + names[1:],
    }


def adjacency_words(report: AuditReport) -> str:
    """Return what neighboring data sets differ by."""
    seen = report.trainings
    replaced = (stated(report, "adjacency") if seen is None else seen.pair) == "replace_one"
    words = "one record is replaced by another" if replaced else "one record is added or removed"
    return f"{words}{report.of_items}"


#: How batches are drawn if neither a finding nor the claim says otherwise.
POISSON = "Poisson sampling at the stated rate"


def sampling_words(report: AuditReport) -> str:
    """Return how batches are drawn: as a finding says, else as the claim states it."""
    for check in report.checks:
        if check.status in ("violated", "allowed") and check.name in _OF_BATCHES:
            loader = check.evidence.get("loader")
            title = lower(title_of(check.name, failed=True))
            return visible(f"{title} ({loader})" if loader else title)
    if stated(report, "sampling") == "shuffled":
        return "shuffled batches, each record in one step per epoch, which nothing amplifies"
    return POISSON


def _end_of_axis(report: AuditReport) -> float:
    """Return the end of the axis of all epsilons."""
    found, many = report.epsilon_measured, report.trainings is not None
    measured = None if found is None else found.upper or found.lower
    bounds = [bound for bound in report.bounds if many or bound is _constant_bound(report)]
    known = [bound.epsilon_lower for bound in bounds]
    known += [report.claimed_epsilon, report.epsilon_spent, measured]
    known += [report.epsilon_lower, report.epsilon_lower_at_end]
    finite = [value for value in known if value is not None and math.isfinite(value)]
    top = max(finite, default=0.0) or 1.0
    return 1.12 * max(top, min(report.epsilon_not_excluded or 0.0, _MOST * top))


def _bar(row: EpsilonRow, high: float, report: AuditReport) -> Markup:
    def at(value: float | None) -> float:
        return 100.0 * min(value or 0.0, high) / high

    start = at(report.epsilon_lower) if row.kind == "open" else 0.0
    place = {"x": f"{start:.2f}%", "y": 8, "width": f"{max(0.4, at(row.value) - start):.2f}%"}
    parts = [
        level_line(0.0, 100.0, 15, "base"),
        element("rect", class_=f"b {row.kind}", **place, height=14, rx=2),
    ]
    claim = report.claimed_epsilon
    if claim is not None and math.isfinite(claim):
        parts.append(upright(at(claim), "claim dash", 30))
    return strip(30, *parts)


def _epsilons(report: AuditReport, high: float) -> Iterator[EpsilonRow]:
    """Yield what is known of a run whose axis ends at ``high``."""
    mechanism, spent, proved = _of_mechanism(report), report.epsilon_spent, report.epsilon_lower
    many = report.trainings is not None
    if (claim := report.claimed_epsilon) is not None:
        yield EpsilonRow("claimed", "Claimed", claim, _promise(report, claim), leads=True)
    if (one := report.epsilon_measured) is not None:
        name = "Measured, about" if one.about is not None else "Measured, at least"
        means = f"An estimate. {sentence(measured_words(report, source=True))}"
        value = one.lower if one.about is None else one.about
        yield EpsilonRow("measured", name, value, means, leads=True)
    if spent is not None:
        kind = "spent refuted" if mechanism else "spent"
        yield EpsilonRow(kind, "Spent", spent, _books(report, spent), leads=many or not mechanism)
    if many:
        for bound in report.bounds:
            kind = "proved" if bound.looks == "anytime" else "single"
            name, means = page_verdict.bound_row(bound)
            yield EpsilonRow(kind, name, bound.epsilon_lower or None, means, leads=True)
    elif proved is not None:
        name = "Proved at least" if proved else "Proved"
        yield EpsilonRow("proved", name, proved or None, _measured(report))
    if (end := report.epsilon_lower_at_end) and not many:
        of = next(bound.significance for bound in report.bounds if bound.name == AT_END)
        means = (
            "Measured by one look at the planned end, which was fixed before the first step, "
            f"with {level(of)} confidence for that look. "
            "Assumes that leakage kept a constant ratio to its claim."
        )
        yield EpsilonRow("single", "At the planned end", end, means)
    single = _constant_bound(report)
    if mechanism and single and (single.epsilon_lower or 0.0) > (proved or 0.0):
        means = (
            f"Measured, with {level(single.significance)} confidence for one look. "
            "Assumes that signal and noise kept a constant ratio to their claims."
        )
        if spent is not None and (single.epsilon_lower or 0.0) > spent:
            means += " It is more than the stated noise would cost."
        yield EpsilonRow("single", "At least, if constant", single.epsilon_lower, means)
    if (free := report.epsilon_not_excluded) is not None:
        means = "What the largest fault that a run of this length can miss would leak."
        means += " The bar continues outside of the picture." if free > high else ""
        longer = claim is not None and free > claim
        means += " A longer run excludes more." if longer else ""
        yield EpsilonRow("open", "Not excluded up to", free, means, leads=many)


def _promise(report: AuditReport, claim: float) -> str:
    by = f"By the {accountant_of(report)}, for these steps" if by_accountant(report) else "Promised"
    sure = 1.0 / (1.0 + math.exp(-claim))
    refuted = claim != report.epsilon_that_holds and ", ".join(report.epsilon_refuted_by)
    doubt = f" With {refuted} allowed, the claim is not known to hold." if refuted else ""
    return (
        f"{by}: no one who starts at 50:50 becomes more than {percent(sure)} sure whether "
        f"{adjacency_words(report)}, except with a probability of about δ. An attack that wrongly "
        f"accuses {percent(FPR)} of the absent records finds at most "
        f"{percent(most_found(claim, report.delta))} of the present ones.{doubt}"
    )


def _books(report: AuditReport, spent: float) -> str:
    found = percent(most_found(spent, report.delta))
    words = f"Computed from the stated noise and the steps; sampling: {sampling_words(report)}."
    if _of_mechanism(report):
        return f"{words} The training did not do what it states, so the true cost is another one."
    return (
        f"{words} The same attack finds at most {found} if the training does what it states, "
        "which the checks below test."
    )


def _measured(report: AuditReport) -> str:
    of = max((b.significance for b in report.bounds if b.looks == "anytime"), default=0.05)
    if not report.epsilon_lower:
        readings = plural(report.observations, "reading")
        return (
            f"Measured, with {level(of)} confidence: nothing is proved yet, by {readings}. It "
            "grows with more steps; 0 is no sign of privacy."
        )
    return (
        f"Measured: at least this much leaks, with {level(of)} confidence, no matter how often "
        "one looks. It grows with more steps."
    )


def _note(report: AuditReport, known: bool) -> str:
    if not known and is_correlated(report):
        return "No epsilon is computed for noise that is correlated over steps by design."
    if not known:
        return "No epsilon is claimed, and none could be computed for these steps."
    if not _of_mechanism(report):
        return ""
    single = _constant_bound(report)
    proved = max(report.epsilon_lower or 0.0, (single and single.epsilon_lower) or 0.0)
    below = report.claimed_epsilon is None or proved <= report.claimed_epsilon
    note = "The violation is in how steps are made, and was seen there. Bounds on the total follow"
    return f"{note} more slowly" + (
        ": that they are below the claim is no evidence for it." if below else "."
    )


def _of_mechanism(report: AuditReport) -> bool:
    return report.trainings is None and refutes_mechanism(report)  # many show their total


def _constant_bound(report: AuditReport) -> EpsilonBound | None:
    return next((b for b in report.bounds if b.name == "mu" and b.looks == "single"), None)


# --- Every number of the page with its method, level and assumptions.

_HOW = {
    "betting": ("Proved ε, at least", "bets on the coins from the readings"),
    AT_END: ("Proved ε, at the planned end", "limit of the noncentral t from the readings"),
    "mu": ("Proved ε, if constant", "least signal over most noise"),
    **page_verdict.METHODS,
}
_POWER = {"noise": "Power, noise", "sensitivity": "Power, clipping"}
#: Assumption of what the run could have shown.
_VARIANCE = "the data add as much variance to later readings as to those so far"


def method_table(report: AuditReport) -> dict[str, Any]:
    """Return all numbers for the template, each with the letters of its assumptions."""
    rows = list(_rows(report))
    every = list(dict.fromkeys(text for *_, assumed in rows for text in assumed))
    letters = {text: _letter(i) for i, text in enumerate(every)}
    return {
        "rows": [
            (*row, " ".join(letters[text] for text in assumed) or DASH) for *row, assumed in rows
        ],
        "assumptions": every,
        "letters": f"A to {_letter(len(every) - 1)}" if every[1:] else "A",
    }


def _letter(number_of: int) -> str:
    """Return A to Z, then AA, AB and so on, as an ordered list in HTML counts."""
    most, last = divmod(number_of, 26)
    return (_letter(most - 1) if most else "") + chr(65 + last)


def _rows(report: AuditReport) -> Iterator[MethodRow]:
    claim, spent = report.claimed_epsilon, report.epsilon_spent
    free, trainings = report.epsilon_not_excluded, report.trainings
    significance = report.settings.get("significance")
    if claim is not None:
        by = f"computed by the {accountant_of(report)} for these steps"
        how = by if by_accountant(report) else "claimed by the user"
        how = how if trainings is None else f"of {visible(trainings.claim)}"
        yield "Claimed ε", number(claim, 4), how, DASH, ()
    if spent is not None:
        how = "privacy loss distributions of the stated noise and the steps that ran"
        yield "Spent ε", number(spent, 4), how, "computed, rounded up", _of_spent(report)
    yield from map(_bound, report.bounds)
    if free is not None:
        how = "ε of the worst mechanism that this run could have missed"
        assumed = _stated(report, "epsilon_not_excluded") or (_VARIANCE,)
        yield "Not excluded, up to", number(free, 4), how, "95 % power", assumed
    if trainings is not None:
        yield from page_verdict.numbers(report, trainings)
    elif significance is not None:
        how = "e-values, shares over all checks (Ville's inequality, union bound)"
        alarm = f"≤ {number(significance)}"
        yield "False alarm", alarm, how, "any number of looks", ("fair private coins",)
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


def _bound(bound: EpsilonBound) -> MethodRow:
    other = (f"ε by {visible(bound.name)}", "a bound of the literature, in addition to the verdict")
    name, how = _HOW.get(bound.name, other)
    anytime = bound.looks == "anytime"
    if not anytime and bound.name in page_verdict.METHODS:
        name += ", at the planned end"
    looks = "at all looks together" if anytime else "for one look"
    searched = ", threshold searched on the same data" if bound.threshold == "searched" else ""
    holds = f"{level(bound.significance)} {bound.interpretation}, {looks}{searched}"
    return name, number(bound.epsilon_lower, 4), how, holds, bound.assumptions
