"""The results as a table, as one line, and as JSON."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

from lightning_audit.selftest.result import Result

HEADINGS = {
    "fault": "Faults",
    "configuration": "The same faults in other configurations",
    "published": "Violations of Nasr et al. 2023",
    "healthy": "Healthy trainings",
}
COLUMNS = ("training", "configuration", "answer", "finding", "steps")
_STYLES = {
    "found": "green",
    "warned": "green",
    "not accused": "green",
}


def show(results: Sequence[Result], seconds: float) -> None:
    """Print the table and the closing line to standard output."""
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:  # without rich, the text has the same content
        print(as_text(results, seconds))
        return
    if not sys.stdout.isatty():  # a table folded to 80 columns cannot be searched
        print(as_text(results, seconds))
        return
    console = Console(markup=False, emoji=False, highlight=False)
    for group, title in HEADINGS.items():
        rows = [result for result in results if result.group == group]
        if not rows:
            continue
        table = Table(title=title, title_justify="left")
        for column in COLUMNS:
            table.add_column(column, overflow="fold")
        for result in rows:
            texts = [Text(cell) for cell in cells(result)]
            texts[2].stylize(_STYLES.get(result.status, "bold red"))
            table.add_row(*texts)
        console.print(table)
    for line in closing(results, seconds):
        console.print(line)


def as_text(results: Sequence[Result], seconds: float) -> str:
    """Return the table as aligned lines of text, and the closing lines."""
    rows = [(result.group, cells(result)) for result in results]
    widths = [
        max(len(row[i]) for row in [COLUMNS, *(row for _, row in rows)])
        for i in range(len(COLUMNS))
    ]
    lines = []
    for group, title in HEADINGS.items():
        chosen = [row for own, row in rows if own == group]
        if chosen:
            lines += [title, *(_aligned(row, widths) for row in [COLUMNS, *chosen]), ""]
    return "\n".join([*lines, *closing(results, seconds)])


def _aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    joined = "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
    return f"  {joined}".rstrip()


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
