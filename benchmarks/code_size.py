"""Prints the size of the package and of its tests: `python benchmarks/code_size.py [--write]`.

A line is code, docstring, import, comment or blank; a string that is a statement counts as a
docstring. Imports inside functions and for types count, too. Code is counted by feature as well;
so is the code that a PASS rests on, and the calls that find out what happened by taking a sentence
apart. ``--write`` writes size.json, with which tests/test_house.py compares.
"""

from __future__ import annotations

import ast
import io
import json
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[1]
PACKAGE, TESTS = REPOSITORY / "lightning_audit", REPOSITORY / "tests"
SIZE = REPOSITORY / "benchmarks" / "size.json"
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_ASSIGNMENTS = (ast.Assign, ast.AnnAssign, ast.AugAssign)


@dataclass(frozen=True)
class Module:
    """A module of the package.

    Args:
        name: its full name; that of the folder for an ``__init__``.
        file: its path in the package, without the suffix.
        source: its text.
        folder: whether it is an ``__init__``.
    """

    name: str
    file: str
    source: str
    folder: bool = False

    @cached_property
    def tree(self) -> ast.Module:
        """The syntax tree."""
        return ast.parse(self.source)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All nodes of the tree."""
        return list(ast.walk(self.tree))

    @cached_property
    def kinds(self) -> dict[int, str]:
        """The kind of each line, by its number from 1."""
        return kinds_of(self.source, self.nodes)


def kinds_of(source: str, nodes: Iterable[ast.AST]) -> dict[int, str]:
    """Return the kind of each line of a module, by its number from 1.

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
    return kinds


def modules() -> dict[str, Module]:
    """Return the modules of the package, by name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = list(path.relative_to(REPOSITORY).with_suffix("").parts)
        name = ".".join(parts).removesuffix(".__init__")
        file = "/".join(parts[1:])
        found[name] = Module(name, file, path.read_text("utf-8"), parts[-1] == "__init__")
    return found


# --- Who imports whom, and which definitions a PASS rests on.


def importers(house: Mapping[str, Module]) -> dict[str, set[str]]:
    """Return the modules that import each module, from anywhere in their code."""
    found: dict[str, set[str]] = {name: set() for name in house}
    for own, module in house.items():
        for name in _imported(module.nodes):
            home = name if name in house else name.rpartition(".")[0]
            if home in house:
                found[home].add(own)
    return found


def _imported(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


#: A definition at the head of a module; the name is empty for all of a module.
Definition = tuple[str, str]
#: The names of `lightning_audit` by which a user audits one training.
DOORS = (
    "PrivacyAudit",
    "Examination",
    "attach",
    "Rounds",
    "per_sample",
    "released",
    "rows",
    "PrivacyClaim",
    "Allow",
    "Resolution",
    "AuditReport",
)
#: Modules by which a PASS is read: the gate, its formats, the pages, the pytest plugin.
READERS = ("cli.check", "cli.formats", "cli.pages", "card", "pytest_plugin")


#: Statements at the head of a module that run nothing, or give their own names what they use.
_PLACED = (*_DEFINITIONS, ast.ClassDef, *_ASSIGNMENTS, ast.Import, ast.ImportFrom, ast.If)


@dataclass
class Reach:
    """Which definitions of the package use which others, by names, imports and module paths."""

    house: Mapping[str, Module]
    lines: dict[Definition, int] = field(default_factory=dict)
    _heads: dict[str, dict[str, list[ast.AST]]] = field(default_factory=dict)
    _names: dict[str, dict[str, Definition]] = field(default_factory=dict)
    _uses: dict[Definition, set[Definition]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Find the definitions and the imports of all modules, and then who uses whom."""
        for name, module in self.house.items():
            self._heads[name] = dict(self._definitions(module))
            self._names[name] = dict(self._imports(module))
        for name, module in self.house.items():
            loose = [node for node in module.tree.body if not isinstance(node, _PLACED)]
            at_import = set().union(*(self._used(name, node) for node in loose))
            for own, nodes in self._heads[name].items():
                used = at_import.union(*(self._used(name, node) for node in nodes))
                self._uses[name, own] = used
                self.lines[name, own] = sum(self._size(module, node) for node in nodes)
            self._uses[name, ""] = {(name, own) for own in self._heads[name]}
        checks = [name for name in self.house if name.startswith("lightning_audit.checks.")]
        registry = "lightning_audit.checks.check"  # names the modules that declare checks
        for own in self._heads[registry]:
            self._uses[registry, own] |= {(name, "") for name in checks}

    def from_roots(self, roots: Iterable[Definition]) -> set[Definition]:
        """Return the definitions that the roots need, at any depth, and the roots."""
        todo, seen = list(roots), set()
        while todo:
            if (one := todo.pop()) not in seen:
                seen.add(one)
                todo += self._uses.get(one, ())
        return seen

    @staticmethod
    def _definitions(module: Module) -> Iterator[tuple[str, list[ast.AST]]]:
        found: dict[str, list[ast.AST]] = {}
        for node in module.tree.body:
            if isinstance(node, (*_DEFINITIONS, ast.ClassDef)):
                found[node.name] = [node]
            elif isinstance(node, _ASSIGNMENTS):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for inner in (n for target in targets for n in ast.walk(target)):
                    if isinstance(inner, ast.Name):
                        found.setdefault(inner.id, []).append(node)
        yield from found.items()

    def _imports(self, module: Module) -> Iterator[tuple[str, Definition]]:
        for node in module.nodes:
            for alias in node.names if isinstance(node, ast.Import | ast.ImportFrom) else ():
                base = (node.module or "") if isinstance(node, ast.ImportFrom) else ""
                inner = f"{base}.{alias.name}" if base else alias.name
                if inner in self.house:
                    yield alias.asname or alias.name, (inner, "")
                elif base in self.house:
                    yield alias.asname or alias.name, (base, alias.name)

    @staticmethod
    def _size(module: Module, node: Any) -> int:
        first = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", []))])
        return sum(module.kinds[n] in ("code", "import") for n in range(first, node.end_lineno + 1))

    def _home(self, module: str, name: str) -> Definition | None:
        for _ in range(9):  # names that are handed on
            if name in self._heads.get(module, {}):
                return module, name
            if name not in self._names.get(module, {}):
                return None
            module, name = self._names[module][name]
            if not name:
                return module, ""
        return None

    def _used(self, module: str, node: ast.AST) -> set[Definition]:
        found: list[Definition | None] = []
        for inner in ast.walk(node):
            match inner:
                case ast.Name(id=name):
                    found.append(self._home(module, name))
                case ast.Attribute(value=ast.Name(id=name), attr=attribute):
                    home = self._home(module, name)
                    found.append(self._home(home[0], attribute) if home and not home[1] else None)
                case ast.Constant(value=str(text)):
                    paths = re.findall(r"lightning_audit(?:\.\w+)+", text)
                    found += [(path, "") for path in paths if path in self.house]
                    found.append(self._home(module, text) if text.isidentifier() else None)
        return {one for one in found if one is not None}


