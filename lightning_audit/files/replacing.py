"""Writes a file that takes its place when it is whole, through no link that lies there."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

_PARTIAL = re.compile(r"\..+\.[0-9a-f]{16}\.partial")


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Write a new file next to ``path`` that replaces it if the block ends without an exception.

    A reader sees the old file or the new one, never half. The new file has a random name and is
    made exclusively, so that a link laid there beforehand is not followed; where ``path`` itself is
    a link, the link is replaced and its target does not change.

    Raises:
        OSError: the file cannot be written; the old one is untouched.
    """
    target = Path(path)
    partial = target.with_name(f".{target.name}.{secrets.token_hex(8)}.partial")
    try:
        with open(partial, "xb") as file:
            yield file
        os.replace(partial, target)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise


def remove_partials(directory: Path) -> None:
    """Remove what processes that were killed have left half written by `replacing`."""
    for path in directory.glob(".*.partial"):
        if _PARTIAL.fullmatch(path.name):
            path.unlink(missing_ok=True)


def reason_of(error: Exception) -> str:
    """Why a file could not be written, without the name of one that was to take its place."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
