"""Makes docs/checks.md from the registry: `python docs/build/checks_page.py`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from checks_table import table

from lightning_audit.checks.check import QUESTIONS, REGISTRY, Check

PAGE = Path(__file__).parents[1] / "checks.md"

_HEAD = """# Checks

<!-- Made by `python docs/build/checks_page.py` from the registry; do not edit. -->

An audit runs up to {count} checks on {topics} topics. The first column has the name of a check, as
in reports and in `allow`; the last three columns apply if the check fails. The [last
table](#all-findings) has all findings in short, with the conditions under which they are found.
[Packages add their own](own-checks.md).
"""
_FINDINGS = """
## All findings

`replay.*` and `coupling` come from [examinations](how-it-works.md#examinations-by-replay), which
run steps again.

"""
_COLUMNS = """
| check | title | title if it fails | what that means | where to look |
|---|---|---|---|---|
"""


def markdown() -> str:
    """Return the page."""
    sections = [
        _section(topic, question, (c for c in REGISTRY.values() if c.topic == topic))
        for topic, question in QUESTIONS.items()
    ]
    head = _HEAD.format(count=len(REGISTRY), topics=len(QUESTIONS))
    others = [check for check in REGISTRY.values() if check.topic is None]
    if others:
        sections.append(_section("Other packages", "", others))
    return head + "".join(sections) + _FINDINGS + table()


def _section(topic: str, question: str, checks: Iterable[Check]) -> str:
    rows = "".join(f"| {' | '.join(_cells(check))} |\n" for check in checks)
    return f"\n## {topic}\n" + f"\n{question}\n" * bool(question) + _COLUMNS + rows


def _cells(check: Check) -> tuple[str, ...]:
    return (
        f"`{check.name}`",
        check.heading(),
        check.heading(failed=True),
        check.meaning or check.finds,
        check.look_at,
    )


if __name__ == "__main__":
    PAGE.write_text(markdown(), encoding="utf-8")
