"""Holds data that were read from JSON to the types of a dataclass."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal

from lightning_audit._validate import shown

_WORDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}


def check_types(hint: Any, value: Any, where: str) -> None:
    """Refuse a value that JSON could not have for a type.

    Absent and unknown fields are left to the dataclass. A number in a table may be null, as which
    NaN is written.

    Args:
        hint: a dataclass, or the annotation of one of its fields.
        value: what JSON gave for it: an object for a dataclass, a list for a tuple.
        where: what the value is, as an error names it.

    Raises:
        ValueError: it is of another type, here or in one of its parts.

    Example:
        >>> check_types(tuple[float, ...], [1, "two"], "sizes")
        Traceback (most recent call last):
        ValueError: sizes[1]='two' must be a number
    """
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return
    if dataclasses.is_dataclass(hint):
        _need(isinstance(value, dict), where, value, "an object")
        for name, part in typing.get_type_hints(hint).items():
            if name in value:
                check_types(part, value[name], f"{where}.{name}" if where else name)
    elif origin in (typing.Union, types.UnionType):
        if value is not None:  # no field has two types but for None
            check_types(parts[0], value, where)
    elif origin is Literal:
        _need(isinstance(value, str) and value in parts, where, value, f"one of {list(parts)}")
    elif origin is tuple:
        _need(isinstance(value, list), where, value, "a list")
        every = parts[:1] * len(value) if parts[1:] == (Ellipsis,) else parts
        _need(len(value) == len(every), where, value, f"a list of {len(every)}")
        for i, (part, item) in enumerate(zip(every, value, strict=True)):
            check_types(part, item, f"{where}[{i}]")
    elif origin is Mapping:
        _need(isinstance(value, dict), where, value, "an object")
        for name, item in value.items():
            if item is not None or parts[1] is not float:
                check_types(parts[1], item, f"{where}[{shown(name)}]")
    else:
        allowed = (int, float) if hint is float else hint
        right = isinstance(value, allowed) and (hint is bool or not isinstance(value, bool))
        _need(right, where, value, _WORDS[hint])


def _need(right: bool, where: str, value: Any, allowed: str) -> None:
    if not right:
        raise ValueError(f"{where}={shown(value)} must be {allowed}")
