"""The results as a table, as one line, and as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from lightning_audit.report.terminal import print_lines, table
from lightning_audit.selftest.result import Result

HEADINGS = {
    "fault": "Faults",
    "configuration": "The same faults in other configurations",
    "published": "Violations of Nasr et al. 2023",
    "healthy": "Healthy trainings",
}
COLUMNS = ("training", "configuration", "answer", "finding", "steps")


def show(results: Sequence[Result], seconds: float) -> None:
    """Print a table for each group, and the closing lines, to standard output."""
    rows = [cells(result) for result in results]
    widths = [max(map(len, column)) for column in zip(COLUMNS, *rows, strict=True)]
    for group, title in HEADINGS.items():
        chosen = [cells(result) for result in results if result.group == group]
        if chosen:
            print_lines(table(COLUMNS, chosen, title=title, widths=widths), "")
    print_lines(*closing(results, seconds))


def cells(result: Result) -> tuple[str, ...]:
    """Return the cells of a row."""
    answer = f"{result.status}: {result.error}" if result.error else result.status
    return (
        result.fault,
        result.configuration,
        answer,
        result.finding or "-",
        steps_of(result),
    )


def steps_of(result: Result) -> str:
    """Return the step of the finding, and the number of trained steps."""
    if not result.finding:
        return f"- of {result.steps}"
    at = "end" if result.flagged_at is None else str(result.flagged_at)
    return f"{at} of {result.steps}"


def closing(results: Sequence[Result], seconds: float) -> list[str]:
    """Return the failures, one line each, and the summary with the total time."""
    lines = [
        f"{r.status.upper()}: {r.fault}, {r.configuration}: {r.error or r.sentence or r.outcome}"
        for r in results
        if r.failed
    ]
    return [*lines, f"{summary(results)}; {seconds:.0f} s"]


def summary(results: Sequence[Result]) -> str:
    """Return the summary line."""
    faults = [r for r in results if r.group != "healthy"]
    healthy = [r for r in results if r.group == "healthy"]
    counts = Counter(r.status for r in faults)
    parts = []
    if faults:
        parts.append(
            f"{counts['found'] + counts['warned']} of {len(faults)} faults found and named"
        )
    if healthy:
        accused = sum(r.status == "accused" for r in healthy)
        parts.append(f"{accused} of {len(healthy)} healthy runs accused")
    broken = sum(r.status == "crashed" for r in results)
    return "; ".join([*parts, *([f"{broken} crashed"] if broken else [])])


def as_json(results: Sequence[Result], seconds: float, exit_code: int) -> str:
    """Return all results as JSON."""
    fields: dict[str, Any] = {
        "summary": summary(results),
        "exit_code": exit_code,
        "seconds": round(seconds, 1),
        "rows": [dataclasses.asdict(result) for result in results],
    }
    return json.dumps(fields, indent=2, allow_nan=False)
