"""Every module of stats/ names the paper of what it proves, by arXiv number or DOI."""

import ast
import re
from pathlib import Path

import pytest
from places import PACKAGE

STATS = PACKAGE / "stats"
#: Modules that prove nothing: plain numerics, validation, and containers.
PROVE_NOTHING = {"_arguments.py", "clipped_sums.py"}
_SOURCE = re.compile(r"\barXiv:\d{4}\.\d{4,5}\b|\bdoi:10\.\d{4,}/\S+")


def name_of(path: Path) -> str:
    return path.relative_to(STATS).as_posix()


def docstrings_of(tree: ast.Module) -> list[str]:
    """Docstrings of a module, its classes and its functions."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    found = (ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, kinds))
    return [text for text in found if text]


def is_public(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")


TREES = {name_of(path): ast.parse(path.read_text("utf-8")) for path in STATS.rglob("*.py")}
WITH_FUNCTIONS = sorted(name for name, tree in TREES.items() if any(map(is_public, tree.body)))


@pytest.mark.parametrize("name", WITH_FUNCTIONS)
def test_a_module_names_a_source_unless_it_proves_nothing(name):
    has_source = any(_SOURCE.search(text) for text in docstrings_of(TREES[name]))
    assert has_source is (name not in PROVE_NOTHING)


def test_the_modules_that_prove_nothing_exist():
    assert set(WITH_FUNCTIONS) >= PROVE_NOTHING
    assert len(PROVE_NOTHING) < len(WITH_FUNCTIONS) / 4


def test_sources_are_written_in_one_form():
    # A number in another form would not be found above.
    wrong = re.compile(r"arxiv(?!:\d{4}\.\d{4,5}\b)|doi(?=\.|: |\b(?!:10\.))", re.IGNORECASE)
    for name, tree in TREES.items():
        for text in docstrings_of(tree):
            assert not wrong.search(text), name
