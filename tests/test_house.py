"""The rules of the house: imports point down, no circle, chapters, and a size that is known."""

import ast
import importlib.util
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import house_table
import pytest
from house_table import BARRED, HEAVY, LEVELS, LIGHTNING, PAGE
from places import FILES, PACKAGE, REPOSITORY

import lightning_audit

MOST_LINES = 1000
#: What some rooms may import of this package, where that is less than their level allows.
ONLY = {
    "files": {"files", "_validate"},
    "results": {"results", "files", "_validate", "_version"},
    "attacks": {"attacks", "stats", "_validate"},
    "report": {"report", "results", "record", "checks", "stats", "files", "_version"},
    "canaries": {"canaries", "layout", "_validate"},
    "hooks": {"hooks", "layout", "record", "_validate"},
}
#: A change that lets a number grow by more than this part of it commits benchmarks/size.json.
GROWTH = 0.01


def module_name(path: Path) -> str:
    parts = list(path.relative_to(PACKAGE.parent).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room(module: str) -> str:
    """The room of a module; empty for the package itself."""
    return module.partition(".")[2].partition(".")[0]


def run_time_nodes(node: ast.AST, functions: bool) -> Iterator[ast.AST]:
    """All nodes but those under ``if TYPE_CHECKING``, and without those in functions."""
    for child in ast.iter_child_nodes(node):
        checked = (
            isinstance(child, ast.If)
            and isinstance(child.test, ast.Name)
            and child.test.id == "TYPE_CHECKING"
        )
        inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) and not functions
        if not checked and not inside:
            yield child
            yield from run_time_nodes(child, functions)


def imported(source: str, functions: bool = True, types: bool = False) -> Iterator[str]:
    """Full names of what a source imports when it runs; with ``types`` also for types alone."""
    tree = ast.parse(source)
    for node in ast.walk(tree) if types else run_time_nodes(tree, functions):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def rooms_used(source: str) -> set[str]:
    own = {name for name in imported(source) if name.split(".")[0] == PACKAGE.name}
    return {room(name) for name in own} - {""}


def files_used(path: Path) -> set[Path]:
    """The files that a file imports: at its head, inside functions, or for types alone."""
    found = set()
    for name in imported(path.read_text(encoding="utf-8"), types=True):
        place = PACKAGE.parent.joinpath(*name.split("."))
        tried = (place.with_suffix(".py"), place.parent.with_suffix(".py"))
        found |= {one for one in tried if one in FILES}
    return found - {path}


def circle(uses: dict[Path, set[Path]]) -> list[str]:
    """The files of a circle, the first one again at its end; empty if there is none."""
    try:
        TopologicalSorter(uses).prepare()
    except CycleError as error:
        return [path.name for path in error.args[1]]
    return []


