"""Reports as annotations of a GitHub job, and its step summary."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from lightning_audit.cli.formats.checked import Checked
from lightning_audit.cli.formats.findings_shown import Finding, findings_of
from lightning_audit.cli.formats.lines import as_lines
from lightning_audit.cli.formats.markdown import as_markdown
from lightning_audit.files.printable import visible

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
    every = [annotation for one in checked for annotation in _of_one(one)]
    every.sort(key=lambda annotation: _LEVELS.index(annotation[0]))
    if len(every) <= MOST:
        return every
    left = len(every) - MOST + 1
    level = every[MOST - 1][0]
    return [*every[: MOST - 1], (level, "Privacy audit", f"{left} more findings", {})]


def _of_one(one: Checked) -> Iterator[_Annotation]:
    at = {"file": one.place} if one.report else {}
    for remark in one.remarks:
        title = f"Privacy audit of {one.training}: {remark.rule}"
        yield "error", title, remark.text, at
    if one.report is None:
        return
    for finding in findings_of(one.report):
        yield _of_finding(one, finding)
    verdict = one.report.verdict
    if verdict.outcome == "INCONCLUSIVE":
        message = "; ".join(verdict.pass_blockers) or verdict.summary
        yield "error", f"Privacy audit of {one.training}: INCONCLUSIVE", message, at


def _of_finding(one: Checked, finding: Finding) -> _Annotation:
    level = {"violated": "error", "undecided": "warning"}.get(finding.result.status, "notice")
    at = {"file": one.place}
    if finding.places:
        first = finding.places[0]
        at = {"file": first.file, "line": str(first.line)}
    text = f"{finding.check}, {finding.severity}: {finding.result.message}"
    if finding.look_at:
        text += f". Look at: {finding.look_at}"
    return level, f"{finding.title} ({one.training})", text, at


def _command(annotation: _Annotation) -> str:
    """Return a workflow command; text from a report cannot end it, or begin another."""
    level, title, message, at = annotation
    message = message if len(message) <= _LONGEST else f"{message[:_LONGEST]} ..."
    shown = {"title": title, **at}
    told = ",".join(f"{name}={_property(value)}" for name, value in shown.items())
    return f"::{level} {told}::{_data(message)}"


def _data(text: str) -> str:
    text = "\n".join(map(visible, text.split("\n")))
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
