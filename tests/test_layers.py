"""Imports point down only, and what a layer must not load, it does not load."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import lightning_audit

PACKAGE = Path(lightning_audit.__file__).parent

#: Level of each room, and of each module that is in none; an unknown one fails the test.
LEVELS = {
    "_validate": 0,
    "layout": 0,
    "files": 0,
    "results": 0,
    "stats": 1,
    "accounting": 2,
    "attacks": 2,
    "record": 2,
    "report": 2,
    "checks": 2,
    "canaries": 3,
    "taps": 3,
    "dpsgd": 3,
    "page": 3,
    "verdict": 3,
    "blackbox": 4,
    "config": 4,
    "replay": 4,
    "lints": 4,
    "session": 4,
    "card": 4,
    "run": 5,
    "callbacks": 6,
    "many": 6,
    "testing": 7,
    "selftest": 7,
    "cli": 8,
    "pytest_plugin": 8,
}
#: What some rooms may import of this package, where that is less than their level allows.
ONLY = {
    "files": {"files", "_validate"},
    "results": {"results", "files", "_validate"},
    "stats": {"stats", "_validate"},
    "attacks": {"attacks", "stats", "_validate"},
    "report": {"report", "results", "stats", "files", "checks"},
    "page": {"page", "report", "results", "record", "checks", "stats", "files"},
    "canaries": {"canaries", "layout", "_validate"},
    "taps": {"taps", "layout", "_validate"},
}

FILES = sorted(PACKAGE.rglob("*.py"))
LIGHTNING = {"pytorch_lightning", "lightning", "lightning_fabric"}
HEAVY = {"torch", "opacus", *LIGHTNING}
#: What a room must not load; the rooms that are not named may load all.
BARRED = {
    **dict.fromkeys(("_validate", "layout", "files", "results", "stats"), HEAVY),
    **dict.fromkeys(("accounting", "attacks", "record", "report", "checks"), HEAVY),
    "verdict": HEAVY,
    **dict.fromkeys(("page", "card"), HEAVY),
    **dict.fromkeys(("cli", "pytest_plugin"), HEAVY),
    **dict.fromkeys(("canaries", "taps", "dpsgd", "lints", "replay"), LIGHTNING),
    **dict.fromkeys(("config", "session", "run"), LIGHTNING),
}


def module_name(path: Path) -> str:
    parts = list(path.relative_to(PACKAGE.parent).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def unit(module: str) -> str:
    """The room of a module, or its own name if it is in none; empty for the package itself."""
    return module.partition(".")[2].partition(".")[0]


def room(module: str) -> str:
    """The innermost room of a module."""
    return module.rpartition(".")[0]


def run_time_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those under ``if TYPE_CHECKING``."""
    for child in ast.iter_child_nodes(node):
        if (
            isinstance(child, ast.If)
            and isinstance(child.test, ast.Name)
            and child.test.id == "TYPE_CHECKING"
        ):
            continue
        yield child
        yield from run_time_nodes(child)


def imported(source: str) -> Iterator[str]:
    """Full names of the modules that a source imports when it runs, also inside functions."""
    for node in run_time_nodes(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def own_imports(source: str) -> list[str]:
    names = [n for n in imported(source) if n.split(".")[0] == "lightning_audit"]
    return [n for n in names if unit(n) not in ("", "__version__")]


def units_used(source: str) -> set[str]:
    return {unit(n) for n in own_imports(source)}


def test_imports_are_read_also_inside_functions_and_not_under_type_checking() -> None:
    source = (
        "from typing import TYPE_CHECKING\n"
        "from lightning_audit import _validate, __version__\n"
        "if TYPE_CHECKING:\n    from lightning_audit.cli import main\n"
        "def f():\n    import lightning_audit.stats.power\n"
        "    from lightning_audit.report.console import as_text\n"
    )
    assert units_used(source) == {"_validate", "stats", "report"}


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_imports_point_down_only(path: Path) -> None:
    own = unit(module_name(path))
    used = units_used(path.read_text(encoding="utf-8"))
    if not own:  # the package itself imports lazily, by name
        assert used == set()
        return
    assert {name for name in used if LEVELS[name] > LEVELS[own]} == set()
    assert used <= ONLY.get(own, used)


def test_no_circle_joins_rooms() -> None:
    uses: dict[str, set[str]] = {}
    for path in FILES:
        if path.name == "__init__.py":
            continue
        home = room(module_name(path))
        for name in own_imports(path.read_text(encoding="utf-8")):
            place = PACKAGE.parent.joinpath(*name.split("."))
            other = room(name if place.with_suffix(".py").exists() else room(name))
            if other != home:
                uses.setdefault(home, set()).add(other)
    order = list(TopologicalSorter(uses).static_order())  # raises CycleError
    assert order.index("lightning_audit.results") < order.index("lightning_audit.callbacks")


@pytest.mark.parametrize("path", sorted((PACKAGE / "stats").rglob("*.py")), ids=module_name)
def test_statistics_use_numpy_and_scipy_only(path: Path) -> None:
    roots = {name.split(".")[0] for name in imported(path.read_text(encoding="utf-8"))}
    outside = roots - set(sys.stdlib_module_names) - {"__future__", "lightning_audit"}
    assert outside <= {"numpy", "scipy"}


def loaded_by(modules: list[str]) -> set[str]:
    """Names of the packages that are loaded with these modules, in a process of its own."""
    script = (
        "import sys, importlib\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize("kept_out", [HEAVY, LIGHTNING], ids=["torch", "Lightning"])
def test_rooms_load_nothing_heavier_than_they_may(kept_out: set[str]) -> None:
    names = sorted(module_name(path) for path in FILES)
    modules = [name for name in names if kept_out <= BARRED.get(unit(name), set())]
    assert len(modules) > 100
    loaded = loaded_by(["lightning_audit", *modules])
    assert "lightning_audit" in loaded
    assert loaded & kept_out == set()


def test_the_package_gives_its_names_without_loading_them_before() -> None:
    script = (
        "import sys, lightning_audit as a\n"
        "assert set(a.__all__) <= set(dir(a))\n"
        "a.AuditReport, a.Verdict, a.PrivacyViolation, a.InconclusiveAudit, a.PrivacyClaim\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_an_unknown_name_of_the_package_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"'lightning_audit' has no attribute 'Unheard'"):
        _ = lightning_audit.Unheard
