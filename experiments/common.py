"""Shared by the experiments: arguments, data of scikit-learn, printed tables, and figures."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import torch
from matplotlib.figure import Figure
from sklearn.datasets import load_breast_cancer, load_digits
from torch import Tensor

from lightning_audit.report.progress import progress

T = TypeVar("T")
FIGURES = Path(__file__).parents[1] / "docs" / "experiments"


def arguments(description: str | None, argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse ``--small`` (default) or ``--full``, ``--seed``, and ``--out`` for another folder."""
    parser = argparse.ArgumentParser(description=description)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--small", dest="full", action="store_false", help="minutes (default)")
    size.add_argument("--full", dest="full", action="store_true", help="more models")
    parser.add_argument("--seed", type=int, default=0, help="of all randomness")
    parser.add_argument("--out", type=Path, default=FIGURES, help="folder of the figure")
    parser.add_argument("--no-progress", action="store_true", help="show no bar")
    parser.set_defaults(full=False)
    torch.set_num_threads(1)
    options = parser.parse_args(argv)
    _bar["shown"] = not options.no_progress
    return options


#: Whether `each` shows a bar.
_bar = {"shown": False}


def each(items: Iterable[T]) -> Iterator[T]:
    """Yield the parts of an experiment, with a bar and the time left on a terminal."""
    parts = list(items)
    with progress("parts", len(parts), shown=_bar["shown"]) as advance:
        for part in parts:
            yield part
            advance()


def digits() -> tuple[Tensor, Tensor]:
    """Return 1,797 images of 8 x 8 pixels in [0, 1], ``[n, 64]``, and their digits, ``[n]``."""
    data = load_digits()
    return torch.tensor(data.data / 16, dtype=torch.float32), torch.tensor(data.target)


def cells() -> tuple[Tensor, Tensor]:
    """Return 569 records of 30 standardized features, ``[n, 30]``, and classes 0, 1, ``[n]``."""
    data = load_breast_cancer()
    features = torch.tensor(data.data, dtype=torch.float32)
    return (features - features.mean(0)) / features.std(0), torch.tensor(data.target)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows under the names of their columns: the first one to the left, numbers to the right.

    Floats are printed with three significant digits.
    """
    texts = [list(columns), *([shown(value) for value in row] for row in rows)]
    widths = [max(len(row[i]) for row in texts) for i in range(len(columns))]
    for row in texts:
        first, *others = (text.rjust(width) for text, width in zip(row, widths, strict=True))
        print("  ".join([first.strip().ljust(widths[0]), *others]).rstrip(), flush=True)


def shown(value: object) -> str:
    """Return a number with three significant digits, an interval in parentheses, or the text."""
    if isinstance(value, tuple):
        return f"({', '.join(shown(part) for part in value)})"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def save(figure: Figure, folder: Path, name: str) -> None:
    """Write a figure as PNG, without date and version, so that the file is reproducible."""
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / f"{name}.png", dpi=100, metadata={"Software": None})
