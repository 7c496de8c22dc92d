"""Table of findings in short, a part of docs/checks.md (`python docs/build/checks_page.py`)."""

from __future__ import annotations

from lightning_audit.checks.check import REGISTRY

_HEAD = "| finding | what it says |\n|---|---|\n"
#: Not a check: the report has a note on it.
_UNAUDITED = (
    "| `unaudited` | parameters change that the private optimizer does not train (never a "
    "violation) |\n"
)


def table() -> str:
    """Return the table; checks with the same text share a row."""
    names: dict[str, list[str]] = {}
    for check in REGISTRY.values():
        names.setdefault(check.finds, []).append(f"`{check.name}`")
    rows = "".join(f"| {', '.join(named)} | {finds} |\n" for finds, named in names.items())
    return _HEAD + rows + _UNAUDITED
