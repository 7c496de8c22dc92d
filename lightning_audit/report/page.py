"""Renders a report as one HTML page, and several as an index."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemBytecodeCache, PackageLoader, StrictUndefined
from markupsafe import Markup

from lightning_audit._version import __version__
from lightning_audit.files import replacing, visible
from lightning_audit.record.report_directory import archive_of
from lightning_audit.report import page_verdict
from lightning_audit.report.page_figures import tensor_section, timeline, tradeoff
from lightning_audit.report.page_parts import PERCENT, marked, number, plural, seen, sentence
from lightning_audit.report.page_tables import epsilon_section, method_table
from lightning_audit.report.page_verdict import (
    further_findings,
    root_finding,
    verdict_meaning,
    verdict_sentence,
)
from lightning_audit.report.text import (
    SIGNS,
    length,
    look_at_sentence,
    three_epsilons,
    visible_lines,
    warnings_of,
)
from lightning_audit.results import report_json
from lightning_audit.results.audit_report import AuditReport, Outcome, TrainingsSeen
from lightning_audit.results.report_details import PLAIN_LOOP
from lightning_audit.results.report_json import plain

# --- How to get a report again: the call of the audit, its settings, the environment.

#: Settings that a call leaves out if they have this value: the defaults of `PrivacyAudit`.
DEFAULTS: Mapping[str, Any] = {
    "claimed_epsilon": None,
    "claim": None,
    "oversize": 1000.0,
    "every_n_steps": None,
    "significance": 1e-3,
    "bound_significance": 0.05,
    "resolution": {"noise": 0.8, "sensitivity": 2.0},
    "allow": [],
    "exemptions": [],
    "on_violation": "raise",
    "on_inconclusive": "warn",
    "on_budget": "raise",
    "examinations": "auto",
    "bounds": [],
    "source_in_report": True,
}
#: Stated in every call: without them another run would follow.
_ALWAYS = ("delta", "seed")
#: Settings that are objects of a class.
_CLASSES = {"claim": "PrivacyClaim", "resolution": "Resolution"}


def call(report: AuditReport) -> str:
    """Return the call of the audit as Python, without what is left at its default.

    Canaries are included only if the report says that the user gave them.
    """
    if report.trainings is not None:
        return _of_trainings(report.settings, report.trainings)
    settings = dict(report.settings)
    given = report.settings_given
    names = [n for n in settings if n in DEFAULTS and plain(settings[n]) != plain(DEFAULTS[n])]
    if given:
        names = [n for n in settings if n in given or (n == "exemptions" and "allow" in given)]
    names = [name for name in names if name not in ("allow", "exemptions")]
    own = [name for name in names if name not in _ALWAYS]
    lines = [f"    {name}={_code(name, settings[name])},\n" for name in own]
    if allowed := list(_allowed(settings)):
        lines.append(f"    allow=[{', '.join(allowed)}],\n")
    lines += [f"    {name}={_literal(settings[name])},\n" for name in _ALWAYS if name in settings]
    if report.run is not None and report.run.strategy == PLAIN_LOOP:
        return visible_lines(f"attach(\n    model,\n    optimizer,\n    loader,\n{''.join(lines)})")
    return visible_lines(f"PrivacyAudit(\n{''.join(lines)})")


def _of_trainings(settings: Mapping[str, Any], seen: TrainingsSeen) -> str:
    """Return the call of an audit over many trainings; the report has names of its objects only."""
    positional = ["train", "dataset", f"claim,  # {visible(seen.claim)}"]
    function, planned = "audit_training", "trainings"
    if planned not in settings:  # the user ran them
        positional = ["scores", "coins", "failed", f"promise,  # {visible(seen.claim)}"]
        function, planned = "conclude", "planned"
    given = {**settings, planned: seen.planned}
    keywords = {
        name: _literal(given[name])
        for name in (planned, "significance", "stop", "seed", "on_failure", "adjacency")
        if name in given
    }
    keywords |= {"canary": f"{given['canary']}(...)"} if "canary" in given else {}
    keywords |= {"score": str(given["score"])} if given.get("score", "default") != "default" else {}
    lines = [one if "," in one else f"{one}," for one in positional]
    lines += [f"{name}={text}," for name, text in keywords.items()]
    return visible_lines("\n    ".join([f"{function}(", *lines]) + "\n)")


def all_settings(report: AuditReport) -> list[tuple[str, str]]:
    """Return every setting as text."""
    rows = ((name, plain(value)) for name, value in report.settings.items())
    return [
        (visible(name), visible(value if isinstance(value, str) else json.dumps(value)))
        for name, value in rows
    ]


def cost(report: AuditReport) -> str:
    """Return the time that the audit took; empty if the report does not hold it."""
    seconds, share = report.audit_cost.get("seconds"), report.audit_cost.get("share")
    if seconds is None:
        return ""
    if share is None:  # of many trainings
        return f"The audit took {seconds:,.1f} s."
    return (
        f"The audit took {seconds:.2g} s, {100 * share:.0f}{PERCENT} of the rest of the training."
    )


def _allowed(settings: Mapping[str, Any]) -> Iterator[str]:
    yield from (_literal(name) for name in settings.get("allow") or ())
    for one in settings.get("exemptions") or ():
        stated = {name: value for name, value in one.items() if value not in (None, "")}
        yield f"Allow({', '.join(f'{n}={_literal(v)}' for n, v in stated.items())})"


def _code(name: str, value: Any) -> str:
    if name in _CLASSES and isinstance(value, Mapping):
        stated = {key: inner for key, inner in value.items() if inner is not None}
        return f"{_CLASSES[name]}({', '.join(f'{k}={_literal(v)}' for k, v in stated.items())})"
    if name == "canaries":  # stored as their code
        return f"[{', '.join(map(str, value))}]"
    return _literal(value)


def _literal(value: Any) -> str:
    value = plain(value) if isinstance(value, tuple) else value
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


# --- Renders a report as one HTML page, and several as an index.

#: Name of the style sheet next to a page that does not contain it.
CSS_NAME = "report.css"


@dataclass(frozen=True)
class Source:
    """A report of which a page is written, and which an index lists.

    Args:
        training: its name.
        folder: where its report is.
        report: the report; None if it cannot be read.
        error: why it cannot be read.
        page: address of its page, relative to the index; empty if it has none.
    """

    training: str
    folder: Path
    report: AuditReport | None
    error: str = ""
    page: str = ""


def report_page(report: AuditReport, training: str, *, css_beside: bool = False) -> str:
    """Return a report as an HTML page without script or request.

    Args:
        report: the report.
        training: name of the training, for the title.
        css_beside: whether the page refers to the style sheet `CSS_NAME` next to it, for servers
            that forbid inline styles. If not, the page contains it.
    """
    return rendered(
        "report.html.j2",
        css_beside,
        report=report,
        training=visible(training),
        created=_time_shown(report.created),
        verdict=verdict_sentence(report),
        meaning=verdict_meaning(report),
        facts=page_verdict.facts(report),
        subject=page_verdict.subject(report),
        warnings=warnings_of(report),
        missing=list(_missing(report)),
        root=root_finding(report),
        further=further_findings(report),
        epsilons=epsilon_section(report),
        step=tradeoff(report),
        time=timeline(report),
        noise=tensor_section(report),
        groups=page_verdict.check_groups(report),
        examinations=page_verdict.examinations(report),
        not_examined=page_verdict.not_examined(report),
        never=page_verdict.never(report),
        method=method_table(report),
        claim=page_verdict.claim_rows(report),
        call=Markup.escape(call(report)),
        settings=all_settings(report),
        circumstances=page_verdict.circumstances(report),
        cost=cost(report),
        archive=_archive(report),
        digest=digest_of(report),
        delta=number(report.delta),
    )


def index_page(rows: Sequence[Source], *, css_beside: bool = False) -> str:
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
        headline=", ".join(counts),
        outcome=worst,
        rows=[
            (
                row,
                outcome,
                SIGNS[outcome],
                verdict_sentence(row.report) if row.report else row.error,
                _numbers(row.report) if row.report else "",
            )
            for row, outcome in found
        ],
    )


@functools.cache
def style_sheet() -> str:
    """Return the style sheet of all pages."""
    folder = resources.files("lightning_audit.report") / "templates"
    return (folder / CSS_NAME).read_text(encoding="utf-8")


@functools.cache
def _hash_of_style() -> str:
    """Return the source in a Content-Security-Policy that allows the style sheet in a page."""
    digest = base64.b64encode(hashlib.sha256(style_sheet().encode()).digest()).decode()
    return f"'sha256-{digest}'"


@functools.cache
def _templates() -> Environment:
    # Compiled templates are kept where Python keeps compiled modules.
    folder = Path(__file__).with_name("__pycache__")
    kept = not sys.dont_write_bytecode and os.access(folder, os.W_OK)
    made = Environment(
        loader=PackageLoader("lightning_audit.report"),
        bytecode_cache=FileSystemBytecodeCache(str(folder)) if kept else None,
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalized,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"marked": marked, "sentence": sentence, "visible": visible}
    made.filters["look_at"] = look_at_sentence
    return made


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
        style_source="'self'" if css_beside else _hash_of_style(),
        css_beside=CSS_NAME if css_beside else "",
        version=__version__,
        **values,
    )


def _missing(report: AuditReport) -> Iterator[str]:
    """Yield what a pass still needs, with the steps that are missing."""
    details = {one.sentence: one for one in report.blockers}
    for item in report.verdict.pass_blockers:
        more = details[item].steps_more if item in details else None
        steps = f" About {plural(more, 'more step')}." if more and "more step" not in item else ""
        yield sentence(item) + steps


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


def digest_of(report: AuditReport) -> str:
    """Return the SHA-256 that the report's file holds of its content."""
    return report_json.digest(json.loads(report.to_json()))


