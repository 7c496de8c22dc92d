"""Reads JSON from elsewhere with msgspec: of limited size, and converted to types."""

from __future__ import annotations

import os
from typing import Any

import msgspec

from lightning_audit.files.bounded import read_text

# Objects and lists need up to 30 times as much memory: 1 GB.
MOST_BYTES = 2**25
_TOO_DEEP = "it is nested too deep"


class JsonError(ValueError):
    """The text is not JSON; the message says why."""


def read_json(path_or_text: os.PathLike[str] | str | bytes) -> Any:
    """Read JSON.

    Args:
        path_or_text: a path (`pathlib.Path`), or the text itself (str, or bytes in UTF-8).

    Returns:
        Dicts, lists, strings, finite numbers, bools and None. If an object has a key twice, the
        last value counts.

    Raises:
        OSError: the file is absent or may not be read.
        JsonError: it is not a regular file, not UTF-8, not JSON or too large, or a number is NaN,
            infinite or too large.

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
    """Convert a value that `read_json` returned to a type.

    Args:
        kind: a dataclass or another type. Fields that the dataclass does not have are ignored.
        value: the strings "inf" and "-inf" are read as infinite numbers.
        where: name of the value, for the error.

    Raises:
        ValueError: the value has another type, or a field without default is missing; the message
            names the field.
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
    """Replace the strings "inf" and "-inf" by numbers."""
    if isinstance(value, dict):
        return {key: _restored(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_restored(item) for item in value]
    if isinstance(value, int):
        float(value)  # raises OverflowError; msgspec 0.20 would read -1.0
    return float(value) if value in ("inf", "-inf") else value
