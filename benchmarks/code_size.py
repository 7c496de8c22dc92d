"""Prints the size of the package and of its tests: `python benchmarks/code_size.py [--write]`.

A line is code, docstring, import, comment or blank; a string that is a statement counts as a
docstring. Imports inside functions and for types count, too. ``--write`` writes size.json, with
which tests/test_house.py compares.
"""

from __future__ import annotations

import ast
import io
import json
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
PACKAGE, TESTS = REPOSITORY / "lightning_audit", REPOSITORY / "tests"
SIZE = REPOSITORY / "benchmarks" / "size.json"
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def lines_of(source: str) -> Counter[str]:
    """Return the number of a module's lines of each kind.

    Args:
        source: of the module.
    """
    rows = source.splitlines()
    kinds = dict.fromkeys(range(1, len(rows) + 1), "code")
    kinds |= {number: "blank" for number, row in enumerate(rows, 1) if not row.strip()}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and rows[token.start[0] - 1].lstrip().startswith("#"):
            kinds[token.start[0]] = "comment"
    for node in ast.walk(ast.parse(source)):
        text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        kind = "docstring" if text and isinstance(node.value.value, str) else ""
        kind = "import" if isinstance(node, ast.Import | ast.ImportFrom) else kind
        if kind:
            kinds |= dict.fromkeys(range(node.lineno, node.end_lineno + 1), kind)
    return Counter(kinds.values())


def importers(files: Iterable[Path], root: Path) -> dict[str, set[str]]:
    """Return the modules that import each module, from anywhere in their code.

    Args:
        files: of the package.
        root: the folder of the package.
    """
    trees = {
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path
        for path in files
    }
    found: dict[str, set[str]] = {name: set() for name in trees}
    for own, path in trees.items():
        for name in _imported(ast.parse(path.read_text(encoding="utf-8"))):
            home = name if name in trees else name.rpartition(".")[0]
            if home in trees:
                found[home].add(own)
    return found


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def measured() -> dict[str, int]:
    """Return the sizes of the package and of its tests."""
    files, tests = sorted(PACKAGE.rglob("*.py")), sorted(TESTS.rglob("*.py"))
    texts = [path.read_text(encoding="utf-8") for path in files]
    lines = sum(map(lines_of, texts), Counter[str]())
    used = importers(files, REPOSITORY)
    return {
        "code": lines["code"],
        "docstrings": lines["docstring"],
        "imports": lines["import"],
        "comments": lines["comment"],
        "lines": lines.total(),
        "longest_file": max(len(text.splitlines()) for text in texts),
        "files": len(files),
        "folders": len({path.parent for path in files}),
        "single_importer": sum(
            len(used[".".join(path.relative_to(REPOSITORY).with_suffix("").parts)]) == 1
            for path in files
            if path.name != "__init__.py"
        ),
        "functions": sum(
            isinstance(node, _DEFINITIONS) for text in texts for node in ast.walk(ast.parse(text))
        ),
        "test_files": len(tests),
        "test_lines": sum(len(path.read_text(encoding="utf-8").splitlines()) for path in tests),
    }


if __name__ == "__main__":
    sizes = measured()
    for name, number in sizes.items():
        print(f"{name:<16}{number:>8,}")
    if "--write" in sys.argv[1:]:
        SIZE.write_text(json.dumps(sizes, indent=2) + "\n", encoding="utf-8")