def _outcome(row: Source) -> Outcome:
    return row.report.verdict.outcome if row.report else "INCONCLUSIVE"


def _numbers(report: AuditReport) -> str:
    shown = [
        f"{name} ε{' ≥' if name == 'proved' else ''} {number(value)}"
        for name, value in three_epsilons(report).items()
        if value is not None
    ]
    return ", ".join([*shown, f"δ = {number(report.delta)}{report.of_items}", length(report)])


# --- Writes pages: of one report, or of all reports in a folder with an index.

#: Name of the page of a folder of reports.
INDEX_NAME = "index.html"


def write_page(
    report: AuditReport, path: str | os.PathLike[str], training: str = "", *, beside: bool = False
) -> Path:
    """Write the page of a report, so that a reader sees the old file or the new one, never half.

    Args:
        report: the report.
        path: the file.
        training: name of the training; empty for the name of the folder.
        beside: whether to write the style sheet into a file next to it.

    Returns:
        The file.

    Raises:
        OSError: a file cannot be written.
    """
    target = Path(path)
    name = training or training_of(target)
    _write(target, report_page(report, name, css_beside=beside))
    if beside:
        _write(target.with_name(CSS_NAME), style_sheet())
    return target


def write_pages(
    sources: Sequence[Source], folder: Path, name: str, *, into: bool, beside: bool = False
) -> Path:
    """Write a page of each report, and their index.

    Args:
        sources: the reports.
        folder: of the index.
        name: file name of a page next to its report.
        into: whether the pages are written into the index's folder, under the names of their
            trainings; if not, each next to its report.
        beside: whether to write the style sheet into files next to the pages.

    Returns:
        The index.

    Raises:
        OSError: a file cannot be written.
    """
    rows = []
    taken: set[str] = {INDEX_NAME.lower()}
    for source in sources:
        address = ""
        if source.report is not None:
            place = folder / _free(source.training, taken) if into else source.folder / name
            training = training_of(source.folder / name)
            write_page(source.report, place, training, beside=beside)
            address = _address(place, folder)
        rows.append(replace(source, page=address))
    index = folder / INDEX_NAME
    _write(index, index_page(rows, css_beside=beside))
    if beside:
        _write(folder / CSS_NAME, style_sheet())
    return index


def training_of(path: Path) -> str:
    """Return the name of the training whose files are in the folder of a path.

    That of the folder, or, for the default folder `audit`, that of the folder that holds it.
    """
    folder = Path(os.path.abspath(path)).parent
    return (folder.parent.name if folder.name == "audit" else folder.name) or "training"


def _free(training: str, taken: set[str]) -> str:
    """Return a file name for a training that no other one has, with plain characters only."""
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "-" for c in training)
    stem = plain.strip("-.")[:100] or "training"
    names = (f"{stem}{f'-{number}' if number > 1 else ''}.html" for number in range(1, 10**6))
    name = next(name for name in names if name.lower() not in taken)
    taken.add(name.lower())
    return name


def _address(place: Path, folder: Path) -> str:
    """Return the address of a page relative to the index's folder, with escaped characters."""
    relative = os.path.relpath(place, folder).replace(os.sep, "/")
    return quote(relative.encode("utf-8", "surrogateescape"), safe="/")


def _write(path: Path, text: str) -> None:
    with replacing(path) as file:
        file.write(text.encode("utf-8", "backslashreplace"))
