"""A check's name is written once, in the module that declares it."""

import ast
from collections.abc import Iterator
from pathlib import Path

from places import FILES, PACKAGE

from lightning_audit.checks.check import REGISTRY

#: Names that are also a group, a kind of claim, an argument or a word of the statistics.
WORDS = {"noise", "epsilon", "accounting", "expected_batch_size", "loss_reduction", "sensitivity"}
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def strings(source: str) -> Iterator[str]:
    """String constants, but for docstrings and the names of faults, some of which are the same."""
    tree = ast.parse(source)
    left_out = set()
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node) is not None:
            left_out.add(id(node.body[0].value))  # type: ignore[attr-defined]
        if isinstance(node, ast.keyword) and node.arg == "named":
            left_out.add(id(node.value))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Fault":
            left_out.update(map(id, node.args[:1]))
    for node in ast.walk(tree):
        text = getattr(node, "value", None) if isinstance(node, ast.Constant) else None
        if isinstance(text, str) and id(node) not in left_out:
            yield text


def test_strings_are_found_but_for_docstrings_and_names_of_faults():
    source = '"""a"""\nx = ["b", f(named="c"), Fault("d", "e")]\n'
    assert sorted(strings(source)) == ["b", "e"]


def test_a_name_of_a_check_is_a_string_in_one_module_alone():
    places: dict[str, set[Path]] = {}
    for path in FILES:
        for text in strings(path.read_text(encoding="utf-8")):
            if text in REGISTRY and text not in WORDS:
                places.setdefault(text, set()).add(path.relative_to(PACKAGE))
    assert set(places) == set(REGISTRY) - WORDS
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
