"""Text from a file, as a terminal, a table or a picture may show it."""

from __future__ import annotations

import contextlib
from pathlib import Path

#: Markdown shows these characters as they are: no tags, links, mentions, emphasis or cells.
_ESCAPED = {ord(c): f"&#{ord(c)};" for c in "&<>|`*[]\\@$~#"}
#: Characters of a text in Markdown.
_LONGEST = 2000


def nearby(path: str) -> str:
    """A path as a report shows it: from its repository, else from the working directory.

    The name alone where it lies in neither, or where the path from there would name a user's home.
    """
    return inside(path) or Path(path).name


def inside(path: str) -> str | None:
    """Return a path from its repository, else from the working directory; None in neither case.

    None also if the path from there would name a user's home.
    """
    with contextlib.suppress(OSError, ValueError, RuntimeError):  # no cwd, or no home
        file = Path(path).resolve()
        roots = (folder for folder in file.parents if _is_repository(folder))
        root = next(roots, None) or Path.cwd().resolve()
        if root not in Path.home().resolve().parents:
            return file.relative_to(root).as_posix()
    return None


def _is_repository(folder: Path) -> bool:
    return any((folder / mark).exists() for mark in (".git", "pyproject.toml"))


def visible(text: str) -> str:
    r"""Text in which nothing acts on a terminal or hides: what cannot be seen is escaped.

    As `repr` has it: control characters (line ends too), marks that change the direction of
    writing, and lone surrogates become ``\x1b``, ``\n``, ``\u202e``, ``\udc80``. A backslash
    does not change.

    Example:
        >>> print(visible("PASS\x1b[2K\rVIOLATION"))
        PASS\x1b[2K\rVIOLATION
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def in_markdown(text: str) -> str:
    r"""Text that Markdown shows as it is, in one line of at most 2,000 characters.

    Example:
        >>> in_markdown("a <b> *c*")
        'a &#60;b&#62; &#42;c&#42;'
        >>> in_markdown("95\xa0%")
        '95 %'
    """
    text = visible(text.replace("\xa0", " "))
    text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."
    return text.translate(_ESCAPED)
