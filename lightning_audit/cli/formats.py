"""Formats of `check`: text, JSON, JUnit, SARIF, GitHub and Markdown."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote
from xml.etree import ElementTree

from lightning_audit._version import DOCUMENTATION, __version__
from lightning_audit.checks.check import DECLARED, Check
from lightning_audit.files import in_markdown, inside, visible
from lightning_audit.record.report_directory import REPORT_NAME
from lightning_audit.report.text import (
    as_shown,
    as_text,
    headline,
    headline_of,
    length,
    look_at_sentence,
    shortened,
    table,
    three_epsilons,
    visible_lines,
)
from lightning_audit.results.audit_report import (
    EXIT_CODES,
    AuditReport,
    CheckResult,
    LikelyFault,
    Outcome,
    measured_words,
    outcome_in_words,
    section_of,
)
from lightning_audit.results.report_details import CodePlace, places_in
from lightning_audit.results.report_json import plain

# --- What the gate found of each report, for every format.

#: From the best outcome to the worst.
_ORDER: tuple[Outcome, ...] = ("PASS", "INCONCLUSIVE", "VIOLATION")
#: Folder that a training writes to by default; it says nothing about the training.
_DEFAULT_FOLDER = "audit"
#: Parts of a path outside of a repository that name a report, at least.
_PARTS = 3


@dataclass(frozen=True)
class Remark:
    """A finding of the gate itself, in addition to the report's verdict.

    Args:
        rule: "unreadable", or the option that the report does not satisfy, without its dashes.
        outcome: VIOLATION, or INCONCLUSIVE if the gate could not decide.
        text: a sentence.
    """

    rule: Literal["unreadable", "max-epsilon", "baseline"]
    outcome: Outcome
    text: str


@dataclass(frozen=True)
class Checked:
    """A report as the gate found it.

    Args:
        path: as the user named it.
        training: name of the training, the same on every machine in a clone of its repository.
        place: path of the report from its repository.
        report: the report; None if it is unreadable.
        remarks: what the gate found in addition.
    """

    path: str
    training: str
    place: str
    report: AuditReport | None
    remarks: tuple[Remark, ...] = ()

    @property
    def outcome(self) -> Outcome:
        """The worst of the verdict and the remarks."""
        verdict = [self.report.verdict.outcome] if self.report else []
        return worst([*verdict, *(remark.outcome for remark in self.remarks)])

    @property
    def reasons(self) -> list[str]:
        """Reasons for an outcome other than PASS, the first the most important."""
        remarks = [r.text for r in self.remarks if r.outcome == self.outcome]
        report = self.report
        if report is None or report.verdict.outcome != self.outcome or self.outcome == "PASS":
            return remarks
        verdict = report.verdict
        if root := verdict.root:
            return [f"{headline_of(root)} ({root.finding})", *remarks]
        if report.trainings is not None and self.outcome == "VIOLATION":
            return [headline(report), *remarks]
        return [*(verdict.pass_blockers or (verdict.summary,)), *remarks]

    @property
    def findings(self) -> list[Finding]:
        """The findings of the report; none if it is unreadable."""
        return findings_of(self.report) if self.report else []

    @property
    def undecided(self) -> str:
        """What keeps an inconclusive report from a pass; empty for another one."""
        if self.report is None or self.report.verdict.outcome != "INCONCLUSIVE":
            return ""
        return "; ".join(self.report.verdict.pass_blockers) or self.report.verdict.summary


def worst(outcomes: Iterable[Outcome]) -> Outcome:
    """Return the worst outcome; a violation is worse than an inconclusive report."""
    return max(outcomes, key=_ORDER.index)


def exit_code(checked: Sequence[Checked]) -> int:
    """Return the exit code of the worst outcome."""
    return EXIT_CODES[worst(one.outcome for one in checked)]


def counts(checked: Sequence[Checked]) -> dict[Outcome, int]:
    """Return the number of reports by outcome, the worst outcome first."""
    found = Counter(one.outcome for one in checked)
    return {outcome: found[outcome] for outcome in reversed(_ORDER)}


def named(paths: Sequence[str]) -> list[tuple[str, str, str]]:
    """Return each path with the name of its training and its place, as `Checked` has them.

    Names are unique if the paths are.
    """
    places = _places(paths)
    names = [_training(place) for place in places]
    times = Counter(names)
    names = [name if times[name] == 1 else place for name, place in zip(names, places, strict=True)]
    return list(zip(paths, names, places, strict=True))


def _places(paths: Sequence[str]) -> list[str]:
    """Return relative paths; outside of a repository, as many last parts as make them differ."""
    found = [inside(path) for path in paths]
    outside = {path: os.path.abspath(path).split(os.sep)[1:] for path in paths}
    deepest = max(map(len, outside.values()), default=_PARTS)
    for kept in range(_PARTS, max(deepest, _PARTS) + 1):
        places = [
            place or "/".join(outside[path][-kept:])
            for path, place in zip(paths, found, strict=True)
        ]
        if len(set(places)) == len(places):
            break
    return places


def _training(place: str) -> str:
    folder, _, name = place.rpartition("/")
    if name != REPORT_NAME:
        return place.removesuffix(".json")
    parent, _, last = folder.rpartition("/")
    return parent if parent and last == _DEFAULT_FOLDER else folder or place


# --- Epsilons and other numbers of a report in a few characters.


def number(value: float | None) -> str:
    """Return three digits of a number, or a dash if it is unknown."""
    return "-" if value is None else f"{value:.3g}"


def epsilons(report: AuditReport) -> str:
    """Return the epsilons of a report in a few words."""
    shown = [
        f"{name}{' >=' if name == 'proved' else ''} {number(value)}"
        for name, value in three_epsilons(report).items()
        if value is not None
    ]
    return f"epsilon {', '.join(shown)}" if shown else "epsilon unknown"


# --- Findings of a report for people and machines: title, severity, places in the code.

Severity = Literal["critical", "theoretical", "negligible"]
#: What the severities mean.
SEVERITIES: Mapping[Severity, str] = {
    "critical": "the guarantee is void",
    "theoretical": "an assumption of the guarantee fails; no attack is known",
    "negligible": "no privacy is lost",
}


@dataclass(frozen=True)
class Finding:
    """A check that failed, and is explained by no other one.

    Args:
        title: what is wrong, in a few words.
        severity: see `SEVERITIES`.
        result: the check's result.
        look_at: what to look at in the code, as a noun phrase.
        places: places in the user's code.
        explains: names of the failed checks that it explains.
        step: in which it was first seen, from 0; None if unknown.
    """

    title: str
    severity: Severity
    result: CheckResult
    look_at: str
    places: tuple[CodePlace, ...] = ()
    explains: tuple[str, ...] = ()
    step: int | None = None

    @property
    def fails(self) -> bool:
        """Whether the report cannot pass with it."""
        return self.result.status in ("violated", "undecided")


def findings_of(report: AuditReport) -> list[Finding]:
    """Return what a report found, in its order; also what is allowed or only a warning."""
    shown = ("violated", "undecided", "allowed", "warned")
    return [
        _finding(report, check)
        for check in report.checks
        if check.status in shown and not check.follows_from
    ]


def severity_of(check: Check, status: str = "violated") -> Severity:
    """Return the severity of a failure of a check.

    Args:
        check: its declaration.
        status: of the result. An undecided finding is not known to be a fault.
    """
    if check.warns or status == "warned":
        return "negligible"
    return "theoretical" if check.kind == "accounting" or status == "undecided" else "critical"


def _finding(report: AuditReport, result: CheckResult) -> Finding:
    check, fault = DECLARED[result.name], _fault(report, result)
    where, step = result.evidence.get("where"), result.evidence.get("violated_at_step")
    code = fault.place.code if fault else ()
    code = code or places_in(where if isinstance(where, str) else "")
    return Finding(
        title=headline_of(fault) if fault else check.heading(failed=True),
        severity=severity_of(check, result.status),
        result=result,
        look_at=(fault.look_at if fault else "") or result.advice or check.look_at,
        places=tuple(place for place in code if place.is_relative),
        explains=fault.consequences if fault else (),
        step=fault.place.step if fault else step if isinstance(step, int) else None,
    )


def _fault(report: AuditReport, result: CheckResult) -> LikelyFault | None:
    """Return the likeliest fault that a check shows."""
    whose = ("", result.optimizer)
    faults = (f for f in report.verdict.faults if f.finding == result.name)
    return next((f for f in faults if not result.optimizer or f.place.optimizer in whose), None)


# --- Reports as one JSON document.

#: Version of this layout; raised when a reader of the old one would misread the new one.
FORMAT_VERSION = 1
_EPSILONS = (
    *("epsilon_lower", "epsilon_lower_at_end", "epsilon_spent", "claimed_epsilon"),
    "epsilon_not_excluded",
)


def as_json_summary(checked: Sequence[Checked]) -> str:
    """Return the outcome, and of each report its outcome, reasons, epsilons and findings."""
    summary = {
        "format_version": FORMAT_VERSION,
        "outcome": worst(one.outcome for one in checked),
        "exit_code": exit_code(checked),
        "counts": counts(checked),
        "reports": [_summary_of(one) for one in checked],
    }
    return json.dumps(plain(summary), indent=2, allow_nan=False)


def _summary_of(one: Checked) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "training": one.training,
        "path": one.path,
        "outcome": one.outcome,
        "exit_code": exit_code([one]),
        "reasons": one.reasons,
        "gate": [{"rule": r.rule, "outcome": r.outcome, "message": r.text} for r in one.remarks],
    }
    if (report := one.report) is None:
        return fields
    return {
        **fields,
        "verdict": report.verdict.outcome,
        **{name: getattr(report, name) for name in _EPSILONS},
        "epsilon_measured": dataclasses.asdict(m) if (m := report.epsilon_measured) else None,
        **{name: getattr(report, name) for name in ("delta", "steps", "created")},
        "findings": [_finding_fields(finding) for finding in one.findings],
    }


def _finding_fields(finding: Finding) -> dict[str, Any]:
    return {
        "check": finding.result.name,
        "status": finding.result.status,
        "severity": finding.severity,
        "title": finding.title,
        "message": finding.result.message,
        "look_at": finding.look_at,
        "optimizer": finding.result.optimizer,
        "code": [{"name": p.name, "file": p.file, "line": p.line} for p in finding.places],
        "explains": finding.explains,
    }


# --- Reports as JUnit XML: a suite for each training, a case for each check.

_Kind = Literal["failure", "error", "skipped"]


def as_junit(checked: Sequence[Checked]) -> str:
    """Return the XML.

    A finding is a failure; a failed check that it explains is skipped, as one that did not run. An
    inconclusive report, or one that cannot be read, is an error.
    """
    root = ElementTree.Element("testsuites", name="lightning-audit")
    root.extend(_suite(one) for one in checked)
    sums = {name: sum(int(suite.get(name, 0)) for suite in root) for name in _COUNTED}
    root.attrib.update({name: str(value) for name, value in sums.items()})
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, "unicode")


_COUNTED = {"tests": "", "failures": "failure", "errors": "error", "skipped": "skipped"}


def _suite(one: Checked) -> ElementTree.Element:
    cases = list(_cases(one))
    kinds = Counter(str(child.tag) for case in cases for child in case)
    numbers = {name: str(kinds[tag]) for name, tag in _COUNTED.items() if tag}
    attributes = {"name": visible(one.training), "tests": str(len(cases)), **numbers}
    suite = ElementTree.Element("testsuite", attributes)
    if one.report and one.report.created:
        suite.set("timestamp", visible(one.report.created))
    suite.extend(cases)
    return suite


def _cases(one: Checked) -> Iterator[ElementTree.Element]:
    if one.report is not None:
        found = {id(finding.result): finding for finding in one.findings}
        for check in as_shown(one.report):
            yield _of_check(one, check, found.get(id(check)))
        if one.undecided:
            case = _case(one, "gate", "verdict")
            yield _problem(case, "error", "INCONCLUSIVE", one.undecided)
    for remark in one.remarks:
        kind: _Kind = "failure" if remark.outcome == "VIOLATION" else "error"
        first, *rest = remark.text.split("\n")
        yield _problem(_case(one, "gate", remark.rule), kind, remark.rule, first, rest)


def _of_check(one: Checked, check: CheckResult, finding: Finding | None) -> ElementTree.Element:
    known = DECLARED[check.name]
    of = f" of {check.optimizer}" if check.optimizer else ""
    case = _case(one, known.topic or "Other", f"{known.heading()} ({check.name}){of}")
    if check.follows_from or check.status == "not_run":
        follows = check.status == "violated"
        why = f"explained by {check.follows_from}" if follows else check.message
        return _problem(case, "skipped", "follows" if follows else check.status, why)
    if finding is None:
        return case
    details = [check.message, f"Severity: {finding.severity}", f"Look at: {finding.look_at}"]
    details += [f"Code: {p.name} at {p.file}:{p.line}" for p in finding.places]
    if finding.fails:
        kind: _Kind = "failure" if check.status == "violated" else "error"
        return _problem(case, kind, check.name, finding.title, details)
    output = ElementTree.SubElement(case, "system-out")
    output.text = "\n".join(map(visible, [f"{check.status}: {finding.title}", *details]))
    return case


def _case(one: Checked, topic: str, name: str) -> ElementTree.Element:
    """Return a case that passed."""
    of = visible(f"{one.training}.{topic}")
    return ElementTree.Element("testcase", classname=of, name=visible(name), time="0")


def _problem(
    case: ElementTree.Element, kind: _Kind, type_: str, message: str, details: Sequence[str] = ()
) -> ElementTree.Element:
    """Return a case with why it did not pass."""
    child = ElementTree.SubElement(case, kind, type=type_, message=visible(message))
    child.text = "\n".join(map(visible, details)) or None
    return case


# --- Several reports as text: a line each.

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


# --- Reports as Markdown: the step summary of a job, or a comment on a pull request.

#: First line; a job finds its earlier comment by it.
MARKER = "<!-- lightning-audit -->"
#: Bytes of the step summary that GitHub accepts are 2^20; what it adds itself is unknown.
MOST_BYTES = 1_000_000
_ICONS: dict[Outcome, str] = {"PASS": "✅", "VIOLATION": "❌", "INCONCLUSIVE": "⚠️"}
_CLOSE = "A pass is evidence, not a proof of privacy."


def as_markdown(checked: Sequence[Checked]) -> str:
    """Return a table of the reports, then the findings of each, in less than `MOST_BYTES`."""
    checked = sorted(checked, key=lambda one: -_ORDER.index(one.outcome))
    head = [MARKER, f"### {_headline(checked)}", "", *_table(checked)]
    reports = [one.report for one in checked if one.report]
    if deltas := sorted({f"{report.delta:g}{report.of_items}" for report in reports}):
        shown = ", ".join(deltas[:3])
        head += [
            "",
            f"Epsilon at delta {shown}. Proved: a lower bound from the readings. Spent: composed "
            "from the steps.",
        ]
    sections = ["\n".join(["", *lines]) for one in checked for lines in _sections(one)]
    return "\n".join([*_fitting("\n".join(head), sections), "", _CLOSE])


def _fitting(head: str, sections: list[str]) -> list[str]:
    """Return the head and the first sections that fit, and the number of those left out."""
    room = MOST_BYTES - len(head.encode()) - 1000
    shown = [head]
    for number_of, section in enumerate(sections):
        room -= len(section.encode()) + 1
        if room < 0:
            return [*shown, "", f"{len(sections) - number_of} more sections are left out."]
        shown.append(section)
    return shown


def _headline(checked: Sequence[Checked]) -> str:
    outcome = worst(one.outcome for one in checked)
    which, said = f"{counts(checked)[outcome]} of {len(checked)} trainings", str(outcome)
    if len(checked) == 1:
        which, said = checked[0].training, in_markdown(_outcome(checked[0]))
    reasons = [reason for one in checked if one.outcome == outcome for reason in one.reasons]
    first = reasons[0].split("\n")[0] if reasons else ""
    why = f": {in_markdown(first)}" if first else ""
    more = f" and {len(reasons) - 1} more" if len(reasons) > 1 else ""
    return f"{_ICONS[outcome]} Privacy audit: {said} ({in_markdown(which)}){why}{more}"


def _table(checked: Sequence[Checked]) -> Iterator[str]:
    yield "| training | verdict | proved ≥ | spent | claimed | steps |"
    yield "|---|---|--:|--:|--:|--:|"
    # Rows of reports that do not fit would leave no room for findings.
    most = 500
    for one in checked[:most]:
        numbers = ["-"] * 4
        if report := one.report:
            steps = str(report.steps) if report.trainings is None else length(report)
            numbers = [*map(number, three_epsilons(report).values()), steps]
        name = in_markdown(one.training[-200:])
        cells = [name, f"{_ICONS[one.outcome]} {in_markdown(_outcome(one))}", *numbers]
        yield f"| {' | '.join(cells)} |"
    if len(checked) > most:
        yield f"\n{len(checked) - most} more reports are left out."


def _sections(one: Checked) -> Iterator[list[str]]:
    name = f"<b>{in_markdown(one.training)}</b>"
    for remark in one.remarks:
        text = " ".join(line.strip() for line in remark.text.split("\n"))
        yield [f"{name}: {in_markdown(text)}"]
    if one.report is None:
        return
    if measured := measured_words(one.report, source=True):
        yield [f"{name}, as measured: {in_markdown(measured)}"]
    for finding in findings_of(one.report):
        yield list(_details(name, finding, one.report))
    if blockers := one.report.verdict.pass_blockers:
        yield [f"{name} needs for a pass:", "", *(f"- {in_markdown(item)}" for item in blockers)]


def _details(name: str, finding: Finding, report: AuditReport) -> Iterator[str]:
    title, result = in_markdown(finding.title), finding.result
    if result.optimizer:
        title += f" ({in_markdown(result.optimizer)})"
    status = "" if finding.fails else f", {result.status}"
    yield f"<details><summary>{name}: {title}</summary>"
    yield ""
    yield f"- **Check:** {in_markdown(finding.result.name)}{status}"
    yield f"- **Severity:** {finding.severity}: {SEVERITIES[finding.severity]}"
    yield f"- **Seen:** {in_markdown(result.message)}"
    if finding.step is not None:
        yield f"- **Where:** first seen in step {finding.step + 1} of {report.steps}"
    for place in finding.places:
        yield f"- **Code:** {in_markdown(place.pointer)}"
    if finding.look_at:
        yield f"- **Look at:** {in_markdown(finding.look_at)}"
    if finding.explains:
        yield f"- **Explains:** {in_markdown(', '.join(finding.explains))}"
    yield ""
    yield "</details>"


# --- Reports as annotations of a GitHub job, and its step summary.

#: Annotations of one step that GitHub shows.
MOST = 10
#: Characters of a message; GitHub shows about 4 KiB.
_LONGEST = 2000
_SUMMARY = "GITHUB_STEP_SUMMARY"
#: An annotation: level, title, message, properties.
_Annotation = tuple[str, str, str, dict[str, str]]
_LEVELS = ("error", "warning", "notice")


def as_github(checked: Sequence[Checked]) -> str:
    """Return the annotations and a line for each report; append the summary to the job's file.

    Raises:
        OSError: the file that GITHUB_STEP_SUMMARY names cannot be written.
    """
    if path := os.environ.get(_SUMMARY):
        with open(path, "a", encoding="utf-8") as file:
            file.write(as_markdown(checked) + "\n")
    lines = as_lines(checked).replace("::", ": :").replace("##[", "## [")  # are no commands
    return "\n".join([*map(_command, annotated(checked)), lines])


def annotated(checked: Sequence[Checked]) -> list[_Annotation]:
    """Return at most `MOST` annotations, errors first; the last one counts those left out."""
    every = [annotation for one in checked for annotation in _annotations_of(one)]
    every.sort(key=lambda annotation: _LEVELS.index(annotation[0]))
    if len(every) <= MOST:
        return every
    left = len(every) - MOST + 1
    level = every[MOST - 1][0]
    return [*every[: MOST - 1], (level, "Privacy audit", f"{left} more findings", {})]


def _annotations_of(one: Checked) -> Iterator[_Annotation]:
    at = {"file": one.place} if one.report else {}
    for remark in one.remarks:
        title = f"Privacy audit of {one.training}: {remark.rule}"
        yield "error", title, remark.text, at
    yield from (_annotation(one, finding) for finding in one.findings)
    if one.undecided:
        yield "error", f"Privacy audit of {one.training}: INCONCLUSIVE", one.undecided, at


def _annotation(one: Checked, finding: Finding) -> _Annotation:
    level = {"violated": "error", "undecided": "warning"}.get(finding.result.status, "notice")
    at = {"file": one.place}
    if finding.places:
        first = finding.places[0]
        at = {"file": first.file, "line": str(first.line)}
    text = f"{finding.result.name}, {finding.severity}: {finding.result.message}"
    if finding.look_at:
        text += f". {look_at_sentence(finding.look_at)}"
    return level, f"{finding.title} ({one.training})", text, at


def _command(annotation: _Annotation) -> str:
    """Return a workflow command; text from a report cannot end it, or begin another."""
    level, title, message, at = annotation
    message = shortened(message, lambda text: len(text) <= _LONGEST)[:_LONGEST]
    shown = {"title": title, **at}
    told = ",".join(f"{name}={_property(value)}" for name, value in shown.items())
    return f"::{level} {told}::{_data(message)}"


def _data(text: str) -> str:
    text = visible_lines(text)
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


# --- Reports as SARIF 2.1.0, for code scanning.

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_ROOT = "%SRCROOT%"
#: Severities as GitHub sorts alerts with the tag "security": from 9 critical, from 4 medium.
_SCORES: dict[Severity, str] = {"critical": "9.0", "theoretical": "5.0", "negligible": "1.0"}
#: Rules of the gate itself, which are no checks.
_GATE = {
    "gate.verdict": "the audit could not have detected every violation",
    "gate.unreadable": "the report cannot be read, or contradicts itself",
    "gate.max-epsilon": "an epsilon exceeds --max-epsilon, or is unknown",
    "gate.baseline": "the training became worse than its baseline, or cannot be compared",
}


def as_sarif(checked: Sequence[Checked]) -> str:
    """Return one run with a result for each finding, and for each report that cannot pass.

    Locations are relative to the repository. A fingerprint is a function of the check, the
    training and the optimizer, so that an alert is the same one in the next run.
    """
    results = [result for one in checked for result in _results(one)]
    names = list(dict.fromkeys(result["ruleId"] for result in results))
    for result in results:
        result["ruleIndex"] = names.index(result["ruleId"])
    failures = [_failure(one) for one in checked if one.report is None]
    driver = {
        "name": "lightning-audit",
        "version": __version__,
        "informationUri": DOCUMENTATION,
        "rules": [*map(_rule, names)],
    }
    ended = {"executionSuccessful": not failures, "toolExecutionNotifications": failures}
    run = {
        "tool": {"driver": driver},
        "invocations": [ended],
        "columnKind": "unicodeCodePoints",
        "results": results,
    }
    data = plain({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]})
    return json.dumps(data, indent=2, allow_nan=False)


def fingerprint(rule: str, training: str, optimizer: str = "") -> str:
    """Return what identifies an alert over runs: no line, no number, no message."""
    identity = "\0".join((rule, training, optimizer))
    return hashlib.sha256(identity.encode("utf-8", "backslashreplace")).hexdigest()


def _rule(name: str) -> dict[str, Any]:
    if name in _GATE:
        return {
            "id": name,
            "shortDescription": {"text": _GATE[name]},
            "helpUri": f"{DOCUMENTATION}/gate/",
            "properties": {"tags": ["privacy", "dp-sgd"]},
        }
    check = DECLARED[name]
    severity = severity_of(check)
    return {
        "id": name,
        "shortDescription": {"text": check.heading(failed=True)},
        "fullDescription": {"text": check.meaning or check.heading(failed=True)},
        "help": {"text": look_at_sentence(check.look_at) or check.heading()},
        **({"helpUri": section_of(name)} if check.topic else {}),
        "defaultConfiguration": {"level": "note" if check.warns else "error"},
        "properties": {
            "tags": ["security", "privacy", "dp-sgd", *([check.topic] if check.topic else [])],
            "security-severity": _SCORES[severity],
            "severity": severity,
        },
    }


def _results(one: Checked) -> Iterator[dict[str, Any]]:
    for remark in one.remarks:
        violation = remark.outcome == "VIOLATION" or remark.rule == "unreadable"
        yield _result(one, f"gate.{remark.rule}", remark.text, "error" if violation else None)
    yield from (_sarif_result(one, finding) for finding in one.findings)
    if one.undecided:
        yield _result(one, "gate.verdict", f"INCONCLUSIVE: {one.undecided}", None)


def _sarif_result(one: Checked, finding: Finding) -> dict[str, Any]:
    levels = {"violated": "error", "undecided": "warning", "allowed": "error"}
    status = finding.result.status
    known = DECLARED[finding.result.name].heading(failed=True)  # the rule says it
    title = "" if finding.title == known else f"{finding.title}."
    parts = title, f"{finding.result.message}.", look_at_sentence(finding.look_at)
    text = " ".join(filter(None, parts))
    result = _result(one, finding.result.name, text, levels.get(status, "note"), finding)
    result["properties"].update(
        severity=finding.severity,
        meaning=SEVERITIES[finding.severity],
        status=status,
        explains=list(finding.explains),
    )
    if status == "allowed":
        reason = "allow= of the training's audit names this check"
        result["suppressions"] = [{"kind": "external", "justification": reason}]
    return result


def _result(
    one: Checked, rule: str, text: str, level: str | None, finding: Finding | None = None
) -> dict[str, Any]:
    """Return a result; without a level, one that could not be decided."""
    places, optimizer = (finding.places, finding.result.optimizer) if finding else ((), "")
    own = {"physicalLocation": {"artifactLocation": _artifact(one.place)}}
    return {
        "ruleId": rule,
        **({"kind": "fail", "level": level} if level else {"kind": "open", "level": "none"}),
        "message": {"text": visible_lines(text)},
        "locations": [_location(places[0]) if places else own],
        "relatedLocations": [{"id": i, **_location(p)} for i, p in enumerate(places[1:], 1)],
        "partialFingerprints": {"checkAndTraining/v1": fingerprint(rule, one.training, optimizer)},
        "properties": {"training": visible(one.training)},
    }


def _location(place: CodePlace) -> dict[str, Any]:
    return {
        "physicalLocation": {
            "artifactLocation": _artifact(place.file),
            "region": {"startLine": place.line},
        },
        "logicalLocations": [{"fullyQualifiedName": visible(place.name)}],
    }


def _artifact(path: str) -> dict[str, str]:
    return {"uri": quote(path, errors="backslashreplace"), "uriBaseId": _ROOT}


def _failure(one: Checked) -> dict[str, Any]:
    text = visible_lines("\n".join(remark.text for remark in one.remarks))
    return {"level": "error", "message": {"text": text}}
