"""Copies the checks of the registry to the README's table: `python docs/build/checks_table.py`."""

from __future__ import annotations

from pathlib import Path

from lightning_audit.checks.base.registry import REGISTRY

README = Path(__file__).parents[2] / "README.md"
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


def shown(readme: str) -> str:
    """Return the table in the README."""
    return _HEAD + readme.split(_HEAD)[1].split("\n\n")[0] + "\n"


if __name__ == "__main__":
    text = README.read_text(encoding="utf-8")
    README.write_text(text.replace(shown(text), table()), encoding="utf-8")
