"""Several reports as text: a line each."""

from __future__ import annotations

from collections.abc import Sequence

from lightning_audit.cli.formats.checked import Checked, worst
from lightning_audit.cli.formats.epsilons_shown import epsilons
from lightning_audit.files.printable import visible
from lightning_audit.report.terminal import as_text, table
from lightning_audit.results.audit_report import Outcome
from lightning_audit.results.verdict import outcome_in_words

#: Outcomes differ by a character, since there is no color.
_MARKS: dict[Outcome, str] = {"PASS": " ", "VIOLATION": "x", "INCONCLUSIVE": "?"}


def as_lines(checked: Sequence[Checked]) -> str:
    """Return a line for each report, then the worst outcome.

    Args:
        checked: one report or more.
    """
    rows = [(f"{_MARKS[one.outcome]} {one.training}", _outcome(one), _what(one)) for one in checked]
    found = worst(one.outcome for one in checked)
    path = visible(next(one.path for one in checked if one.outcome == found))
    which = f"worst verdict of {len(checked)} trainings" if len(checked) > 1 else "verdict"
    last = f"{found} is the {which}: {path}"
    return as_text(table(["", "", ""], rows), "", last)


def _outcome(one: Checked) -> str:
    if one.report and one.report.verdict.outcome == one.outcome == "PASS":
        return visible(outcome_in_words(one.report.verdict))
    return one.outcome


def _what(one: Checked) -> str:
    """Return the reasons for an outcome other than PASS, or the epsilons, in a line."""
    reasons = one.reasons
    if not reasons:
        return epsilons(one.report) if one.report else ""
    more = f"; and {len(reasons) - 2} more" if len(reasons) > 2 else ""
    return visible("; ".join(reason.split("\n")[0] for reason in reasons[:2]) + more)
