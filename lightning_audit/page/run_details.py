"""The training that a report is about: facts, claim, circumstances, repeated steps, code."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from lightning_audit.checks.base.registry import REGISTRY
from lightning_audit.files.printable import visible
from lightning_audit.page import trainings_words
from lightning_audit.page.shown_text import PERCENT, inner, listed, number, plural
from lightning_audit.results.audit_report import AuditReport, LikelyFault
from lightning_audit.results.report_json import plain

#: Lines of a place in the code that the page shows.
_MOST_LINES = 12
#: Examinations that the page lists.
_MOST_EXAMINATIONS = 20
#: How a training ended, in words.
_ENDED = {
    "planned": "as planned",
    "violation": "stopped by the violation",
    "budget": "stopped before the claim was exceeded",
    "stopped": "stopped early",
    "broke off": "broke off with an exception",
    "failed": "the audit failed",
}
_CLAIMS = {
    "noise_multiplier": "noise multiplier",
    "max_grad_norm": "clipping norm",
    "expected_batch_size": "expected batch size",
    "sample_rate": "sampling rate",
}

Fact = tuple[str, str, str]
Pair = tuple[str, str]


@dataclass(frozen=True)
class CodeShown:
    """Lines of the user's code that a finding points to.

    Args:
        file: path from the repository.
        line: number of the first line.
        name: of the function or class.
        lines: number and text of each line.
    """

    file: str
    line: int
    name: str
    lines: tuple[tuple[int, str], ...]


def facts(report: AuditReport) -> list[Fact]:
    """Return the numbers below the verdict, each with a remark."""
    if report.trainings is not None:
        return trainings_words.facts(report.trainings)
    planned = report.planned_steps
    of = f"of {planned:,} planned" if planned and planned != report.steps else ""
    found: list[Fact] = [
        ("Steps audited", f"{report.steps:,}", of),
        ("Canary readings", f"{report.observations:,}", ""),
    ]
    if len(report.optimizers) > 1:
        found.append(("Private optimizers", f"{len(report.optimizers)}", ""))
    if report.run and report.run.processes > 1:
        found.append(("Processes", f"{report.run.processes}", ""))
    asked = [check.evidence.get("examined") for check in report.checks]
    counts = [count for count in asked if isinstance(count, int) and not isinstance(count, bool)]
    if examined := len(report.examinations) or max(counts, default=0):
        found.append(("Steps run again", f"{examined}", "with and without a record"))
    significance = report.settings.get("significance")
    if significance is not None:
        found.append(
            ("False alarm", f"≤ {100 * float(significance):g}{PERCENT}", "over the whole run")
        )
    if report.ended:
        reason = _ENDED.get(report.ended.reason, report.ended.reason)
        found.append(("Training", visible(reason), ""))
    elif not report.complete:
        found.append(("Training", "not ended", "when this was written"))
    return found


def claim_rows(report: AuditReport) -> list[Pair]:
    """Return the parts of the claim that was audited, with the source of each."""
    if report.trainings is not None:
        return [("claim", visible(report.trainings.claim))]
    return [
        (
            _CLAIMS.get(name, visible(name.replace("_", " "))),
            f"{_value(part.value)} ({part.source})",
        )
        for name, part in report.claim.items()
        if part.value is not None
    ]


def circumstances(report: AuditReport) -> list[Pair]:
    """Return where and how the training ran."""
    run = report.run
    if run is None:
        return []
    several = plural(run.processes, "process").replace("processs", "processes")
    rows = {
        "module": run.name,
        "started": run.started.replace("T", " "),
        "duration": f"{run.seconds:,.3g} s" if run.seconds else "",
        "device": run.device,
        "precision": run.precision,
        "strategy": f"{run.strategy}, {several}" if run.strategy else several,
        "commit": run.commit or "",
    }
    return [(name, visible(text)) for name, text in rows.items() if text]


def examinations(report: AuditReport) -> list[str]:
    """Return what was tested of each step that was run again, in a sentence."""
    shown = [_examined(*row) for row in _examined_steps(report)]
    rest = len(shown) - _MOST_EXAMINATIONS
    return shown[:_MOST_EXAMINATIONS] + ([f"{rest} more steps."] if rest > 0 else [])


def _examined_steps(
    report: AuditReport,
) -> Iterator[tuple[int, tuple[str, ...], tuple[str, ...], float]]:
    for one in report.examinations:
        yield one.step + 1, one.questions, one.findings, one.seconds


def _examined(step: int, questions: tuple[str, ...], found: tuple[str, ...], took: float) -> str:
    failed = listed(_titles(found, failed=True)) if found else "nothing was found"
    return f"Step {step:,}, in {number(took, 2)} s: {listed(_titles(questions))}; {failed}."


def code_of(fault: LikelyFault) -> tuple[CodeShown, ...]:
    """Return the code that a fault points to, as far as the report holds its lines."""
    return tuple(
        CodeShown(visible(place.file), place.line, visible(place.name), _lines(place.line, source))
        for place in fault.place.code
        if (source := place.source.rstrip())
    )


def _lines(first: int, source: str) -> tuple[tuple[int, str], ...]:
    lines = source.split("\n")[:_MOST_LINES]
    indent = min((len(s) - len(s.lstrip()) for s in lines if s.strip()), default=0)
    return tuple((first + i, visible(s[indent:].rstrip())) for i, s in enumerate(lines))


def _titles(names: tuple[str, ...], *, failed: bool = False) -> list[str]:
    known = (REGISTRY[name].heading(failed=failed) if name in REGISTRY else name for name in names)
    return [inner(title) for title in known]


def _value(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(_value(one) for one in value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return visible(value if isinstance(value, str) else json.dumps(plain(value)))
    return number(value, 4)
