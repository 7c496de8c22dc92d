"""Makes CONTRIBUTING's table of the house from the package: `python docs/build/house_table.py`.

A room is a folder of the package, or a module next to them. What it is for is its docstring.
"""

from __future__ import annotations

import ast
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
PACKAGE, PAGE = REPOSITORY / "lightning_audit", REPOSITORY / "CONTRIBUTING.md"
_BEGIN, _END = "<!-- made by docs/build/house_table.py -->\n", "<!-- to here -->\n"

#: Level of each room; an import points to the same level or to a lower one.
LEVELS = {
    **dict.fromkeys(("_validate", "_version", "layout", "files", "results"), 0),
    "stats": 1,
    **dict.fromkeys(("accounting", "attacks", "checks", "record", "report"), 2),
    **dict.fromkeys(("canaries", "card", "dpsgd", "hooks", "verdict"), 3),
    **dict.fromkeys(("blackbox", "config", "lints", "replay", "session"), 4),
    "run": 5,
    **dict.fromkeys(("callbacks", "loops", "many"), 6),
    **dict.fromkeys(("testing", "transformers"), 7),
    **dict.fromkeys(("__main__", "cli", "pytest_plugin"), 8),
}
LIGHTNING = frozenset({"pytorch_lightning", "lightning", "lightning_fabric"})
HEAVY = frozenset({"torch", "opacus"}) | LIGHTNING
#: What a room must not load; rooms that are not named may load all.
BARRED = {
    **dict.fromkeys(("_validate", "layout", "files", "results", "stats"), HEAVY),
    **dict.fromkeys(("accounting", "attacks", "checks", "record", "report"), HEAVY),
    **dict.fromkeys(("__main__", "card", "verdict", "cli", "pytest_plugin"), HEAVY),
    **dict.fromkeys(("canaries", "dpsgd", "hooks"), LIGHTNING),
    **dict.fromkeys(("config", "lints", "loops", "replay", "run", "session"), LIGHTNING),
    "transformers": LIGHTNING,
}


def purpose(room: str) -> str:
    """Return what a room is for: the first line of its docstring."""
    folder = PACKAGE / room / "__init__.py"
    path = folder if folder.exists() else PACKAGE / f"{room}.py"
    return (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").splitlines()[0]


def modules(room: str) -> list[str]:
    """Return the names of a folder's modules."""
    return sorted(path.stem for path in (PACKAGE / room).glob("*.py") if path.stem != "__init__")


def table() -> str:
    """Return the rooms, the highest level first, with their purpose and their modules."""
    without = {HEAVY: "torch", LIGHTNING: "Lightning"}
    rows = ["| level | room | purpose | modules | loads no |\n|---|---|---|---|---|\n"]
    for room, level in sorted(LEVELS.items(), key=lambda one: (-one[1], one[0])):
        inner = modules(room)
        name = f"`{room}/`" if inner else f"`{room}.py`"
        barred = without.get(BARRED.get(room, frozenset()), "")
        rows.append(f"| L{level} | {name} | {purpose(room)} | {', '.join(inner)} | {barred} |\n")
    return "".join(rows)


def shown(page: str) -> str:
    """Return the table that a page has."""
    return page.split(_BEGIN)[1].split(_END)[0]


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(text.replace(_BEGIN + shown(text), _BEGIN + table()), encoding="utf-8")
