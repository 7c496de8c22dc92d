"""JSON held to types: nothing is guessed, and an error names the place."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, Union


def read(kind: Any, value: Any, where: str = "") -> Any:
    """Read a decoded value as a type.

    Args:
        kind: a dataclass, ``tuple[...]``, ``Mapping[str, ...]``, ``Literal``, ``X | Y | None``,
            ``str``, ``bool``, ``int``, ``float`` or ``Any``.
        value: as `strict_json.read_json` gives it; "inf" and "-inf" stand for infinite numbers.
        where: name of the place, for the error.

    Returns:
        The value as that type. Fields of a dataclass have all to be there, and no others.

    Raises:
        ValueError: the value is of another type; the message names the place.
    """
    if kind is Any:
        return _restored(value)
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        return _dataclass(kind, value, where)
    if origin in (Union, types.UnionType):
        *others, last = (part for part in inner if part is not type(None))
        for part in others:
            with contextlib.suppress(ValueError):
                return read(part, value, where)
        return None if value is None else read(last, value, where)
    if origin is Literal:
        if not (isinstance(value, str) and value in inner):
            raise _wrong(where, value, f"one of {', '.join(map(repr, inner))}")
        return value
    if origin is tuple:
        return _tuple(inner, value, where)
    if origin is Mapping:
        if not isinstance(value, dict):
            raise _wrong(where, value, "an object")
        return {name: read(inner[1], item, f"{where}.{name}") for name, item in value.items()}
    if kind is float:
        return _float(value, where)
    if type(value) is not kind:
        raise _wrong(
            where, value, {str: "text", bool: "true or false", int: "a whole number"}[kind]
        )
    return value


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _dataclass(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise _wrong(where, value, "an object")
    hints = _hints(kind)
    dot = f"{where}." if where else ""
    if absent := [name for name in hints if name not in value]:
        raise ValueError(f"{dot}{absent[0]} is absent")
    if unknown := [name for name in value if name not in hints]:
        raise ValueError(f"{dot}{unknown[0]} is no field of a report")
    fields = {name: read(hint, value[name], f"{dot}{name}") for name, hint in hints.items()}
    try:
        return kind(**fields)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def _tuple(inner: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise _wrong(where, value, "a list")
    kinds = [inner[0]] * len(value) if inner[-1] is ... else inner
    if len(kinds) != len(value):
        raise _wrong(where, value, f"a list of {len(kinds)}")
    return tuple(
        read(kind, item, f"{where}[{i}]")
        for i, (kind, item) in enumerate(zip(kinds, value, strict=True))
    )


def _float(value: Any, where: str) -> float:
    if value in ("inf", "-inf"):
        return float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong(where, value, "a number")
    return value  # a whole number stays one, so that it is written again as it was


def _restored(value: Any) -> Any:
    """The value with the strings "inf" and "-inf" as numbers."""
    if isinstance(value, dict):
        return {key: _restored(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_restored(item) for item in value]
    return float(value) if value in ("inf", "-inf") else value


def _wrong(where: str, value: Any, wanted: str) -> ValueError:
    shown = ascii(value)
    shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
    return ValueError(f"{where}={shown} must be {wanted}")
