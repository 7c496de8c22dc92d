"""`lightning-audit diff`: what changed between the reports of two runs of one training."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from lightning_audit.cli.check_command import load
from lightning_audit.cli.options import non_negative
from lightning_audit.cli.output import Refused
from lightning_audit.cli.regression import another_training, regressions
from lightning_audit.files.printable import visible
from lightning_audit.report.terminal import as_text, table
from lightning_audit.results.audit_report import EXIT_CODES, AuditReport, ReportError
from lightning_audit.results.verdict import outcome_in_words

#: Numbers of a report that are compared.
_NUMBERS = ("epsilon_lower", "epsilon_spent", "claimed_epsilon", "epsilon_not_excluded", "steps")
#: Characters of a value.
_LONGEST = 60


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.description = (
        "Show what changed from one report to another of the same training: verdict, epsilons, "
        "checks, settings, versions. Exit with 0 if nothing became worse, with 1 if "
        "epsilon_spent or epsilon_lower rose or a check newly failed, with 2 if the reports "
        "cannot be compared."
    )
    parser.add_argument("old", help="the earlier report.json")
    parser.add_argument("new", help="the later report.json")
    parser.add_argument(
        "--max-regression",
        type=non_negative,
        default=0.0,
        metavar="X",
        help="accept a rise of an epsilon by at most X (default: 0)",
    )


def run(options: argparse.Namespace) -> int:
    """Print the differences; the exit code says whether something became worse."""
    old, new = _read(options.old), _read(options.new)
    if other := another_training(old, new):
        raise Refused(f"the reports are of different trainings: {other}")
    worse = regressions(old, new, options.max_regression)
    for outcome, text in worse:
        print(visible(f"{outcome}: {text}"))
    rows = [
        (f"  {name}", _shown(before), "->", _shown(now))
        for name, before, now in _differences(old, new)
    ]
    print(as_text(table([""] * 4, rows)) if rows else "the reports do not differ")
    codes = {EXIT_CODES[outcome] for outcome, _ in worse}
    return min(codes, default=EXIT_CODES["PASS"])  # a violation is worse than inconclusive


def _read(path: str) -> AuditReport:
    try:
        return load(path)
    except ReportError as error:
        first, *rest = str(error).split("\n")
        for line in rest:
            print(visible(line), file=sys.stderr)
        raise Refused(f"{path}: {first}") from error


def _differences(old: AuditReport, new: AuditReport) -> Iterator[tuple[str, Any, Any]]:
    """Yield what differs: its name, the value before, the value now."""
    yield from _changed(
        {"verdict": outcome_in_words(old.verdict)}, {"verdict": outcome_in_words(new.verdict)}
    )
    yield from _changed(*({name: getattr(one, name) for name in _NUMBERS} for one in (old, new)))
    yield from _changed(_statuses(old), _statuses(new))
    yield from _changed(*(_inner("settings", one.settings) for one in (old, new)))
    yield from _changed(*(_inner("environment", one.environment) for one in (old, new)))


def _changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    for name in dict.fromkeys((*before, *now)):
        if before.get(name) != now.get(name):
            yield name, before.get(name), now.get(name)


def _statuses(report: AuditReport) -> dict[str, str]:
    return {" of ".join(filter(None, (c.name, c.optimizer))): c.status for c in report.checks}


def _inner(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{name}.{key}": value for key, value in values.items()}


def _shown(value: Any) -> str:
    text = "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
    text = visible(text)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
