"""benchmarks/code_size.py counts code, and the rooms of checks and verdict stay small."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import pytest
from places import REPOSITORY

#: Most lines of code of the rooms checks and verdict together, the words of checks included: what
#: was measured, so that the rooms do not grow.
MOST = 6130

SOURCE = '''"""Docstring
of two lines."""

from __future__ import annotations

import os  # a comment
from os import (
    path,
)


def f(x: int) -> str:
    """One line."""
    # A comment.
    text = """three
lines of
text"""

    return text * x


class A:
    """Only a docstring."""
'''


@pytest.fixture(scope="module")
def code_size() -> ModuleType:
    path = REPOSITORY / "benchmarks" / "code_size.py"
    spec = importlib.util.spec_from_file_location("code_size", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_lines_of_code_are_those_without_docstrings_comments_blanks_and_imports(
    code_size: ModuleType,
) -> None:
    assert code_size.lines_of_code(SOURCE) == 6  # def, three of the text, return, class
    assert code_size.lines_of_code('"""Only a docstring."""\n') == 0


def test_the_rooms_of_checks_and_verdict_are_small(code_size: ModuleType) -> None:
    rows = code_size.sizes(["checks", "verdict"])
    assert [name for name, *_ in rows] == ["checks", "verdict"]
    assert all(0 < code < lines for _, code, lines, _, _ in rows)
    assert sum(code for _, code, *_ in rows) <= MOST, rows
