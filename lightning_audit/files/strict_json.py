"""Reads JSON that somebody else may have written, and refuses what has two meanings or none."""

from __future__ import annotations

import json
import math
import os
from typing import Any

from lightning_audit._validate import shown
from lightning_audit.files.bounded import read_text

# Objects, lists and fields take up to 250 bytes each: half a gigabyte at most.
MOST_BYTES = 2**25
_MOST_PARTS = 2_000_000
#: Nothing that this package writes is nested deeper than ten.
_DEEPEST = 50
#: No count, seed or float that is written out has more; a float holds 309.
_MOST_DIGITS = 100


class JsonError(ValueError):
    """The text is no JSON, or none that is safe to read; the message says what is wrong."""


def read_json(path_or_text: os.PathLike[str] | str | bytes) -> Any:
    """Read JSON strictly.

    Args:
        path_or_text: a path (`pathlib.Path`), or the text itself (str, or bytes in UTF-8).

    Returns:
        Dicts, lists, strings, finite numbers, bools and None.

    Raises:
        OSError: the file is absent or may not be read.
        JsonError: it is no regular file, too long, no UTF-8 or no JSON; a key stands twice in an
            object; a number is NaN, infinite or of more than 100 digits; it is nested deeper than
            50; or a string has half a surrogate pair.

    Example:
        >>> read_json('{"a": [1, 2.5]}')
        {'a': [1, 2.5]}
    """
    try:
        text = _text_of(path_or_text)
        parts = sum(text.count(mark) for mark in "[{:")
        if parts > _MOST_PARTS:
            raise JsonError(f"it has {parts} objects, lists and fields, at most {_MOST_PARTS}")
        value = json.loads(
            text,
            object_pairs_hook=_object,
            parse_constant=_constant,
            parse_int=_whole,
            parse_float=_real,
        )
    except RecursionError:
        raise JsonError(f"it is nested deeper than {_DEEPEST}") from None
    except JsonError:
        raise
    except ValueError as error:
        raise JsonError(str(error)) from error
    _check(value)
    return value


def _text_of(path_or_text: os.PathLike[str] | str | bytes) -> str:
    if isinstance(path_or_text, os.PathLike):
        return read_text(path_or_text, MOST_BYTES)
    if len(path_or_text) > MOST_BYTES:
        raise JsonError(f"it has {len(path_or_text)} bytes, at most {MOST_BYTES}")
    return path_or_text.decode("utf-8") if isinstance(path_or_text, bytes) else path_or_text


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise JsonError(f"the key {shown(name)} stands twice in one object")
        found[name] = value
    return found


def _constant(name: str) -> float:
    raise JsonError(f"{name} is no JSON number")


def _whole(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise JsonError(f"{shown(digits)} is a number of {len(digits)} digits")
    return int(digits)


def _real(digits: str) -> float:
    value = float(digits)
    if len(digits) > _MOST_DIGITS or math.isinf(value):
        raise JsonError(f"{shown(digits)} is no number that a float holds")
    return value


def _check(value: Any) -> None:
    """Refuse what is nested too deep, and text that cannot be written."""
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > _DEEPEST:
            raise JsonError(f"it is nested deeper than {_DEEPEST}")
        inner: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                inner.extend(item)
                inner.extend(item.values())
            elif isinstance(item, list):
                inner.extend(item)
            elif isinstance(item, str) and not item.isascii():
                _refuse_surrogates(item)
        level = inner


def _refuse_surrogates(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise JsonError(f"{shown(text)} has half a surrogate pair, which is no text") from None
