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
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
PACKAGE, TESTS = REPOSITORY / "lightning_audit", REPOSITORY / "tests"
SIZE = REPOSITORY / "benchmarks" / "size.json"
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def lines_of(source: str, nodes: Iterable[ast.AST]) -> Counter[str]:
    """Return the number of a module's lines of each kind.

    Args:
        source: of the module.
        nodes: all nodes of its syntax tree.
    """
    rows = source.splitlines()
    kinds = dict.fromkeys(range(1, len(rows) + 1), "code")
    kinds |= {number: "blank" for number, row in enumerate(rows, 1) if not row.strip()}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and rows[token.start[0] - 1].lstrip().startswith("#"):
            kinds[token.start[0]] = "comment"
    for node in nodes:
        text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        kind = "docstring" if text and isinstance(node.value.value, str) else ""
        kind = "import" if isinstance(node, ast.Import | ast.ImportFrom) else kind
        if kind:
            kinds |= dict.fromkeys(range(node.lineno, node.end_lineno + 1), kind)
    return Counter(kinds.values())


def importers(modules: Mapping[str, Iterable[ast.AST]]) -> dict[str, set[str]]:
    """Return the modules that import each module, from anywhere in their code.

    Args:
        modules: the nodes of each, by its name.
    """
    found: dict[str, set[str]] = {name: set() for name in modules}
    for own, nodes in modules.items():
        for name in _imported(nodes):
            home = name if name in modules else name.rpartition(".")[0]
            if home in modules:
                found[home].add(own)
    return found


def _imported(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def measured() -> dict[str, int]:
    """Return the sizes of the package and of its tests."""
    files, tests = sorted(PACKAGE.rglob("*.py")), sorted(TESTS.rglob("*.py"))
    texts = {
        ".".join(path.relative_to(REPOSITORY).with_suffix("").parts): path.read_text("utf-8")
        for path in files
    }
    nodes = {name: list(ast.walk(ast.parse(text))) for name, text in texts.items()}
    lines = sum((lines_of(texts[name], nodes[name]) for name in texts), Counter[str]())
    used = importers({name.removesuffix(".__init__"): nodes[name] for name in texts})
    return {
        "code": lines["code"],
        "docstrings": lines["docstring"],
        "imports": lines["import"],
        "comments": lines["comment"],
        "lines": lines.total(),
        "longest_file": max(len(text.splitlines()) for text in texts.values()),
        "files": len(files),
        "folders": len({path.parent for path in files}),
        "single_importer": sum(len(used[name]) == 1 for name in used.keys() & texts.keys()),
        "functions": sum(isinstance(node, _DEFINITIONS) for one in nodes.values() for node in one),
        "test_files": len(tests),
        "test_lines": sum(len(path.read_text(encoding="utf-8").splitlines()) for path in tests),
    }


if __name__ == "__main__":
    sizes = measured()
    for name, number in sizes.items():
        print(f"{name:<16}{number:>8,}")
    if "--write" in sys.argv[1:]:
        SIZE.write_text(json.dumps(sizes, indent=2) + "\n", encoding="utf-8")
