"""The section of pytest's summary that shows the verdicts of audited tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lightning_audit.files.printable import visible

SECTION = "privacy audits"
_MARKUP: Mapping[str, Mapping[str, bool]] = {
    "PASS": {"green": True},
    "VIOLATION": {"red": True},
    "INCONCLUSIVE": {"yellow": True},
}


def section_lines(
    found: Mapping[str, Sequence[Mapping[str, Any]]],
) -> Iterator[tuple[str, Mapping[str, bool]]]:
    """Yield the lines, each with its markup: of each training its verdict, reasons and epsilons.

    Args:
        found: the results of `AuditedTest` by the test's node ID.
    """
    for test, results in found.items():
        for number, result in enumerate(results, start=1):
            which = f" (fit {number})" if len(results) > 1 else ""
            yield visible(f"{test}{which}  {result['outcome']}"), _MARKUP[result["outcome"]]
            for line in result["details"]:
                yield visible(f"  {line}"), {}


def tally(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return the number of trainings by verdict, in a line."""
    counts = Counter(result["outcome"] for results in found.values() for result in results)
    total = counts.total()
    parts = [f"{counts[outcome]} {outcome}" for outcome in _MARKUP if counts[outcome]]
    return f"{total} audited training{'s' if total != 1 else ''}: {', '.join(parts)}"