def rests_on(house: Mapping[str, Module]) -> int:
    """Return the lines of code and imports in the definitions that a PASS of a training needs."""
    reach = Reach(house)
    homes = next(
        ast.literal_eval(node.value)
        for node in house["lightning_audit"].tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_HOMES"
    )
    roots = [(homes[name], name) for name in DOORS]
    roots += [(f"lightning_audit.{name}", "") for name in READERS]
    return sum(reach.lines.get(one, 0) for one in reach.from_roots(roots))


# --- Code by feature, and sentences that are taken apart.

#: Features, and patterns of "file section" that belong to them; the first that fits counts.
FEATURES = {
    "selftest and known faults": r"^testing/(?!assertions)|selftest`",
    "assertions for users' tests, pytest plugin": r"^testing/assertions|^pytest_plugin",
    "plan and preview": r"^run/preview|^callbacks/preview|lightning-audit plan`|Where `plan`",
    "door: Lightning": r"^callbacks/(privacy_audit|trainer|_names|outcome|examination|__init__)",
    "door: plain loops, rounds": r"^loops/",
    "Epsilon*": r"epsilon_star|epsilon-star",
    "mechanisms and privatize functions": r"^blackbox/|output_estimates|output_tests",
    "MCMC-DP-Est": r"attack_strength|correlated_attacks|`lightning-audit mcmc`",
    "Bayesian estimation": r"^stats/posteriors",
    "attacks, shadow models": r"^attacks|^many/(challenges|shadows)|^stats/membership",
    "many: identity and status": r"^many/identity|What a store holds|`lightning-audit status`",
    "many trainings": r"^many/|audit-training`",
    "bounds by name, scores": r"^record/scores|named_bounds|one_run|^stats/(counts|thresholds)|"
    r"^stats/(binomial|power|gaussian)|`lightning-audit (bound|power)`|^cli/estimators",
    "statistics of the checks": r"^stats/",
    "examination by replay": r"^replay/|^checks/(replay|replayed_noise|replay_findings)|"
    "^run/examinations",
    "looks at every step": r"^session/(between|own_clipping)|^checks/between",
    "fence around the steps": r"^run/fence|checks of the fence",
    "sampling, loaders, lints": r"^checks/(sampling|opacus)|ledger|^hooks/sampler_tap|"
    r"^lints/settings|What a run shows without",
    "the user's code in findings": r"^lints/own_code",
    "checks of the step": r"^checks/",
    "verdict": r"^verdict/(?!gate)",
    "gate": r"^verdict/gate|^cli/(check|formats|main)",
    "epsilons, budget, earlier fits": r"^accounting/|^run/(epsilons|claim_bu|measured|earlier_f)",
    "report: console": r"^report/(text|progress)",
    "report: HTML page": r"^report/page|^cli/pages.*report`",
    "report: figure and loggers": r"^report/(figure|loggers)",
    "report: privacy card": r"^card|`lightning-audit card`",
    "report: data and files": r"^results/|^run/report_files|^record/report_directory|^files",
    "step: injection and reading": r"^(session|hooks|dpsgd|canaries)/|^layout|^record/store",
    "run of one training": r"^run/|^config",
    "rest": r"",
}


