"""Argument checks: each error names the argument, its value, what is allowed and what to do."""

from __future__ import annotations

import difflib
import math
import reprlib
from collections.abc import Collection
from numbers import Integral, Real
from typing import Any

_REPR = reprlib.Repr()
_REPR.maxother = _REPR.maxstring = 120
_REPR.maxlong = 60


class BadArgument(ValueError):
    """Invalid argument of the user; the message says what to change."""


def end_at_user(error: BaseException) -> None:
    """Remove this package's frames from an exception's traceback; a bare ``raise`` adds none."""
    kept, trace = list[Any](), error.__traceback__
    while trace is not None:
        name = str(trace.tb_frame.f_globals.get("__name__", ""))
        if not name.startswith("lightning_audit") or name.startswith("lightning_audit.testing"):
            kept.append(trace)
        trace = trace.tb_next
    for i, one in enumerate(kept):
        one.tb_next = kept[i + 1] if i + 1 < len(kept) else None
    error.with_traceback(kept[0] if kept else None).__cause__ = None  # shows no context either


def shown(value: Any) -> str:
    """Return a value as text for an error: one line, large values abbreviated in the middle."""
    return " ".join(_REPR.repr(value).split())


def did_you_mean(name: str, allowed: Collection[str]) -> str:
    """Return what to write instead of an unknown name: the nearest one, or all that are allowed."""
    near = difflib.get_close_matches(name, allowed, n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"allowed: {', '.join(sorted(allowed))}."


def _fail(name: str, value: Any, allowed: str, advice: str) -> ValueError:
    tail = f"; {advice}" if advice else "."
    return ValueError(f"{name}={shown(value)} must be {allowed}{tail}")


def _is_real(value: Any) -> bool:
    if not isinstance(value, Real) or isinstance(value, bool):
        return False
    try:
        return not math.isnan(value)
    except OverflowError:  # an integer of more than 308 digits
        return False


def positive(name: str, value: Any, advice: str = "", *, finite: bool = True) -> float:
    """Return ``value`` as a float if it is a number above zero."""
    if not _is_real(value) or value <= 0 or (finite and math.isinf(value)):
        raise _fail(name, value, "a finite number > 0" if finite else "a number > 0", advice)
    return float(value)


def finite(name: str, value: Any, advice: str = "") -> float:
    """Return ``value`` as a float if it is a finite number."""
    if not _is_real(value) or math.isinf(value):
        raise _fail(name, value, "a finite number", advice)
    return float(value)


def non_negative(name: str, value: Any, advice: str = "") -> float:
    """Return ``value`` as a float if it is a finite number of at least zero."""
    if not _is_real(value) or value < 0 or math.isinf(value):
        raise _fail(name, value, "a finite number >= 0", advice)
    return float(value)


def open_unit(name: str, value: Any, advice: str = "") -> float:
    """Return ``value`` as a float if it lies strictly between 0 and 1."""
    if not _is_real(value) or not 0 < value < 1:
        raise _fail(name, value, "in (0, 1)", advice)
    return float(value)


def rate(name: str, value: Any, advice: str = "") -> float:
    """Return ``value`` as a float if it lies in (0, 1]."""
    if not _is_real(value) or not 0 < value <= 1:
        raise _fail(name, value, "in (0, 1]", advice)
    return float(value)


def positive_int(name: str, value: Any, advice: str = "") -> int:
    """Return ``value`` as an int if it is a whole number of at least one."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
        raise _fail(name, value, "a whole number >= 1", advice)
    return int(value)


def one_of(name: str, value: Any, allowed: Collection[str], advice: str = "") -> str:
    """Return ``value`` if it is one of the ``allowed`` strings."""
    if not isinstance(value, str) or value not in allowed:
        raise _fail(name, value, f"one of {sorted(allowed)}", advice)
    return str(value)


def fitting(name: str, value: Any, allowed: str, *, fits: bool) -> None:
    """Raise unless ``value`` fits what is allowed, in words."""
    if not fits:
        raise _fail(name, value, allowed, "")
