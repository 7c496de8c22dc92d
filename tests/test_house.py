"""The house: what a stranger finds by a name. Rooms, files, functions, tests of their name."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest
from places import REPOSITORY
from test_layers import FILES, LEVELS, PACKAGE

MOST_MODULES = 15
MOST_LINES = 350
#: A function may be longer than so many lines, docstring included, in so many places.
LONG_FUNCTION, MOST_LONG = 60, 5
LEAST_TESTED = 0.9
#: One subject, seen from the statistics and from Lightning.
SHARED_STEMS = {"epsilon_star"}

MODULES = [path for path in FILES if path.name != "__init__.py"]
ROOMS = sorted({path.parent for path in MODULES} - {PACKAGE})
TESTS = REPOSITORY / "tests"
#: Folders of tests that are no room's: of the repository's tools, of pages in a browser, of the
#: experiments, and what tests share.
OTHER_TESTS = {"support", "data", "docs_build", "browser", "experiments"}


def in_package(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def files_named_after(module: Path) -> list[Path]:
    """The files in which the tests of a module are."""
    folder = TESTS / module.parent.relative_to(PACKAGE)
    stem = module.stem.lstrip("_")
    return [*folder.glob(f"test_{stem}.py"), *folder.glob(f"test_{stem}_*.py")]


@pytest.mark.parametrize("room", ROOMS, ids=in_package)
def test_a_room_can_be_overlooked(room: Path) -> None:
    modules = [path for path in MODULES if path.parent == room]
    assert len(modules) <= MOST_MODULES
    assert ast.get_docstring(ast.parse((room / "__init__.py").read_text()))


@pytest.mark.parametrize("path", FILES, ids=in_package)
def test_a_file_is_short_and_says_what_it_is_for(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MOST_LINES
    assert ast.get_docstring(ast.parse(text))


def test_few_functions_are_long() -> None:
    long = [
        f"{in_package(path)}: {node.name}"
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno >= LONG_FUNCTION
    ]
    assert len(long) <= MOST_LONG, long


def test_a_stem_stands_for_one_subject() -> None:
    stems = Counter(path.stem.lstrip("_") for path in MODULES)
    assert {stem for stem, count in stems.items() if count > 1} <= SHARED_STEMS


def test_modules_have_tests_of_their_name() -> None:
    without = [in_package(path) for path in MODULES if not files_named_after(path)]
    assert len(without) <= (1 - LEAST_TESTED) * len(MODULES), without


def test_tests_lie_where_the_modules_lie_that_they_are_named_after() -> None:
    files = [path for path in TESTS.rglob("test_*.py") if path.parent != TESTS]
    named = {path for module in MODULES for path in files_named_after(module)}
    rooms = {path for path in files if path.relative_to(TESTS).parts[0] not in OTHER_TESTS}
    assert sorted(str(path.relative_to(TESTS)) for path in rooms - named) == []
    names = Counter(path.name for path in files)
    assert [name for name, count in names.items() if count > 1] == []


def test_contributing_says_of_each_room_what_it_is_for_and_what_it_may_import() -> None:
    text = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| L(\d) \| `([\w.]+)/?` \| (.+?) \| (.+?) \|$", text, re.MULTILINE)
    assert {name.removesuffix(".py"): int(level) for level, name, _, _ in rows} == LEVELS
    assert all(purpose.strip() and imports.strip() for _, _, purpose, imports in rows)
