"""Reads JSON that somebody else may have written: bounded, and held to types by msgspec."""

from __future__ import annotations

import os
from typing import Any

import msgspec

from lightning_audit.files.bounded import read_text

# Objects and lists take up to 30 times their bytes: a gigabyte at most.
MOST_BYTES = 2**25
_TOO_DEEP = "it is nested too deep"


class JsonError(ValueError):
    """The text is no JSON; the message says what is wrong."""


def read_json(path_or_text: os.PathLike[str] | str | bytes) -> Any:
    """Read JSON.

    Args:
        path_or_text: a path (`pathlib.Path`), or the text itself (str, or bytes in UTF-8).

    Returns:
        Dicts, lists, strings, finite numbers, bools and None. Of a key that stands twice in an
        object the last one counts.

    Raises:
        OSError: the file is absent or may not be read.
        JsonError: it is no regular file, too long, no UTF-8 or no JSON, or a number is NaN,
            infinite or too long.

    Example:
        >>> read_json('{"a": [1, 2.5]}')
        {'a': [1, 2.5]}
    """
    try:
        text = path_or_text
        if isinstance(text, os.PathLike):
            text = read_text(text, MOST_BYTES)
        if len(text) > MOST_BYTES:
            raise JsonError(f"it has {len(text)} bytes, at most {MOST_BYTES}")
        return msgspec.json.decode(text)
    except RecursionError:
        raise JsonError(_TOO_DEEP) from None
    except (msgspec.MsgspecError, ValueError) as error:
        raise JsonError(str(error)) from error


def as_type(kind: Any, value: Any, where: str = "") -> Any:
    """Hold what `read_json` gives to a type.

    Args:
        kind: a dataclass, whose fields without default have to be there, or another type. Fields
            that it does not have are left out.
        value: the strings "inf" and "-inf" stand for infinite numbers.
        where: name of the place, for the error.

    Raises:
        ValueError: the value is of another type; the message names the place.
    """
    try:
        return msgspec.convert(_restored(value), kind)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    except (msgspec.ValidationError, OverflowError) as error:
        what, _, path = str(error).partition(" - at `$")
        place = f"{where}{path.removesuffix('`')}".lstrip(".")
        raise ValueError(f"{place}: {what}" if place else what) from error


def _restored(value: Any) -> Any:
    """The value with the strings "inf" and "-inf" as numbers."""
    if isinstance(value, dict):
        return {key: _restored(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_restored(item) for item in value]
    if isinstance(value, int):
        float(value)  # one that no float holds is an error: msgspec 0.20 reads it as -1.0
    return float(value) if value in ("inf", "-inf") else value