def by_feature(house: Mapping[str, Module]) -> dict[str, int]:
    """Return the code lines of each feature: of sections, which begin with a row ``# --- ``."""
    sections: Counter[str] = Counter()
    for module in house.values():
        section = "(head)"
        for number, row in enumerate(module.source.splitlines(), 1):
            section = row.removeprefix("# --- ") if row.startswith("# --- ") else section
            sections[f"{module.file} {section}"] += module.kinds[number] == "code"
    sums = dict.fromkeys(FEATURES, 0)
    for place, lines in sections.items():
        sums[next(name for name, of in FEATURES.items() if re.search(of, place))] += lines
    return sums


_APART = {"partition", "rpartition", "startswith", "endswith", "removeprefix", "removesuffix"}
_SENTENCE = re.compile(
    r"message|sentence|summary|advice|reason|fault\b|error|told|said|note\b|text\b|label|finding|"
    r"answer|look_at|shown|words|\bone\b",
    re.IGNORECASE,
)
#: What is no sentence of ours: texts of other libraries, formats of our own, a file of Linux.
EXCEPTIONS = {
    "files": "msgspec's errors",
    "many/vectorised": "torch's errors",
    "session/planner": "the wire format between processes",
    "checks/disclosure": "a pattern in numbers",
    "record/store": "the labels of canaries, as a record's header has them",
    "replay/other_threads": "a file of /proc",
    "report/figure": "matplotlib's rule for labels",
}


def taken_apart(house: Mapping[str, Module]) -> list[str]:
    """Return the calls that may find out what happened by taking a sentence apart."""
    return [
        f"{module.file}:{node.lineno} {ast.unparse(node)}"
        for module in house.values()
        for node in module.nodes
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in _APART
        and _SENTENCE.search(ast.unparse(node.func.value))
        and module.file not in EXCEPTIONS
    ]


# --- The sizes of the house.


def measured() -> dict[str, Any]:
    """Return the sizes of the package and of its tests."""
    house, tests = modules(), sorted(TESTS.rglob("*.py"))
    lines = sum((Counter(module.kinds.values()) for module in house.values()), Counter[str]())
    used = importers(house)
    nodes = [node for module in house.values() for node in module.nodes]
    return {
        "code": lines["code"],
        "code_a_pass_rests_on": rests_on(house),
        "docstrings": lines["docstring"],
        "imports": lines["import"],
        "comments": lines["comment"],
        "lines": lines.total(),
        "longest_file": max(len(module.kinds) for module in house.values()),
        "files": len(house),
        "folders": len({module.file.rpartition("/")[0] for module in house.values()}),
        "single_importer": sum(
            len(used[name]) == 1 for name, module in house.items() if not module.folder
        ),
        "functions": sum(isinstance(node, _DEFINITIONS) for node in nodes),
        "sentences_taken_apart": len(taken_apart(house)),
        "test_files": len(tests),
        "test_lines": sum(len(path.read_text(encoding="utf-8").splitlines()) for path in tests),
        "features": by_feature(house),
    }


if __name__ == "__main__":
    sizes = measured()
    features = sizes.pop("features")
    for name, number in {**sizes, **features}.items():
        print(f"{name:<44}{number:>8,}")
    print(*taken_apart(modules()), sep="\n")
    if "--write" in sys.argv[1:]:
        sizes["features"] = features
        SIZE.write_text(json.dumps(sizes, indent=2) + "\n", encoding="utf-8")
