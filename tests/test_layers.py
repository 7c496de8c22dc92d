"""Imports point down only, and what a layer must not load, it does not load."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import lightning_audit

ROOT = Path(lightning_audit.__file__).parent

#: Level of each top-level module or folder; an unknown one fails the test that reads it.
LEVELS = {
    "results": 0,
    "verdicts": 0,
    "snapshot": 0,
    "_validate": 0,
    "_text": 0,
    "_files": 0,
    "_replacing": 0,
    "_json": 0,
    "_typed": 0,
    "_npz": 0,
    "_options": 0,
    "_output": 0,
    "_score_csv": 0,
    "_score_npz": 1,
    "_optional": 0,
    "stats": 1,
    "claims": 1,
    "composition": 1,
    "report_directory": 1,
    "directory_lock": 1,
    "store": 1,
    "layout": 1,
    "scores": 1,
    "canaries": 2,
    "dpsgd": 2,
    "checks": 3,
    "blackbox": 3,
    "callbacks": 4,
    "report": 4,
    "bound_command": 5,
    "check_command": 5,
    "epsilon_star_command": 5,
    "mcmc_command": 5,
    "power_command": 5,
    "testing": 5,
    "selftest": 6,
    "cli": 6,
    "pytest_plugin": 6,
}
#: Units of one level that may not know each other, or may know certain others only.
FORBIDDEN = {("canaries", "dpsgd"), ("dpsgd", "canaries")}
ONLY = {
    "report": {"report", "results", "stats", "_text", "_replacing"},
    "stats": {"stats", "_validate"},
}

FILES = sorted(ROOT.rglob("*.py"))
HEAVY = {"torch", "pytorch_lightning", "lightning", "lightning_fabric", "opacus"}
LIGHTNING = {"pytorch_lightning", "lightning", "lightning_fabric"}
#: What a layer must not load where that is less than all that is heavy: torch comes in at L2.
BARRED = {"L2 canaries": HEAVY - {"torch"}, "L2 dpsgd": LIGHTNING}


def module_name(path: Path) -> str:
    parts = list(path.relative_to(ROOT.parent).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def unit(module: str) -> str:
    """The top-level module or folder that a module belongs to; empty for the package itself."""
    return module.partition(".")[2].partition(".")[0]


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


def units_used(source: str) -> set[str]:
    names = [n for n in imported(source) if n.split(".")[0] == "lightning_audit"]
    # `from lightning_audit import __version__` is the package itself.
    return {unit(n) for n in names} - {"", "__version__"}


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
    assert {name for name in used if (own, name) in FORBIDDEN} == set()
    assert used <= ONLY.get(own, used)


@pytest.mark.parametrize("path", sorted((ROOT / "stats").glob("*.py")), ids=module_name)
def test_statistics_use_numpy_and_scipy_only(path: Path) -> None:
    roots = {name.split(".")[0] for name in imported(path.read_text(encoding="utf-8"))}
    outside = roots - set(sys.stdlib_module_names) - {"__future__", "lightning_audit"}
    assert outside <= {"numpy", "scipy"}


def modules_of(*units: str) -> list[str]:
    names = [module_name(path) for path in FILES]
    return [name for name in names if unit(name) in units]


LAYERS = {
    "the package": ["lightning_audit"],
    "L0": modules_of("results", "_typed", "_validate", "_optional", "_files"),
    "L1": modules_of(
        "stats", "claims", "composition", "store", "layout", "scores", "directory_lock"
    ),
    "L2 canaries": modules_of("canaries"),
    "L3": modules_of("checks", "blackbox"),
    "L4 report": modules_of("report"),
    "L5": modules_of("cli"),
    "L2 dpsgd": modules_of("dpsgd"),
}


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_loads_nothing_heavy(layer: str) -> None:
    modules = LAYERS[layer]
    assert modules
    script = (
        "import sys, importlib\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert "lightning_audit" in loaded
    assert loaded & BARRED.get(layer, HEAVY) == set()


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
