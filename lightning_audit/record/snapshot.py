"""Converts this package's objects to plain data and back, for checkpoints.

A snapshot consists of dicts, lists, strings, numbers and arrays only: reading it runs no code but
this package's. It contains every attribute, so that a new one cannot be forgotten.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from typing import Any

import numpy as np

from lightning_audit.checks.base.registry import packages


def snapshot(value: Any) -> Any:
    """Return plain data from which `restore` creates an equal value.

    Args:
        value: None, a bool, number, string, numpy array, an object of this package's classes, or a
            list, tuple or dict of such.

    Returns:
        The value as dicts, lists and plain values; arrays are copied.

    Raises:
        TypeError: the value, or a part of it, is of another kind, or its class cannot be imported
            by its name.

    Example:
        >>> snapshot((1, {"a": 2.0}))
        {'tuple': [1, {'dict': [['a', 2.0]]}]}
    """
    match value:
        case None | bool() | int() | float() | str():
            # numpy's float64 is a subclass of float and is stored as a float.
            return value.item() if isinstance(value, np.generic) else value
        case np.generic():
            return value.item()
        case np.ndarray():
            return value.copy()
        case list():
            return [snapshot(item) for item in value]
        case tuple():
            return {"tuple": [snapshot(item) for item in value]}
        case dict() if type(value) is dict:  # a Counter, say, would come back as a dict
            return {"dict": [[snapshot(k), snapshot(v)] for k, v in value.items()]}
    kind = type(value)
    if kind.__module__.partition(".")[0] not in packages():
        raise TypeError(
            f"{kind.__module__}.{kind.__qualname__} cannot be part of a snapshot; keep plain "
            "values, arrays, or objects of this package's classes and of those that add checks."
        )
    if getattr(sys.modules.get(kind.__module__), kind.__qualname__, None) is not kind:
        raise TypeError(
            f"{kind.__module__}.{kind.__qualname__} cannot be part of a snapshot: a resume finds "
            "classes by name; define it at the top of its module."
        )
    state = {name: snapshot(item) for name, item in vars(value).items()}
    return {"object": f"{kind.__module__}:{kind.__qualname__}", "state": state}


def restore(data: Any) -> Any:
    """Return the value from which `snapshot` created the data.

    Returns:
        An equal value that shares no array with ``data``.

    Raises:
        ValueError: the data are no snapshot, or contain a class that this version does not have.

    Example:
        >>> restore({"tuple": [1, {"dict": [["a", 2.0]]}]})
        (1, {'a': 2.0})
    """
    match data:
        case {"tuple": items}:
            return tuple(restore(item) for item in items)
        case {"dict": items}:
            return {restore(k): restore(v) for k, v in items}
        case {"object": name, "state": state}:
            kind = _class(name)
            value: Any = object.__new__(kind)
            for attribute, item in state.items():
                # Frozen dataclasses refuse plain assignment.
                object.__setattr__(value, attribute, restore(item))
            return value
        case dict():
            raise ValueError(
                f"keys {sorted(data)} are no part of a snapshot; take another checkpoint."
            )
        case list():
            return [restore(item) for item in data]
        case np.ndarray():
            return data.copy()
    return data


def _class(name: object) -> type:
    module, _, qualified = name.partition(":") if isinstance(name, str) else ("", "", "")
    kind = None
    if module.partition(".")[0] in packages():
        with contextlib.suppress(ImportError):
            kind = getattr(importlib.import_module(module), qualified, None)
    if not isinstance(kind, type) or kind.__module__ != module:
        raise ValueError(
            f"the snapshot holds a {name!r}, which this version of lightning-audit does not have; "
            "resume with the version that wrote it."
        )
    return kind
