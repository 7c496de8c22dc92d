"""Reports as Markdown: the step summary of a job, or a comment on a pull request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lightning_audit.cli.formats.checked import Checked, counts, worst
from lightning_audit.cli.formats.epsilons_shown import number, proved
from lightning_audit.cli.formats.findings_shown import SEVERITIES, Finding, findings_of
from lightning_audit.files.printable import in_markdown
from lightning_audit.report.in_words import length
from lightning_audit.results.audit_report import AuditReport, Outcome

#: First line; a job finds its earlier comment by it.
MARKER = "<!-- lightning-audit -->"
#: Bytes of the step summary that GitHub accepts are 2^20; what it adds itself is unknown.
MOST_BYTES = 1_000_000
_ICONS: dict[Outcome, str] = {"PASS": "✅", "VIOLATION": "❌", "INCONCLUSIVE": "⚠️"}
_WORST_FIRST: tuple[Outcome, ...] = ("VIOLATION", "INCONCLUSIVE", "PASS")
_CLOSE = "A pass is evidence, not a proof of privacy."


def as_markdown(checked: Sequence[Checked]) -> str:
    """Return a table of the reports, then the findings of each, in less than `MOST_BYTES`."""
    checked = sorted(checked, key=lambda one: _WORST_FIRST.index(one.outcome))
    head = [MARKER, f"### {_headline(checked)}", "", *_table(checked)]
    if deltas := sorted({one.report.delta for one in checked if one.report}):
        shown = ", ".join(f"{delta:g}" for delta in deltas[:3])
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
    which = f"{counts(checked)[outcome]} of {len(checked)} trainings"
    if len(checked) == 1:
        which = checked[0].training
    reasons = [reason for one in checked if one.outcome == outcome for reason in one.reasons]
    first = reasons[0].split("\n")[0] if reasons else ""
    why = f": {in_markdown(first)}" if first else ""
    more = f" and {len(reasons) - 1} more" if len(reasons) > 1 else ""
    return f"{_ICONS[outcome]} Privacy audit: {outcome} ({in_markdown(which)}){why}{more}"


def _table(checked: Sequence[Checked]) -> Iterator[str]:
    yield "| training | verdict | proved ≥ | spent | claimed | steps |"
    yield "|---|---|--:|--:|--:|--:|"
    # Rows of reports that do not fit would leave no room for findings.
    most = 500
    for one in checked[:most]:
        numbers = ["-"] * 4
        if report := one.report:
            epsilons = [proved(report), number(report.epsilon_spent)]
            steps = str(report.steps) if report.trainings is None else length(report)
            numbers = [*epsilons, number(report.claimed_epsilon), steps]
        name = in_markdown(one.training[-200:])
        cells = [name, f"{_ICONS[one.outcome]} {one.outcome}", *numbers]
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
    yield f"- **Check:** {in_markdown(finding.check)}{status}"
    yield f"- **Severity:** {finding.severity}: {SEVERITIES[finding.severity]}"
    yield f"- **Seen:** {in_markdown(result.message)}"
    step = result.evidence.get("violated_at_step")
    if isinstance(step, int):
        yield f"- **First seen:** after {step + 1} of {report.steps} steps"
    for place in finding.places:
        yield f"- **Code:** {in_markdown(place.name)} at {in_markdown(place.file)}:{place.line}"
    if finding.look_at:
        yield f"- **Look at:** {in_markdown(finding.look_at)}"
    if finding.explains:
        yield f"- **Explains:** {in_markdown(', '.join(finding.explains))}"
    yield ""
    yield "</details>"
