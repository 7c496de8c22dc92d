"""A bar with the time left, on a terminal."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress(what: str, total: int, *, shown: bool = True) -> Iterator[Callable[[], None]]:
    """Show how much of a work is done, and the time left, on the standard error.

    Nothing is shown in CI (the variable CI is set), or if that is not a terminal; nothing stays.

    Args:
        what: name of the parts, such as "steps".
        total: their number, or the largest it can be.
        shown: False shows nothing.

    Yields:
        A function to call after each part.
    """
    from rich import progress as rich
    from rich.console import Console

    console = Console(stderr=True)
    columns = rich.TextColumn("{task.description}"), rich.BarColumn(), rich.MofNCompleteColumn()
    times = rich.TimeElapsedColumn(), rich.TextColumn("left"), rich.TimeRemainingColumn()
    off = not shown or not console.is_terminal or bool(os.environ.get("CI"))
    with rich.Progress(*columns, *times, console=console, transient=True, disable=off) as bar:
        task = bar.add_task(what, total=total)
        yield lambda: bar.advance(task)
