"""Opens files that somebody else may have written: regular ones only, and of bounded length."""

from __future__ import annotations

import contextlib
import io
import os
import stat
from collections.abc import Iterator

_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
#: Characters of a line, and so of a field, as the csv module has it for fields.
LONGEST_LINE = 131_072


def open_regular(path: str | os.PathLike[str]) -> io.BufferedReader:
    """Open a file for reading bytes.

    Raises:
        OSError: it is absent or may not be read.
        ValueError: it is no regular file: a directory, a pipe or a device, which never ends.
    """
    # Without O_NONBLOCK, opening a pipe waits until somebody writes to it.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, flags)
    kind = stat.S_IFMT(os.fstat(descriptor).st_mode)
    if kind != stat.S_IFREG:
        os.close(descriptor)
        raise ValueError(f"it is {_KINDS.get(kind, 'of another kind')}; name a regular file")
    return open(descriptor, "rb")


def read_text(path: str | os.PathLike[str], most: int) -> str:
    """The text of a file in UTF-8.

    Args:
        path: the file.
        most: bytes that it may have.

    Raises:
        OSError: as `open_regular`.
        ValueError: as `open_regular`; or it is longer, or no UTF-8.
    """
    with open_regular(path) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise ValueError(f"it has more than {most} bytes, the most that is read of such a file")
    return data.decode("utf-8")


@contextlib.contextmanager
def text_lines(path: str | os.PathLike[str], most: int) -> Iterator[Iterator[str]]:
    """The lines of a file in UTF-8, with or without a byte order mark.

    Args:
        path: the file.
        most: lines that it may have after the first one.

    Raises:
        OSError: as `open_regular`.
        ValueError: as `open_regular`; or, from the lines: one is too long, there are more, or
            they are no UTF-8.
    """
    with io.TextIOWrapper(open_regular(path), encoding="utf-8-sig", newline="") as file:
        yield _lines(file, most)


def _lines(file: io.TextIOWrapper, most: int) -> Iterator[str]:
    number = 0
    while line := file.readline(LONGEST_LINE + 1):
        number += 1
        if len(line) > LONGEST_LINE:
            raise ValueError(f"line {number} has more than {LONGEST_LINE} characters")
        if number > most + 1:
            raise ValueError(
                f"it has more than max_values={most} lines; raise max_values (--max-values) if "
                "you trust the file"
            )
        yield line
