"""Renders a report as one HTML page, and several as an index."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from lightning_audit import __version__
from lightning_audit.files.printable import visible
from lightning_audit.page import call_again, check_groups, run_details
from lightning_audit.page.epsilon_rows import epsilon_section
from lightning_audit.page.method_table import method_table
from lightning_audit.page.shown_text import marked, number, plural, seen, sentence
from lightning_audit.page.tensor_dots import tensor_section
from lightning_audit.page.timeline_figure import timeline
from lightning_audit.page.tradeoff_figure import tradeoff
from lightning_audit.page.verdict_words import (
    further_findings,
    root_finding,
    verdict_meaning,
    verdict_sentence,
)
from lightning_audit.record.report_directory import archive_of
from lightning_audit.report.in_words import length
from lightning_audit.results import report_json
from lightning_audit.results.audit_report import AuditReport, Outcome

#: Name of the style sheet next to a page that does not contain it.
CSS_NAME = "report.css"
#: Signs of the outcomes in a line of text; they differ in shape.
SIGNS: dict[Outcome, str] = {"PASS": "✓", "VIOLATION": "✕", "INCONCLUSIVE": "?"}


@dataclass(frozen=True)
class IndexRow:
    """A training in an index.

    Args:
        training: its name.
        page: address of its page, relative to the index; empty if it has none.
        report: its report; None if it cannot be read.
        error: why it cannot be read.
    """

    training: str
    page: str
    report: AuditReport | None
    error: str = ""


def report_page(report: AuditReport, training: str, *, css_beside: bool = False) -> str:
    """Return a report as an HTML page without script or request.

    Args:
        report: the report.
        training: name of the training, for the title.
        css_beside: whether the page refers to the style sheet `CSS_NAME` next to it, for servers
            that forbid inline styles. If not, the page contains it.
    """
    parts = _parts(report)
    return rendered(
        "report.html.j2",
        css_beside,
        training=visible(training),
        outcome=report.verdict.outcome,
        created=_time_shown(report.created),
        verdict=marked(verdict_sentence(report)),
        meaning=verdict_meaning(report),
        facts=run_details.facts(report),
        contents=_contents(parts),
        delta=number(report.delta),
        never=check_groups.never(report),
        one_training=report.trainings is None,
        notes=[marked(sentence(note)) for note in report.notes],
        call=Markup.escape(call_again.call(report)),
        settings=call_again.all_settings(report),
        environment=call_again.environment(report),
        cost=call_again.cost(report),
        archive=_archive(report),
        digest=report_json.digest(_written(report)),
        schema=report.schema_version,
        **parts,
    )


def index_page(rows: Sequence[IndexRow], *, css_beside: bool = False) -> str:
    """Return the index of several reports, the worst outcome first.

    Args:
        rows: the trainings.
        css_beside: see `report_page`.
    """
    order: list[Outcome] = ["VIOLATION", "INCONCLUSIVE", "PASS"]
    outcomes = [_outcome(row) for row in rows]
    worst = min(outcomes, key=order.index, default="INCONCLUSIVE")
    found = sorted(zip(rows, outcomes, strict=True), key=lambda pair: order.index(pair[1]))
    counts = [f"{outcomes.count(o)} {o}" for o in order if o in outcomes]
    return rendered(
        "index.html.j2",
        css_beside,
        headline=f"{', '.join(counts)}",
        outcome=worst,
        rows=[
            {
                "training": visible(row.training),
                "page": row.page,
                "outcome": outcome,
                "sign": SIGNS[outcome],
                "says": marked(verdict_sentence(row.report) if row.report else row.error),
                "numbers": _numbers(row.report) if row.report else "",
            }
            for row, outcome in found
        ],
    )


@functools.cache
def style_sheet() -> str:
    """Return the style sheet of all pages."""
    folder = resources.files("lightning_audit.page") / "templates"
    return (folder / CSS_NAME).read_text(encoding="utf-8")


@functools.cache
def _templates() -> Environment:
    return Environment(
        loader=PackageLoader("lightning_audit.page"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalized,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _finalized(value: Any) -> Any:
    """Return a value as a template shows it: nothing in text from a report is hidden."""
    return value if isinstance(value, Markup) or not isinstance(value, str) else seen(value)


def rendered(template: str, css_beside: bool, **values: Any) -> str:
    """Return a page from a template.

    Args:
        template: file name of the template.
        css_beside: see `report_page`.
        **values: names of the template, with their values.
    """
    page = _templates().get_template(template)
    return page.render(
        css=Markup(style_sheet()),
        css_beside=CSS_NAME if css_beside else "",
        version=__version__,
        **values,
    )


def _parts(report: AuditReport) -> dict[str, Any]:
    """Return the sections by name; those for which the report lacks numbers are empty."""
    verdict = report.verdict
    return {
        "missing": list(_missing(report)),
        "advice": marked(sentence(verdict.advice)) if not verdict.root else "",
        "root": root_finding(report),
        "further": further_findings(report),
        "epsilons": epsilon_section(report),
        "step": tradeoff(report),
        "time": timeline(report),
        "noise": tensor_section(report),
        "groups": check_groups.check_groups(report),
        "not_examined": check_groups.not_examined(report),
        "examinations": run_details.examinations(report),
        "method": method_table(report),
        "claim": run_details.claim_rows(report),
        "circumstances": run_details.circumstances(report),
    }


def _missing(report: AuditReport) -> Iterator[Markup]:
    """Yield what a pass still needs, with the steps that are missing."""
    details = {one.sentence: one for one in report.blockers}
    for item in report.verdict.pass_blockers:
        more = details[item].steps_more if item in details else None
        steps = f" About {plural(more, 'more step')}." if more and "more step" not in item else ""
        yield marked(sentence(item) + steps)


def _contents(parts: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the anchors of the page, with their names."""
    step = parts["step"]
    every = (
        ("missing", "Missing", parts["missing"]),
        ("finding", "What is wrong", parts["root"]),
        ("epsilon", "Claimed and measured", True),
        ("step", "One step", step.words or step.picture),
        ("time", "Over the run", parts["time"]),
        ("noise", "Noise by tensor", parts["noise"]),
        ("examined", "Examined", True),
        ("not-examined", "Not examined", True),
        ("method", "Method", True),
        ("again", "Reproduce", True),
    )
    return [(name, words) for name, words, there in every if there]


def _time_shown(created: str) -> str:
    """Return a time in ISO 8601 to the minute, with its zone."""
    date, _, time = visible(created).partition("T")
    zone = time[8:].replace("+00:00", "UTC")
    return f"{date} {time[:5]} {zone}".strip()


def _archive(report: AuditReport) -> str:
    """Return the file name of the observations; empty if they were not kept."""
    try:
        return archive_of(report.record) if report.record else ""
    except ValueError:
        return ""


def _written(report: AuditReport) -> dict[str, Any]:
    """Return the report as its file holds it."""
    fields: dict[str, Any] = json.loads(report.to_json())
    return fields


def _outcome(row: IndexRow) -> Outcome:
    return row.report.verdict.outcome if row.report else "INCONCLUSIVE"


def _numbers(report: AuditReport) -> str:
    known = {
        "proved ε ≥": report.epsilon_lower or None,
        "spent ε": report.epsilon_spent,
        "claimed ε": report.claimed_epsilon,
    }
    shown = [f"{name} {number(value)}" for name, value in known.items() if value is not None]
    return ", ".join([*shown, f"δ = {number(report.delta)}", length(report)])
