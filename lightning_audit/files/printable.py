"""Text from a file, as a terminal, a table or a picture may show it."""

from __future__ import annotations

import contextlib
from pathlib import Path


def nearby(path: str) -> str:
    """A path as a report shows it: below the working directory from there, else the name alone."""
    with contextlib.suppress(OSError, ValueError):  # it lies elsewhere, or there is no cwd
        return str(Path(path).relative_to(Path.cwd()))
    return Path(path).name


def visible(text: str) -> str:
    r"""Text in which nothing acts on a terminal or hides: what cannot be seen is escaped.

    As `repr` has it: control characters (line ends too), marks that change the direction of
    writing, and lone surrogates become ``\x1b``, ``\n``, ``\u202e``, ``\udc80``. A backslash
    stays as it is.

    Example:
        >>> print(visible("PASS\x1b[2K\rVIOLATION"))
        PASS\x1b[2K\rVIOLATION
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
