"""Code that README and the docs show, and what it leaves when it runs."""

import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytorch_lightning as pl
from places import EXAMPLES, REPOSITORY

README = REPOSITORY / "README.md"


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def blocks(page: Path, language: str) -> list[str]:
    return blocks_in(text_of(page), language)


def sections(page: Path) -> dict[str, str]:
    """The parts of a page by their headings."""
    _, *parts = re.split(r"^## (.*)\n", text_of(page), flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def blocks_in(text: str, language: str) -> list[str]:
    """The code of a page; a command that goes on in a further line is one line."""
    shown = re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)
    return [re.sub(r"\\\n +", "", text) for text in shown] if language == "console" else shown


def run(code: str, names: dict[str, Any] | None = None) -> dict[str, Any]:
    """What a block leaves, with these names given."""
    names = {} if names is None else names
    exec(compile(code, "page.md", "exec"), names)
    return names


def trained(kind: type, names: dict[str, Any], steps: int):
    """The audit of a block, after a training."""
    audit = names["audit"]
    pl.Trainer(max_steps=steps, callbacks=[audit], accelerator="cpu", logger=False).fit(kind())
    return audit


def example(name: str) -> Iterator[ModuleType]:
    """Import a script of examples/ while a test runs."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[name]


def formed(text: str) -> list[str]:
    """Words without table rules, numbers by their form alone: they differ between processors."""
    words = re.sub(r"[│┃━┏┓┡┩└┘┴┬┼─╇┳╋┻]", " ", text).split()
    return [re.sub(r"\d+(\.\d+)?(e-?\d+)?", "#", word) for word in words]
