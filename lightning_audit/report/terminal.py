"""Prints text and tables: with signs and color on a terminal, in plain ASCII everywhere else."""

from __future__ import annotations

import io
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from lightning_audit.files.printable import visible

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

#: Style of a cell by its text, in every table.
STYLES: Mapping[str, str] = {
    "PASS": "bold green",
    "VIOLATION": "bold red",
    "INCONCLUSIVE": "bold yellow",
    "VIOLATED": "bold red",
    "undecided": "bold yellow",
    "allowed": "yellow",
    "warning": "yellow",
    "ok": "green",
    "not run": "dim",
    "found": "green",
    "warned": "green",
    "not accused": "green",
    "not found": "bold red",
    "accused": "bold red",
}
#: A file has no width: a table folded to columns cannot be searched.
_OF_A_FILE = 100_000
_RAISED = str.maketrans("0123456789-.", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻·")
_POWER = re.compile(r"10\^(-?\d+(?:\.\d+)?)")


def screen() -> Console:
    """Return standard output; nothing that is printed to it is markup or an emoji code."""
    from rich.console import Console  # only now: a gate of one report needs no table

    return Console(markup=False, emoji=False, highlight=False, force_jupyter=False)


def has_signs(console: Console) -> bool:
    """Return whether it is a terminal that shows signs beyond ASCII."""
    return console.is_terminal and console.encoding.startswith("utf")


def as_ascii(text: str) -> str:
    r"""Return text with every other character escaped.

    Example:
        >>> as_ascii("café")
        'caf\\xe9'
    """
    return text.encode("ascii", "backslashreplace").decode()


def with_signs(text: str) -> str:
    """Return text with raised powers of ten and signs.

    Example:
        >>> with_signs("e = 10^4.6, proved >= 2")
        'e = 10⁴·⁶, proved ≥ 2'
    """
    raised = _POWER.sub(lambda power: f"10{power[1].translate(_RAISED)}", text)
    return raised.replace(">=", "≥").replace("<=", "≤")


def print_lines(*renderables: RenderableType) -> None:
    """Print text or tables, each from a new line.

    Without a terminal the text is ASCII, has no trailing blanks, and is folded nowhere.
    """
    from rich.table import Table

    console = screen()
    if not has_signs(console):
        print(as_ascii(as_text(*renderables)))
        return
    for one in renderables:
        # A path broken over several lines cannot be copied.
        console.print(one, soft_wrap=not isinstance(one, Table))


def as_text(*renderables: RenderableType) -> str:
    """Return text or tables as lines without color, trailing blanks and a final newline."""
    from rich.console import Console

    flat = Console(
        file=io.StringIO(),
        width=_OF_A_FILE,
        color_system=None,
        force_terminal=False,
        force_jupyter=False,
        markup=False,
        emoji=False,
        highlight=False,
    )
    with flat.capture() as captured:
        for one in renderables:
            flat.print(one)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    title: str = "",
    widths: Sequence[int] = (),
    right: Container[str] = (),
) -> Table:
    """Return a table for `print_lines`: ruled on a terminal, aligned columns elsewhere.

    Args:
        columns: their headings; all empty for a table without a head.
        rows: a text for each column, shown as it is; `STYLES` colors some.
        title: above the table; empty for none.
        widths: least width of each column; empty for none.
        right: headings of the columns that are aligned to the right.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    ruled = any(columns) and has_signs(screen())
    made = Table(
        title=title or None,
        title_justify="left",
        box=box.HEAVY_HEAD if ruled else None,
        pad_edge=ruled,
        show_header=any(columns),
    )
    for number, column in enumerate(columns):
        made.add_column(
            column,
            overflow="fold",
            min_width=widths[number] if widths else None,
            justify="right" if column and column in right else "left",
        )
    for row in rows:
        made.add_row(*(Text(visible(cell), style=STYLES.get(cell, "")) for cell in row))
    return made
