"""Tables of the page: epsilons on one axis, every number with its method."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from markupsafe import Markup

from lightning_audit.checks import sampling
from lightning_audit.checks.check import OF_BATCHES
from lightning_audit.files import visible
from lightning_audit.report import page_verdict
from lightning_audit.report.page_figures import FPR, is_correlated
from lightning_audit.report.page_parts import (
    DASH,
    element,
    inner,
    level,
    level_line,
    marked,
    nice,
    number,
    percent,
    plural,
    power_words,
    row,
    sentence,
    tick_row,
    upright,
)
from lightning_audit.report.text import lower, refutes_mechanism, title_of
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


@dataclass(frozen=True)
class EpsilonRow:
    """One epsilon.

    Args:
        kind: CSS class of its bar.
        sign: character that distinguishes it without color.
        name: what it is.
        value: the number as text.
        bar: the bar.
        means: what it says, in a sentence or two.
        leads: whether it is one of the two that are not folded: the stated and the found one.
    """

    kind: str
    sign: str
    name: str
    value: str
    bar: Markup
    means: str
    leads: bool = False


@dataclass(frozen=True)
class EpsilonSection:
    """All epsilons on one axis.

    Args:
        rows: the bars.
        ticks: labels of the axis; empty without rows.
        note: what a violation means for them, or that nothing is known.
        claimed: whether the claim is drawn as a line.
        folded: names of the bars that are folded, with their values; empty if there are none.
    """

    rows: tuple[EpsilonRow, ...]
    ticks: Markup
    note: str
    claimed: bool
    folded: str = ""


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


def epsilon_section(report: AuditReport) -> EpsilonSection:
    """Return the section of a report."""
    drawn = _Axis(report)
    rows = tuple(drawn.rows())
    ticks = tick_row(nice(drawn.high, 5), drawn.high) if rows else Markup("")
    names = ", ".join(f"{inner(row.name)} {row.value}" for row in rows if not row.leads)
    folded = names[:1].upper() + names[1:]
    return EpsilonSection(rows, ticks, _note(report, bool(rows)), drawn.claim is not None, folded)


def adjacency_words(report: AuditReport) -> str:
    """Return what neighboring data sets differ by."""
    claim, seen = report.settings.get("claim") or {}, report.trainings
    replaced = (claim.get("adjacency") if seen is None else seen.pair) == "replace_one"
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
    claim = report.settings.get("claim") or {}
    if claim.get("sampling") == "shuffled":
        return "shuffled batches, each record in one step per epoch, which nothing amplifies"
    return POISSON


class _Axis:
    """The axis of all epsilons of a report, and the bars on it."""

    def __init__(self, report: AuditReport) -> None:
        self.report = report
        self.claim, self.spent = report.claimed_epsilon, report.epsilon_spent
        self.proved, self.free = report.epsilon_lower, report.epsilon_not_excluded
        self.single, self.end = _constant_bound(report), report.epsilon_lower_at_end
        single = self.single.epsilon_lower if self.single else None
        self.many = report.bounds if report.trainings is not None else ()
        most = (bound.epsilon_lower for bound in self.many)
        self.found = report.epsilon_measured
        found = None if self.found is None else self.found.upper or self.found.lower
        known = [self.claim, self.spent, self.proved, self.end, single, found, *most]
        finite = [value for value in known if value is not None and math.isfinite(value)]
        top = max(finite, default=0.0) or 1.0
        self.high = 1.12 * max(top, min(self.free or 0.0, _MOST * top))

    def at(self, value: float | None) -> float:
        """Return the place of an epsilon in percent; one beyond the axis at its end."""
        return 100.0 * min(value or 0.0, self.high) / self.high

    def rows(self) -> Iterator[EpsilonRow]:
        """Yield what is known."""
        mechanism = _of_mechanism(self.report)
        if self.claim is not None:
            means = _promise(self.report, self.claim)
            yield self._row("claimed", "┆", "Claimed", self.claim, means, leads=True)
        if self.found is not None:
            one = self.found
            name = "Measured, about" if one.about is not None else "Measured, at least"
            means = f"An estimate. {sentence(measured_words(self.report, source=True))}"
            about = one.lower if one.about is None else one.about
            yield self._row("measured", "●", name, about, means, leads=True)
        if self.spent is not None:
            kind = "spent refuted" if mechanism else "spent"
            leads = not mechanism and not self.many
            yield self._row(
                kind, "◆", "Spent", self.spent, _books(self.report, self.spent), leads=leads
            )
        for bound in self.many:
            kind, sign = ("proved", "▶") if bound.looks == "anytime" else ("single", "▷")
            name, means = page_verdict.bound_row(bound)
            yield self._row(kind, sign, name, bound.epsilon_lower or None, means)
        if self.proved is not None and not self.many:
            value = self.proved or None
            yield self._row("proved", "▶", "Proved at least", value, _measured(self.report))
        if self.end and not self.many:
            means = (
                "Measured by one look at the planned end, which was fixed before the first step, "
                f"with {level(_end_bound(self.report).significance)} confidence for that look. "
                "Assumes that leakage kept a constant ratio to its claim."
            )
            yield self._row("single", "▷", "At the planned end", self.end, means)
        if self.single is not None and mechanism:
            single = self.single.epsilon_lower
            if single is not None and single > (self.proved or 0.0):
                means = (
                    f"Measured, with {level(self.single.significance)} confidence for one look. "
                    "Assumes that signal and noise kept a constant ratio to their claims."
                )
                above = self.spent is not None and single > self.spent
                means += " It is more than the stated noise would cost." if above else ""
                yield self._row("single", "▷", "At least, if constant", single, means)
        if self.free is not None:
            yield self._row("open", "◁", "Not excluded up to", self.free, _open(self, self.free))

    def _row(
        self,
        kind: str,
        sign: str,
        name: str,
        value: float | None,
        means: str,
        *,
        leads: bool = False,
    ) -> EpsilonRow:
        start = self.at(self.proved) if kind == "open" else 0.0
        bar = element(
            "rect",
            class_=f"b {kind}",
            x=f"{start:.2f}%",
            y=8,
            width=f"{max(0.4, self.at(value) - start):.2f}%",
            height=14,
            rx=2,
        )
        parts = [level_line(0.0, 100.0, 15, "base"), bar]
        if self.claim is not None and math.isfinite(self.claim):
            parts.append(upright(self.at(self.claim), "claim dash", 30))
        shown = DASH if value is None else number(value)
        leads = leads or bool(self.many)
        return EpsilonRow(kind, sign, name, shown, row(30, *parts), means, leads)


def _promise(report: AuditReport, claim: float) -> str:
    source = report.settings.get("claimed_epsilon", 0.0) is None
    by = "By the accountant, for the stated steps: n" if source else "The promise: n"
    sure = 1.0 / (1.0 + math.exp(-claim))
    refuted = claim != report.epsilon_that_holds and ", ".join(report.epsilon_refuted_by)
    doubt = f" With {refuted} allowed, the claim is not known to hold." if refuted else ""
    return (
        f"{by}o one who starts at 50:50 becomes more than {percent(sure)} sure whether "
        f"{adjacency_words(report)}, except with a probability of about δ. An attack that wrongly "
        f"accuses {percent(FPR)} of the absent records finds at most "
        f"{percent(most_found(claim, report.delta))} of the present ones.{doubt}"
    )


def _books(report: AuditReport, spent: float) -> str:
    found = percent(most_found(spent, report.delta))
    words = f"Composed from the stated noise and the steps; sampling: {sampling_words(report)}."
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


def _open(axis: _Axis, free: float) -> str:
    words = "What the largest fault that a run of this length can miss would leak."
    if free > axis.high:
        words += " The bar continues outside of the picture."
    if axis.claim is not None and free > axis.claim:
        words += " A longer run excludes more."
    return words


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


def _end_bound(report: AuditReport) -> EpsilonBound:
    return next(b for b in report.bounds if b.name == AT_END)


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
        letters: the first and the last letter.
    """

    rows: tuple[MethodRow, ...]
    assumptions: tuple[Markup, ...]
    letters: str


def method_table(report: AuditReport) -> MethodTable:
    """Return the table of a report."""
    rows = list(_rows(report))
    every = list(dict.fromkeys(text for *_, assumed in rows for text in assumed))
    letters = {text: _letter(i) for i, text in enumerate(every)}
    return MethodTable(
        letters=f"A to {_letter(len(every) - 1)}" if every[1:] else "A",
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
        yield from page_verdict.numbers(report, trainings)
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
    if not anytime and bound.name in page_verdict.METHODS:
        name += ", at the planned end"
    looks = "at all looks together" if anytime else "for one look"
    searched = ", threshold searched on the same data" if bound.threshold == "searched" else ""
    holds = f"{level(bound.significance)} {bound.interpretation}, {looks}{searched}"
    return name, number(bound.epsilon_lower, 4), how, holds, bound.assumptions
