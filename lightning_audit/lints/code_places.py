"""Places of the user's code: file from the repository, lines, and the first lines of its source."""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lightning_audit.files.printable import nearby
from lightning_audit.results.report_details import CodePlace

#: Most lines of the source of a place, and most characters of a line.
MOST_LINES, _WIDEST = 12, 160
#: Packages whose code is not the user's, and folders of installed packages.
_LIBRARIES = ("torch", "opacus", "pytorch_lightning", "lightning", "lightning_fabric")
_INSTALLED = ("site-packages", "dist-packages", "lib-dynload")
#: Methods of a private optimizer, in the order of a step.
_METHODS = ("add_noise", "clip_and_accumulate", "scale_grad", "pre_step", "step")


def of_class(kind: type) -> Iterator[CodePlace]:
    """Yield the place of a class that the user defines."""
    if not _is_library(kind.__module__):
        yield from _place(kind.__qualname__, kind)


def of_methods(owner: Any, *names: str) -> Iterator[CodePlace]:
    """Yield methods of an object that the user's own classes define."""
    for name in names:
        kind = next((kind for kind in type(owner).__mro__ if name in vars(kind)), None)
        if kind is not None and not _is_library(kind.__module__):
            yield from _place(f"{kind.__qualname__}.{name}", vars(kind)[name])


def of_optimizer(optimizer: Any, *names: str) -> list[CodePlace]:
    """Return the methods that a user's optimizer defines of those named.

    Args:
        optimizer: the optimizer.
        names: of the methods that a finding is about; if the optimizer defines none of them, all
            that it defines of a step, and if it defines none of these, its class.
    """
    return (
        list(of_methods(optimizer, *names))
        or list(of_methods(optimizer, *_METHODS))
        or list(of_class(type(optimizer)))
    )


def _is_library(module: str) -> bool:
    top = module.partition(".")[0]
    return top in (*_LIBRARIES, __name__.partition(".")[0]) or top in sys.stdlib_module_names


def _place(name: str, code: Any) -> Iterator[CodePlace]:
    """Yield the place of code in an existing file; code typed into a notebook has none."""
    try:
        code = inspect.unwrap(code)
        file, (lines, first) = inspect.getsourcefile(code), inspect.getsourcelines(code)
    except (OSError, TypeError, ValueError, SyntaxError, IndexError):
        return
    if file and Path(file).is_file() and not {*Path(file).parts} & {*_INSTALLED}:
        line = max(first, 1)
        source = textwrap.dedent("".join(lines[:MOST_LINES])).splitlines()
        yield CodePlace(
            nearby(file),
            line,
            line + len(lines) - 1,
            name.replace("<locals>.", ""),
            "\n".join(text[:_WIDEST] for text in source),
        )
