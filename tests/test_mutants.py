"""Mutants: each operator where it should be, valid sources, a draw by a seed, and two real runs."""

import ast
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from places import REPOSITORY

BENCHMARKS = REPOSITORY / "benchmarks"


@pytest.fixture
def mutators(monkeypatch):
    spec = importlib.util.spec_from_file_location("mutators", BENCHMARKS / "mutators.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "mutators", module)
    spec.loader.exec_module(module)
    return module


def changed(mutators: ModuleType, source: str) -> list[str]:
    """The sources of all mutants, which are valid and have as many lines."""
    found = [one.of(source.encode()).decode() for one in mutators.mutants("a.py", source.encode())]
    for text in found:
        ast.parse(text)
        assert text.count("\n") == source.count("\n")
    return found


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a < b", ["a <= b", "a >= b"]),
        ("a == b is c", ["a != b is c", "a == b is not c"]),
        ("a not in b", ["a in b"]),
        ("x = a and b or c", ["x = ((a and b) and c)", "x = (a or b) or c"]),
        ("x = a - b * c", ["x = (a + b * c)", "x = a - (b / c)"]),
        ("x -= y", ["x += y"]),
        ("x = not -y", ["x = (-y)", "x = not (y)"]),
        ("x = True", ["x = False"]),
        ("x = f(2, 0.5)", ["x = f(3, 0.5)", "x = f(1, 0.5)", "x = f(2, 1.5)", "x = f(2, -0.5)"]),
        ("def f(): return x", ["def f(): return None"]),
        ("f('ä'); g()", ["pass; g()", "f('ä'); pass"]),
        ("if a: x", ["if True: x", "if False: x"]),
        ("x = a if b else c", ["x = a if True else c", "x = a if False else c"]),
        ("x = [a for a in b if a]", ["x = [a for a in b if True]", "x = [a for a in b if False]"]),
        ("while a: x", ["while False: x"]),
        ("x = f(\n    a\n    + b\n)", ["x = f(\n    (a - b\n)\n)"]),
    ],
)
def test_each_operator_is_applied_where_it_should(mutators, source, expected):
    assert changed(mutators, source) == expected


@pytest.mark.parametrize(
    "source",
    [
        '"""Text 1."""\nx = "1"',
        "x = f'{a + 1:.3f}'",
        "x: int | None = None",
        "def f(a: int | str) -> int | None: return None",
        "@dataclass(frozen=True)\nclass A: pass",
        "if TYPE_CHECKING:\n    x = 1",
        "def f():\n    return",
    ],
)
def test_texts_annotations_and_decorators_stay(mutators, source):
    assert changed(mutators, source) == []


def test_tests_of_the_statement_are_asked_and_outside_of_functions_all(mutators):
    source = (
        "LIMIT = 3\n"
        "wrong = lambda seen: not seen\n"
        "def f(\n    a,\n    b=-x,\n):\n"
        "    if a:\n        while (\n            not b\n        ):\n            g()\n"
        "    return a\n"
        "class A:\n    x: int = 4\n    def f(self):\n        return x\n"
    )
    lines = {
        one.line: None if one.lines is None else (one.lines[0], one.lines[-1])
        for one in mutators.mutants("a.py", source.encode())
    }
    assert lines == {
        **{1: None, 2: (2, 2), 5: (7, 12), 7: (7, 7), 9: (8, 10), 11: (11, 11), 12: (12, 12)},
        **{14: None, 16: (16, 16)},
    }


SUMS = '''"""Made up."""

LIMIT = 10


def clipped(total: int) -> int:
    return min(total, LIMIT)


def largest(values: list[int]) -> int:
    best = values[0]
    for value in values:
        if value > best:
            best = value
    return best


def unused() -> bool:
    return not True
'''
TESTS = """import os

import pytest

from made_up.sums import numbers


def test_largest():
    assert numbers.largest([1, 3, 2]) == 3


def test_clipped():
    assert numbers.clipped(12) == 10
    numbers.largest([1])


def test_fails():
    assert numbers.largest([1]) == 2


@pytest.mark.heavy
def test_heavy():
    assert not numbers.unused()
"""


def run(folder: Path, *options: str) -> str:
    """The page of a run on a made-up package; a second run adds a row to it."""
    script = [sys.executable, str(BENCHMARKS / "mutants.py"), "--jobs=1", "--rooms=made_up/sums"]
    where = [f"--root={folder}", f"--page={folder / 'page.md'}"]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        [*script, *where, *options], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return (folder / "page.md").read_text(encoding="utf-8")


@pytest.mark.nightly
def test_of_a_made_up_package_mutants_are_killed_and_survive(tmp_path):
    for file, text in {
        "made_up/__init__.py": "",
        "made_up/sums/__init__.py": "",
        "made_up/sums/numbers.py": SUMS,
        "tests/sums/test_numbers.py": TESTS,
        "pyproject.toml": "[tool.pytest.ini_options]\nmarkers = ['heavy']\n",
    }.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
    page = run(tmp_path, "--all")
    assert "| made_up/sums/numbers.py | 13 | 13 | 8 | 5 |" in page
    assert "  - `tests/sums/test_numbers.py::test_fails` fails without a mutant" in page
    survived = page.partition("## What survived")[2]
    place = "| made_up/sums/numbers.py"
    assert f"{place}:13 | `if value > best:` | `if value >= best:` | 2 |" in survived
    assert f"{place}:19 | `return not True` | `return None` | 0 |" in survived
    assert ":3 " not in survived
    assert (tmp_path / "made_up" / "sums" / "numbers.py").read_text() == SUMS
    drawn = [run(tmp_path, "--draw=3", "--seed=1") for _ in range(2)]
    tables = [text.partition("## The last run")[2] for text in drawn]
    assert tables[0] == tables[1]
    assert "| made_up/sums/numbers.py | 13 | 3 |" in tables[0]
    assert re.findall(r"^\| \d{4}-.*? \| (\d+) of 13 \|", drawn[1], re.M) == ["13", "3", "3"]
