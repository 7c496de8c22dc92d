"""A report in at most 15 lines: what is wrong, where, what to do, what was not examined."""

from __future__ import annotations

import math
import os
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from lightning_audit.checks.base.check import QUESTIONS, Topic
from lightning_audit.checks.base.registry import REGISTRY
from lightning_audit.files.printable import visible
from lightning_audit.report.in_words import (
    NOT_TRIED,
    code_of,
    counted,
    headline,
    headline_of,
    lower,
    plural,
    power_of_ten,
    short_name,
    title_of,
)
from lightning_audit.report.terminal import as_ascii
from lightning_audit.results.audit_report import (
    AuditReport,
    CheckResult,
    EpsilonBound,
    LikelyFault,
)
from lightning_audit.results.verdict import SAME_FACTOR, outcome_in_words

MOST_LINES, WIDTH = 15, 80
_INDENT, _LABEL = 2, 13
_ROOM = WIDTH - _INDENT - _LABEL
#: Rows that lose a line if there are too many, in this order, and the fewest lines of each.
_SHORTENED = (
    *(("Not examined", 2), ("Code", 1), ("Where", 1), ("Also", 1), ("Or", 1), ("Look at", 2)),
    *(("Seen", 1), ("But", 1), ("Not examined", 1), ("Allowed", 1), ("Missing", 1)),
    ("Look at", 1),
)
#: Rows that are left out if there are still too many.
_LEFT_OUT = ("Not covered", "Explains", "Or", "Warning", "Would catch", "Missing", "Where", "But")
#: Topics in a word.
_TOPICS = {
    "Fresh randomness": "Randomness",
    "What the update uses": "Update",
    "Sampling and bookkeeping": "Sampling",
    "Total epsilon": "Epsilon",
}
_OTHER = "Own checks"
_IN_A_ROW, _CELL = 3, 20
#: What no audit of a training covers.
_NOT_COVERED = "preprocessing, other releases, several records of one person"


@dataclass(frozen=True)
class Row:
    """A row of the summary.

    Args:
        label: its first column; empty in the first row, which is the verdict.
        text: in one line, of any length.
        most: lines that it may take; 0 for a path, which is not broken.
        fitted: returns the text for a number of lines; None to cut it.
    """

    label: str
    text: str
    most: int = 1
    fitted: Callable[[int], str] | None = None

    @property
    def lines(self) -> list[str]:
        """The text in at most `most` lines."""
        text = visible(self.fitted(self.most) if self.fitted else self.text)
        if not self.most:
            return [text]
        text = as_ascii(text)  # each of its characters is one column wide
        room = _ROOM if self.label else WIDTH - _INDENT
        return textwrap.wrap(text, room, max_lines=self.most, placeholder=" ...")


def summary_rows(report: AuditReport, path: str | os.PathLike[str] | None = None) -> list[Row]:
    """Return the rows of a report's summary.

    Args:
        report: the report.
        path: where it was saved; None if it was not.

    Returns:
        Rows of `MOST_LINES` lines together, each of at most `WIDTH` columns with its label, paths
        excepted.
    """
    rows = [
        Row("", f"{_outcome(report)}: {headline(report)}", 2),
        *_found(report),
        *_guessed(report),
        *_undecided(report),
        *_no_fault(report),
        *_missing(report),
        *_accepted(report),
        Row("Epsilon", epsilons(report), 2),
        *_power(report),
        *_tallies(report),
    ]
    if report.trainings is None:
        rows.append(Row("Not examined", "", 4, partial(_not_examined, report)))
    if report.verdict.outcome != "VIOLATION":
        rows.append(Row("Not covered", _NOT_COVERED if report.trainings is None else NOT_TRIED))
    if path is not None:
        name = os.fspath(path)
        notes = f" (has {plural(len(report.notes), 'note')})" if report.notes else ""
        rows.append(Row("Report", f"lightning-audit show {name}{notes}", 0))
    return _fitting(rows)


def _fitting(rows: list[Row]) -> list[Row]:
    """Return rows of at most `MOST_LINES` lines."""
    # Lines that a text does not need are not given.
    rows = [replace(row, most=min(row.most, len(row.lines))) for row in rows]
    for label, least in _SHORTENED:
        for at in reversed(range(len(rows))):
            while rows[at].label == label and rows[at].most > least and _lines(rows) > MOST_LINES:
                rows[at] = replace(rows[at], most=rows[at].most - 1)
    for label in _LEFT_OUT:
        for row in [row for row in reversed(rows) if row.label == label]:
            if _lines(rows) > MOST_LINES:
                rows.remove(row)
    return rows


def _lines(rows: list[Row]) -> int:
    return sum(len(row.lines) for row in rows)


# ------------------------------------------------------------------ what is wrong


