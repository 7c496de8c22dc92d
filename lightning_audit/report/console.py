"""Prints a report to the terminal: a table if rich is installed, aligned lines if not.

The verdict comes first, with its root. A check that follows from a finding has no row of its own.
"""

from __future__ import annotations

import math
import os

from lightning_audit.files.printable import visible
from lightning_audit.results.audit_report import AuditReport, CheckResult, describe
from lightning_audit.results.trainings_seen import TrainingsSeen

_MARKS = {
    "violated": "VIOLATED",
    "undecided": "undecided",
    "allowed": "allowed",
    "warned": "warning",
    "ok": "ok",
    "not_run": "not run",
}
_STYLES = {
    "violated": "bold red",
    "undecided": "bold yellow",
    "allowed": "yellow",
    "warned": "yellow",
    "ok": "green",
    "not_run": "dim",
}
_OUTCOME_STYLES = {"PASS": "bold green", "VIOLATION": "bold red", "INCONCLUSIVE": "bold yellow"}


def print_report(report: AuditReport, path: str | os.PathLike[str] | None = None) -> None:
    """Print a report to standard output.

    Args:
        report: the report.
        path: where it was saved; None if it was not.
    """
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:  # the text has the same content
        print(as_text(report, path))
        return
    # Names and messages are printed verbatim: no markup, no emoji codes.
    console = Console(markup=False, emoji=False, highlight=False)
    table = Table(title="Checks", title_justify="left")
    for column in ("check", "result", "evidence", "observed"):
        table.add_column(column, overflow="fold")
    for check in _shown_checks(report):
        mark = Text(_MARKS[check.status], style=_STYLES[check.status])
        name, message = Text(visible(check.name)), Text(visible(check.message))
        table.add_row(name, mark, evidence_of(check), message)
    console.print()  # a progress bar may occupy the line
    console.print(describe(report.verdict), style=_OUTCOME_STYLES[report.verdict.outcome])
    console.print(table)
    for line in _epsilon_lines(report):
        console.print(line)
    for line in _closing_lines(report, path):
        # A path broken over several lines cannot be copied.
        console.print(line, soft_wrap=True)


def as_text(report: AuditReport, path: str | os.PathLike[str] | None = None) -> str:
    """Return the report as lines of text.

    Args:
        report: the report.
        path: where it was saved; None if it was not.

    Returns:
        The text, without a final newline.
    """
    checks = _shown_checks(report)
    names = [visible(check.name) for check in checks]
    width = max(map(len, names), default=0)
    rows = [
        f"  {name:<{width}}  {_MARKS[check.status]:<8}  {evidence_of(check):<12}  "
        f"{visible(check.message)}"
        for name, check in zip(names, checks, strict=True)
    ]
    return "\n".join(
        [
            "",
            describe(report.verdict),
            "Checks",
            *rows,
            *_epsilon_lines(report),
            *_closing_lines(report, path),
        ]
    )


def _shown_checks(report: AuditReport) -> list[CheckResult]:
    return [check for check in report.checks if not check.follows_from]


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
    steps = f"{report.steps} steps, {report.observations} canary readings"
    counts = [steps] if report.trainings is None else _training_lines(report, report.trainings)
    return [line, *_mu_lines(report), *counts, *_cost_lines(report)]


def _training_lines(report: AuditReport, seen: TrainingsSeen) -> list[str]:
    """Return the counts of an audit over many trainings, and its bound at the planned end."""
    failed = f", {seen.failures:,} failed" if seen.failures else ""
    lines = [
        f"{seen.trainings:,} of {seen.planned:,} trainings{failed}; {seen.errors:,} of "
        f"{seen.guesses:,} coins guessed wrong; error rate at most {seen.error_upper:.3g}, the "
        f"claim allows {seen.least_error:.3g} or more"
    ]
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


def _mu_lines(report: AuditReport) -> list[str]:
    """Return the lower bound on mu of one step, and its assumption."""
    return [
        f"mu of a step: at least {bound.mu_lower:.4g} with {100 - 100 * bound.significance:.4g} % "
        "confidence, if signal and noise kept a constant ratio to their claims"
        for bound in report.bounds
        if bound.name == "mu" and bound.looks == "single" and bound.mu_lower is not None
    ]


def _closing_lines(report: AuditReport, path: str | os.PathLike[str] | None) -> list[str]:
    lines = [f"Note: {visible(note)}" for note in report.notes]
    if path is not None:
        written = f" (written {visible(report.created)})" if report.created else ""
        lines.append(f"Report: {visible(os.fspath(path))}{written}")
    return lines
