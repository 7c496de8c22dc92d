"""Prints a report: a summary of at most 15 lines, or the whole table of its checks.

The verdict comes first, with its root. In the table, a check that follows from a finding has no row
of its own.
"""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING

from lightning_audit.files.printable import visible
from lightning_audit.report.in_words import counts_line
from lightning_audit.report.summary_rows import mu_bounds, summary_rows
from lightning_audit.report.terminal import (
    STYLES,
    as_ascii,
    has_signs,
    print_lines,
    screen,
    table,
    with_signs,
)
from lightning_audit.results.audit_report import AuditReport, CheckResult, describe
from lightning_audit.results.trainings_seen import TrainingsSeen

if TYPE_CHECKING:
    from rich.text import Text

_MARKS = {
    "violated": "VIOLATED",
    "undecided": "undecided",
    "allowed": "allowed",
    "warned": "warning",
    "ok": "ok",
    "not_run": "not run",
}
#: Signs differ in shape: nothing is shown by color alone.
_SIGNS = {"PASS": "✓", "VIOLATION": "✕", "INCONCLUSIVE": "?"}
_LABEL = 13


def print_summary(report: AuditReport, path: str | os.PathLike[str] | None = None) -> None:
    """Print a report in at most 15 lines to standard output.

    Args:
        report: the report.
        path: where it was saved; None if it was not.
    """
    if has_signs(screen()):
        print_lines("", _with_color(report, path))
    else:
        print_lines("", summary(report, path))


def summary(report: AuditReport, path: str | os.PathLike[str] | None = None) -> str:
    """Return the summary of a report in ASCII, without a final newline; for arguments see above."""
    lines = [f"{label}{text}" for label, text in _labeled(report, path)]
    return as_ascii("\n".join(line.rstrip() for line in lines))


def _labeled(report: AuditReport, path: str | os.PathLike[str] | None) -> list[tuple[str, str]]:
    """Return the lines of the summary, each as its first column and its text."""
    found = []
    for row in summary_rows(report, path):
        for number, text in enumerate(row.lines):
            label = row.label if number == 0 else ""
            indent = f"  {label:<{_LABEL}}" if row.label else "  " * bool(number)
            found.append((indent, text))
    return found


def _with_color(report: AuditReport, path: str | os.PathLike[str] | None) -> Text:
    """Return the summary with signs, raised powers and colors."""
    from rich.text import Text

    outcome = report.verdict.outcome
    text = Text()
    for number, (label, line) in enumerate(_labeled(report, path)):
        shown = with_signs(line)
        if number == 0:
            text.append(f"{_SIGNS[outcome]} {outcome}", STYLES[outcome])
            text.append(shown.removeprefix(outcome), "bold")
        else:
            text.append(f"\n{label}", "dim")
            text.append(shown, STYLES[outcome] if label.strip() == "Evidence" else "")
    return text


def print_report(report: AuditReport, path: str | os.PathLike[str] | None = None) -> None:
    """Print the verdict in full, every check, and all numbers of a report to standard output.

    Args:
        report: the report.
        path: where it was saved; None if it was not.
    """
    rows = [
        (check.name, _MARKS[check.status], evidence_of(check), check.message)
        for check in report.checks
        if not check.follows_from
    ]
    print_lines(
        "",
        describe(report.verdict),
        table(("check", "result", "evidence", "observed"), rows, title="Checks"),
        *_epsilon_lines(report),
        *_closing_lines(report, path),
    )


def evidence_of(check: CheckResult) -> str:
    """Return a check's e-value as a power of ten; empty for a deterministic check."""
    if check.log_e_value is None or check.status == "not_run":
        return ""
    return f"e = 10^{check.log_e_value / math.log(10.0):.1f}"


def _epsilon_lines(report: AuditReport) -> list[str]:
    # If the user claims none, `claimed_epsilon` is the accountant's for the same steps.
    accounted = report.settings.get("claimed_epsilon", 0.0) is None
    source = " (by the accountant)" if accounted else ""
    # If the user allows findings, the true epsilon may exceed the claim.
    by, spent = ", ".join(report.epsilon_refuted_by), report.epsilon_spent
    if by and report.claimed_epsilon is not None:
        holds = spent is not None and spent <= report.claimed_epsilon
        source += "" if holds else f" (not known to hold with {by} allowed)"
    readings = "readings" if report.trainings is None else "coins, at any look"
    how = "holds" if by else "composed from the steps"
    numbers = {
        f"claimed {{}}{source}": report.claimed_epsilon,
        f"spent {{}} ({how})": spent,
        f"proved at least {{}} (from the {readings})": report.epsilon_lower,
        "not excluded up to {}": report.epsilon_not_excluded,
    }
    shown = [name.format(f"{x:.4g}") for name, x in numbers.items() if x is not None]
    line = f"epsilon at delta {report.delta:g}: {', '.join(shown) or 'unknown'}"
    mu = [
        f"mu of a step: at least {bound.mu_lower:.4g} with {100 - 100 * bound.significance:.4g} % "
        "confidence, if signal and noise kept a constant ratio to their claims"
        for bound in mu_bounds(report)
    ]
    steps = f"{report.steps} steps, {report.observations} canary readings"
    counts = [steps] if report.trainings is None else _training_lines(report, report.trainings)
    return [line, *mu, *counts, *_cost_lines(report)]


def _training_lines(report: AuditReport, seen: TrainingsSeen) -> list[str]:
    """Return the counts of an audit over many trainings, and its bound at the planned end."""
    lines = [counts_line(seen)]
    ends = [b.epsilon_lower for b in report.bounds if b.looks == "single" and b.epsilon_lower]
    if ends:
        lines.append(f"epsilon at least {max(ends):.4g} by one look at the planned end")
    return lines


def _cost_lines(report: AuditReport) -> list[str]:
    """Return the time that the audit took, and that of the examinations by replay."""
    cost, examined = report.audit_cost, report.examination_cost
    if not {"seconds", "share"} <= cost.keys():
        return []
    percent = f"{100.0 * cost['share']:.{0 if cost['share'] >= 0.1 else 1}f} %"
    line = f"the audit took {cost['seconds']:.2g} s, {percent} of the rest of the training"
    if {"first", "first_step_times", "later"} <= examined.keys():
        first = f"{examined['first']:.2g} s ({examined['first_step_times']:.0f} step times)"
        line += f"; the first examination by replay {first}, later ones {examined['later']:.2g} s"
    return [line]


def _closing_lines(report: AuditReport, path: str | os.PathLike[str] | None) -> list[str]:
    lines = [f"Note: {visible(note)}" for note in report.notes]
    if path is not None:
        written = f" (written {visible(report.created)})" if report.created else ""
        lines.append(f"Report: {visible(os.fspath(path))}{written}")
    return lines