def _outcome(report: AuditReport) -> str:
    return outcome_in_words(replace(report.verdict, kind=None))


def _found(report: AuditReport) -> Iterator[Row]:
    """Yield the rows of the root, and of what it does not explain."""
    verdict, root = report.verdict, report.verdict.root
    if root is None:
        return
    check = _check_of(report, root)
    yield Row("Seen", _seen(root, check.message if check else verdict.summary), 2)
    if SAME_FACTOR in verdict.summary:
        yield Row("But", SAME_FACTOR, 2)
    yield Row("Evidence", "; ".join(_evidence(report, root, check)))
    where = [short_name(root.place.optimizer)] if root.place.optimizer else []
    names = root.place.parameters
    where += map(short_name, names[:3])
    where += [f"{len(names) - 3} more"] if len(names) > 3 else []
    where += [] if root.place.process is None else [f"process {root.place.process}"]
    if where:
        yield Row("Where", ", ".join(where), 2)
    code = code_of(root) or ["no line known; see Look at"]
    more = f" and {len(code) - 1} more" if len(code) > 1 else ""
    short, whole = f"{code[0]}{more}", ", ".join(code)
    yield Row("Code", whole, 2, lambda lines: short if lines == 1 else whole)
    look_at = root.look_at or verdict.advice or (check.advice if check else "")
    if look_at:
        yield Row("Look at", look_at.removeprefix("look at "), 3)
    if root.consequences:
        yield Row("Explains", plural(len(root.consequences), "more failed check"))
    for other in [f for f in verdict.faults[1:] if f.shares_finding(root)][:1]:
        yield Row("Or", lower(headline_of(other)), 2)
    if further := verdict.further:
        more = f"; and {plural(len(further) - 1, 'other finding')}" if len(further) > 1 else ""
        yield Row("Also", f"{lower(headline_of(further[0]))} ({further[0].finding}){more}", 2)


def _guessed(report: AuditReport) -> Iterator[Row]:
    """Yield what an audit over many trainings counted, and what a longer run would show."""
    seen, verdict = report.trainings, report.verdict
    if seen is None:
        return
    trainings, coins, rate = (f"{value} {remark}" for _, value, remark in counted(seen))
    yield Row("Trainings", trainings)
    yield Row("Coins", f"{coins}; error rate {rate}", 2)
    if verdict.advice:
        yield Row("Look at" if verdict.outcome == "VIOLATION" else "Next", verdict.advice, 3)


def _check_of(report: AuditReport, fault: LikelyFault) -> CheckResult | None:
    whose = ("", fault.place.optimizer)
    of_name = [check for check in report.checks if check.name == fault.finding]
    return next((check for check in of_name if check.optimizer in whose), None)


def _seen(root: LikelyFault, message: str) -> str:
    """Return the numbers of a fault, or what its check found."""
    numbers = root.sentence.partition(": ")[2]
    return numbers if re.search(r"\d", numbers) and numbers not in headline_of(root) else message


def _evidence(report: AuditReport, root: LikelyFault, check: CheckResult | None) -> Iterator[str]:
    if check and check.log_e_value is not None and check.share > 0:
        level = check.share * float(report.settings.get("significance", 1e-3))
        alarm = power_of_ten(-math.log(level))
        yield f"e-value {power_of_ten(check.log_e_value)}, alarm at {alarm}"
    else:
        yield "seen directly"
    if root.place.step is not None:
        yield f"first in step {root.place.step + 1} of {report.steps}"


def _undecided(report: AuditReport) -> Iterator[Row]:
    for label, status in (("Unclear", "undecided"), ("Warning", "warned")):
        names = [c.name for c in report.checks if c.status == status and not c.follows_from]
        if names:
            more = f"; and {len(names) - 1} more" if len(names) > 1 else ""
            yield Row(label, f"{lower(title_of(names[0], failed=True))} ({names[0]}){more}")


def _no_fault(report: AuditReport) -> Iterator[Row]:
    """Yield the row of a report that accuses no code."""
    if report.trainings is not None:  # they point at no code
        return
    doubtful = any(check.status == "undecided" for check in report.checks)
    if report.verdict.outcome != "VIOLATION" and not doubtful:
        to_do = "; nothing to do" if report.verdict.outcome == "PASS" else ""
        yield Row("Code", f"no line is suspected of a fault{to_do}")


# ------------------------------------------------------------------ what is missing or accepted


def _missing(report: AuditReport) -> Iterator[Row]:
    items = report.verdict.pass_blockers
    for item in items[:3]:
        yield Row("Missing", item, 3)
    if len(items) > 3:
        yield Row("Missing", f"and {len(items) - 3} more")


def _accepted(report: AuditReport) -> Iterator[Row]:
    if report.verdict.holds:
        yield Row("Allowed", report.verdict.holds, 2)


