"""Copies the registry's shares to docs/design-decisions.md: `python docs/build/shares_table.py`."""

from __future__ import annotations

from pathlib import Path

from lightning_audit.checks.check import shares

PAGE = Path(__file__).parents[1] / "design-decisions.md"
_HEAD = "| share | checks |\n|---|---|\n"


def table() -> str:
    """Return a row per share, largest first; checks that warn share a second significance."""
    rows = [*_rows(shares(), ""), *_rows(shares(warns=True), " of the second")]
    return _HEAD + "".join(rows)


def _rows(handed_out: dict[str, float], of: str) -> list[str]:
    names: dict[float, list[str]] = {}
    for name, share in handed_out.items():
        names.setdefault(share, []).append(f"`{name}`")
    return [
        f"| {share:.3g}{of} | {', '.join(names[share])} |\n"
        for share in sorted(names, reverse=True)
    ]


def shown(page: str) -> str:
    """Return the table in the page."""
    return _HEAD + page.split(_HEAD)[1].split("\n\n")[0] + "\n"


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(text.replace(shown(text), table()), encoding="utf-8")
