"""Places of the user's code have file, lines, name, and the first lines of their source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from opacus.optimizers import DPOptimizer
from places import REPOSITORY

from lightning_audit.lints.own_code import MOST_LINES, of_class, of_methods, of_optimizer

HERE = str(Path(__file__).relative_to(REPOSITORY))


class Overrides(DPOptimizer):
    """Of the user."""

    def add_noise(self) -> None:
        super().add_noise()

    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


class Plain(DPOptimizer):
    """Of the user, with nothing of its own."""


def made(kind: type[DPOptimizer]) -> DPOptimizer:
    return kind.__new__(kind)


def line_of(text: str) -> int:
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.strip().startswith(text))


def test_a_method_has_its_lines_and_its_source_without_indentation() -> None:
    (place,) = of_methods(made(Overrides), "add_noise", "clip_and_accumulate")
    first = line_of("def add_noise")
    assert (place.file, place.line, place.end_line) == (HERE, first, first + 1)
    assert place.name == "Overrides.add_noise"
    assert place.source == "def add_noise(self) -> None:\n    super().add_noise()"


def test_a_finding_names_its_methods_else_any_of_the_step_else_the_class() -> None:
    def names(kind: type[DPOptimizer], *methods: str) -> list[str]:
        return [place.name for place in of_optimizer(made(kind), *methods)]

    assert names(Overrides, "add_noise") == ["Overrides.add_noise"]
    assert names(Overrides, "scale_grad") == ["Overrides.add_noise", "Overrides.step"]
    assert names(Plain, "add_noise") == ["Plain"]
    assert names(DPOptimizer, "add_noise") == []


def test_long_code_and_long_lines_are_cut(tmp_path: Path, monkeypatch: Any) -> None:
    file = tmp_path / "users_own.py"
    body = "".join(f"    x{n} = '{'a' * 300}'\n" for n in range(30))
    file.write_text(f"class Long:\n{body}")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    import users_own  # type: ignore[import-not-found]

    (place,) = of_class(users_own.Long)
    assert (place.file, place.line, place.end_line) == ("users_own.py", 1, 31)
    lines = place.source.splitlines()
    assert len(lines) == MOST_LINES
    assert max(map(len, lines)) == 160