def epsilons(report: AuditReport) -> str:
    """Return the epsilons of a report, with what is known not to hold."""
    # If the user allows findings, the true epsilon may exceed the claim.
    refuted, spent = report.epsilon_refuted_by, report.epsilon_spent
    claimed, proved = report.claimed_epsilon, report.epsilon_lower
    kept = spent is not None and claimed is not None and spent <= claimed
    if (report.settings.get("claim") or {}).get("noise_coefficients"):
        return "not composed: the mechanism alone was judged"
    remarks = ["accountant"] if report.settings.get("claimed_epsilon", 0.0) is None else []
    remarks += [] if kept or not refuted else ["not known to hold"]
    # A violated mechanism is not the one whose cost was composed.
    wrong = report.verdict.outcome == "VIOLATION" and report.verdict.kind == "mechanism"
    cost = " (holds)" if refuted else " (as stated)" if wrong else ""
    known = {
        "claimed {}" + (f" ({', '.join(remarks)})" if remarks else ""): claimed,
        f"spent {{}}{cost}": spent,
        "proved >= {}": proved or None,
        "excluded > {}": report.epsilon_not_excluded,
    }
    shown = [name.format(f"{value:.3g}") for name, value in known.items() if value is not None]
    if proved == 0.0:  # no news, and no sign of privacy
        shown.insert(len(shown) - (report.epsilon_not_excluded is not None), "no bound proved")
    return f"{', '.join(shown) or 'unknown'}; delta {report.delta:g}"


def mu_bounds(report: AuditReport) -> list[EpsilonBound]:
    """Return the lower bounds on mu of one step that hold for a single look."""
    return [
        bound
        for bound in report.bounds
        if bound.name == "mu" and bound.looks == "single" and bound.mu_lower is not None
    ]


def _power(report: AuditReport) -> Iterator[Row]:
    """Yield what the run could have shown, with its probability."""
    if report.verdict.outcome == "VIOLATION":
        return
    words = {"noise": "{:g} times the noise", "sensitivity": "{:g} times the clipping norm"}
    seen = [
        f"{said.format(row['size'])} ({_percent(row['power'])})"
        for part, said in words.items()
        if (row := report.power.get(part)) and {"size", "power"} <= row.keys()
    ]
    if seen:
        yield Row("Would catch", ", ".join(seen))


# ------------------------------------------------------------------ what was examined


def _tallies(report: AuditReport) -> Iterator[Row]:
    """Yield for each topic how many of its checks that ran are fine, and a sign if not all are."""
    if report.trainings is not None:  # one check, whose counts are shown
        return
    topics: dict[Topic | None, list[CheckResult]] = {topic: [] for topic in QUESTIONS}
    for check in report.checks:
        known = REGISTRY.get(check.name)
        topics.setdefault(known.topic if known else None, []).append(check)
    cells = [_tally(topic, checks) for topic, checks in topics.items()]
    for at in range(0, len(cells), _IN_A_ROW):
        row = "".join(f"{cell:<{_CELL}}" for cell in cells[at : at + _IN_A_ROW])
        yield Row("Checks ok" if at == 0 else " ", row.rstrip(), 0)


def _tally(topic: Topic | None, checks: list[CheckResult]) -> str:
    name = _TOPICS.get(topic, topic) if topic else _OTHER
    statuses = [check.status for check in checks if check.status != "not_run"]
    if not statuses:
        return f"{name} -"
    fine = sum(status in ("ok", "warned", "allowed") for status in statuses)
    signs = {"violated": " x", "undecided": " ?", "allowed": " !", "warned": " !"}
    sign = next((sign for status, sign in signs.items() if status in statuses), "")
    return f"{name} {fine}/{len(statuses)}{sign}"


def _not_examined(report: AuditReport, lines: int) -> str:
    """Return which checks did not run, in at most ``lines`` lines if that is possible."""
    left = [check for check in report.checks if check.status == "not_run"]
    names = list(dict.fromkeys(lower(title_of(check.name)) for check in left))
    if any(check.evidence.get("between_epochs") for check in report.checks):
        names.append("what changes the weights between epochs")
    if not names:
        return "no check was left out" if report.checks else "everything"
    reasons = {check.message.partition(": ")[2] or check.message for check in left}
    why = f" ({next(iter(reasons))})" if len(reasons) == 1 else ""
    for reason in (why, ""):
        for count in range(len(names), 0, -1):
            more = f" and {len(names) - count} more" if count < len(names) else ""
            text = f"{', '.join(names[:count])}{more}{reason}"
            if len(textwrap.wrap(text, _ROOM)) <= lines and (not reason or not more):
                return text
    return text


def _percent(probability: float) -> str:
    return ">99%" if probability >= 0.995 else f"{100.0 * probability:.0f}%"