def run(script: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_imports_are_read_also_inside_functions_and_not_under_type_checking():
    source = (
        "from typing import TYPE_CHECKING\n"
        "from lightning_audit import _validate\n"
        "if TYPE_CHECKING:\n    from lightning_audit.cli import main\n"
        "def f():\n    import lightning_audit.stats.power\n"
        "    from lightning_audit.report.text import as_text\n"
    )
    assert rooms_used(source) == {"_validate", "stats", "report"}
    assert "lightning_audit.stats.power" not in imported(source, functions=False)


def test_imports_point_down_only():
    wrong = [
        f"{own}: {name}"
        for path in FILES
        if (own := room(module_name(path)))
        for name in rooms_used(path.read_text(encoding="utf-8"))
        if LEVELS[name] > LEVELS[own] or name not in ONLY.get(own, {name})
    ]
    assert wrong == []


def test_no_circle_joins_files():
    one, other = FILES[:2]
    assert circle({one: {other}, other: {one}}) in (
        [one.name, other.name, one.name],
        [other.name, one.name, other.name],
    )
    uses = {path: files_used(path) for path in FILES}
    assert circle(uses) == []
    record = {used for path in FILES if path.parent.name == "record" for used in uses[path]}
    assert record
    assert not [used for used in record if used.parent.name == "checks"]


def test_statistics_use_numpy_and_scipy_only():
    allowed = {*sys.stdlib_module_names, "__future__", "lightning_audit", "numpy", "scipy"}
    outside = {
        f"{path.name}: {name}"
        for path in (PACKAGE / "stats").rglob("*.py")
        for name in imported(path.read_text(encoding="utf-8"))
        if name.split(".")[0] not in allowed
    }
    assert outside == set()


@pytest.mark.parametrize("kept_out", [HEAVY, LIGHTNING], ids=["torch", "Lightning"])
def test_rooms_load_nothing_heavier_than_they_may(kept_out):
    names = sorted(module_name(path) for path in FILES)
    modules = [name for name in names if kept_out <= BARRED.get(room(name), frozenset())]
    if importlib.util.find_spec("transformers") is None:  # it has an environment of its own
        modules = [name for name in modules if room(name) != "transformers"]
    assert len(modules) > 70
    script = f"import sys, importlib\nfor name in {modules!r}: importlib.import_module(name)\n"
    loaded = run(script + "print(*{name.partition('.')[0] for name in sys.modules})").split()
    assert "lightning_audit" in loaded
    assert kept_out.intersection(loaded) == set()


def test_the_package_gives_its_names_without_loading_them_before():
    run(
        "import sys, lightning_audit as a\n"
        "assert set(a.__all__) <= set(dir(a))\n"
        "a.AuditReport, a.Verdict, a.PrivacyViolation, a.InconclusiveAudit, a.PrivacyClaim\n"
        "assert 'torch' not in sys.modules\n"
    )
    with pytest.raises(AttributeError, match=r"'lightning_audit' has no attribute 'Unheard'"):
        _ = lightning_audit.Unheard


def test_the_command_that_checks_reports_starts_without_special_functions():
    run("import sys, lightning_audit.cli.check\nassert 'scipy.special' not in sys.modules\n")


def test_every_module_says_what_it_is_for():
    silent = [p for p in FILES if not ast.get_docstring(ast.parse(p.read_text(encoding="utf-8")))]
    assert silent == []


def test_no_file_is_longer_than_a_chapter():
    lines = {module_name(path): len(path.read_text("utf-8").splitlines()) for path in FILES}
    assert {name: length for name, length in lines.items() if length > MOST_LINES} == {}


def test_contributing_has_the_table_of_the_house():
    assert set(LEVELS) == {room(module_name(path)) for path in FILES} - {""}
    text = PAGE.read_text(encoding="utf-8")
    assert house_table.shown(text) == house_table.table(), "run `python docs/build/house_table.py`"


@pytest.fixture(scope="module")
def code_size():
    spec = importlib.util.spec_from_file_location(
        "code_size", REPOSITORY / "benchmarks" / "code_size.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # for its dataclasses
    spec.loader.exec_module(module)
    return module


def a_house(code_size, **sources: str):
    """A package of a few modules; ``__`` in a name stands for the dot."""
    names = {name.replace("__", "."): text for name, text in sources.items()}
    house = {
        f"lightning_audit.{name}": code_size.Module(
            f"lightning_audit.{name}", name.replace(".", "/"), text
        )
        for name, text in names.items()
    }
    return house | {
        "lightning_audit.checks.check": code_size.Module(
            "lightning_audit.checks.check", "checks/check", "class Check: pass\n"
        )
    }


def test_every_line_is_of_one_kind(code_size):
    source = (
        '"""Docstring\nof two lines."""\n\nimport os  # a comment\nfrom os import (\n    path,\n)\n'
        'def f(x: int) -> str:\n    """One line."""\n    # A comment.\n    text = """three\n'
        'lines of\ntext"""\n    return text * x\nX = 1\n"""Of X."""\n'
    )
    counted = Counter(code_size.kinds_of(source, ast.walk(ast.parse(source))).values())
    kinds = {"docstring": 4, "blank": 1, "import": 4, "comment": 1, "code": 6}
    assert counted == kinds


def test_what_a_pass_rests_on_is_followed_through_imports_and_checks(code_size):
    house = a_house(
        code_size,
        door="from lightning_audit.room import used\nfrom lightning_audit.checks.check import Check"
        "\ndef attach():\n    return used(), Check\ndef other():\n    pass\n",
        room="TABLE = 1\ndef used():\n    # Comment.\n    return TABLE\ndef unused():\n    pass\n",
        checks__noise="def tested():\n    pass\n",
    )
    reach = code_size.Reach(house)
    found = {name for _, name in reach.from_roots([("lightning_audit.door", "attach")]) if name}
    assert found == {"attach", "used", "TABLE", "Check", "tested"}
    assert reach.lines["lightning_audit.room", "used"] == 2


def test_code_counts_for_the_feature_of_its_section(code_size):
    text = '"""What it does."""\n# --- `lightning-audit card`, without torch.\nX = 1\nY = 2\n'
    sizes = code_size.by_feature(a_house(code_size, cli__pages=text, stats__one=text))
    assert sizes["report: privacy card"] == sizes["statistics of the checks"] == 2
    assert sum(sizes.values()) == 5


def test_a_call_that_takes_a_sentence_apart_is_seen(code_size):
    text = 'def f(check, path):\n    path.startswith()\n    return check.message.partition(":")\n'
    found = code_size.taken_apart(a_house(code_size, report__text=text, files=text))
    assert found == ["report/text:3 check.message.partition(':')"]


def test_the_house_has_the_size_that_was_committed(code_size):
    """Who lets it grow commits the new size: `python benchmarks/code_size.py --write`."""
    committed, now = json.loads(code_size.SIZE.read_text(encoding="utf-8")), code_size.measured()
    committed |= committed.pop("features")
    now |= now.pop("features")
    assert committed.keys() == now.keys()
    grown = {k: (committed[k], n) for k, n in now.items() if n > (1 + GROWTH) * committed[k]}
    assert grown == {}, "commit benchmarks/size.json of `python benchmarks/code_size.py --write`"


def test_every_file_of_tests_that_a_text_names_exists():
    texts = [*FILES, *(REPOSITORY / "docs").rglob("*.md"), *(REPOSITORY / "docs").rglob("*.py")]
    named = {
        name
        for path in (*texts, PAGE, REPOSITORY / "README.md")
        for name in re.findall(r"tests/[\w/]+\.py", path.read_text(encoding="utf-8"))
    }
    assert named
    assert {name for name in named if not (REPOSITORY / name).exists()} == set()
