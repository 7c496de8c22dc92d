"""Reports as JUnit XML: a suite for each training, a case for each check."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Literal
from xml.etree import ElementTree

from lightning_audit.cli.formats.checked import Checked
from lightning_audit.cli.formats.findings_shown import Finding, findings_of
from lightning_audit.files.printable import visible
from lightning_audit.report.guessed_coins import DECLARED
from lightning_audit.results.audit_report import CheckResult

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
        found = {id(finding.result): finding for finding in findings_of(one.report)}
        for check in one.report.checks:
            yield _of_check(one, check, found.get(id(check)))
        if one.report.verdict.outcome == "INCONCLUSIVE":
            verdict = one.report.verdict
            why = "; ".join(verdict.pass_blockers) or verdict.summary
            yield _case(one, "gate", "verdict", "error", "INCONCLUSIVE", why)
    for remark in one.remarks:
        kind: _Kind = "failure" if remark.outcome == "VIOLATION" else "error"
        first, *rest = remark.text.split("\n")
        yield _case(one, "gate", remark.rule, kind, remark.rule, first, rest)


def _of_check(one: Checked, check: CheckResult, finding: Finding | None) -> ElementTree.Element:
    known = DECLARED[check.name]
    name = f"{known.heading()} ({check.name})"
    name += f" of {check.optimizer}" if check.optimizer else ""
    topic = known.topic or "Other"
    if check.follows_from:
        why = f"follows from {check.follows_from}"
        return _case(one, topic, name, "skipped", "follows", why)
    if check.status == "not_run":
        return _case(one, topic, name, "skipped", "not_run", check.message)
    if finding is None:
        return _case(one, topic, name)
    details = [check.message, f"Severity: {finding.severity}", f"Look at: {finding.look_at}"]
    details += [f"Code: {p.name} at {p.file}:{p.line}" for p in finding.places]
    if not finding.fails:
        case = _case(one, topic, name)
        output = ElementTree.SubElement(case, "system-out")
        output.text = "\n".join(map(visible, [f"{check.status}: {finding.title}", *details]))
        return case
    kind: _Kind = "failure" if check.status == "violated" else "error"
    return _case(one, topic, name, kind, check.name, finding.title, details)


def _case(
    one: Checked,
    topic: str,
    name: str,
    kind: _Kind | None = None,
    type_: str = "",
    message: str = "",
    details: Sequence[str] = (),
) -> ElementTree.Element:
    """Return a case; without a kind, one that passed."""
    case = ElementTree.Element(
        "testcase", classname=visible(f"{one.training}.{topic}"), name=visible(name), time="0"
    )
    if kind:
        child = ElementTree.SubElement(case, kind, type=type_, message=visible(message))
        child.text = "\n".join(map(visible, details)) or None
    return case
