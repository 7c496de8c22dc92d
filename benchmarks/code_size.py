"""Counts lines of code by room: `python benchmarks/code_size.py [room ...]`.

A line counts if it has code: no docstring, comment, blank line or import.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "lightning_audit"
_NO_CODE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    tokenize.ENDMARKER,
}
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def lines_of_code(source: str) -> int:
    """Return the number of lines that hold code.

    Args:
        source: of a Python module.
    """
    held: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            held.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            held.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node) is not None:
            text = node.body[0]
            held.difference_update(range(text.lineno, (text.end_lineno or text.lineno) + 1))
    return len(held)


def sizes(rooms: list[str]) -> list[tuple[str, int, int, int, int]]:
    """Return name, lines of code, lines, files and folders of each room.

    Args:
        rooms: names of folders in the package; all if empty.
    """
    found = []
    for room in rooms or sorted(p.name for p in PACKAGE.iterdir() if (p / "__init__.py").exists()):
        files = sorted((PACKAGE / room).rglob("*.py"))
        texts = [path.read_text(encoding="utf-8") for path in files]
        count = Counter(code=0, lines=0)
        for text in texts:
            count["code"] += lines_of_code(text)
            count["lines"] += len(text.splitlines())
        folders = len({path.parent for path in files})
        found.append((room, count["code"], count["lines"], len(files), folders))
    return found


def main(rooms: list[str]) -> None:
    """Print a row for each room and their sum."""
    rows = sizes(rooms)
    total = ("together", *(sum(column) for column in list(zip(*rows, strict=True))[1:]))
    print(f"{'room':<16}{'code':>8}{'lines':>8}{'files':>8}{'folders':>8}")
    for name, *numbers in (*rows, total):
        print(f"{name:<16}" + "".join(f"{number:>8,}" for number in numbers))


if __name__ == "__main__":
    main(sys.argv[1:])
