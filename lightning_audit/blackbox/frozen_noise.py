"""Calls a privatize function twice with the same random numbers, so that its noise cancels.

Seeded and restored are the generators of torch, NumPy and Python, and those that the function
holds: in attributes, closure variables, argument defaults, and the globals of its module that it,
or a function that it names, uses.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from lightning_audit.blackbox.probes import Released
from lightning_audit.replay.training_state import TrainingState
from lightning_audit.stats._arguments import Floats

__all__ = ["FrozenNoise"]

#: Modules whose globals hold no generator of the user's.
_LIBRARIES = {*sys.stdlib_module_names, "torch", "numpy", "scipy", "opacus", "lightning_audit"}

#: Types that hold no generator. Arrays hold none either, and may be large.
_WITHOUT = (
    *(types.ModuleType, types.BuiltinFunctionType, type, type(None)),
    *(bool, int, float, str, bytes, torch.dtype, torch.device, torch.Tensor, np.ndarray),
)


class FrozenNoise:
    """Calls a privatize function twice from one state of all its generators.

    Args:
        released: The function under audit.
    """

    def __init__(self, released: Released) -> None:
        self._released = released
        self._roots = _roots(released.privatize)
        self._first = _state_of(self._roots)

    def put_back(self) -> None:
        """Restore the first state of the function and of all generators."""
        self._first.put_back()

    def obstacle(self, rows: Floats, seed: int) -> str:
        """Return why differences of calls do not show what gradients add; empty if they do.

        Args:
            rows: A batch, ``[n, d]``, in clipping norms.
            seed: Seed of two calls; a third call uses the next number.
        """
        state = _state_of(self._roots)
        one, again, same_draws = self._both((rows, seed), (rows, seed), state)
        if not same_draws or not np.array_equal(one, again):
            return "equal calls under equal seeds release different values"
        state.put_back()
        if np.array_equal(*self._both((rows, seed), (rows, seed + 1), state)[:2]):
            return "the release does not depend on the generators that can be set"
        return ""

    def release(self, rows: Floats, seed: int) -> Floats:
        """Return the release of rows, ``[n, d]``, under a seed, in clipping norms, ``[d]``."""
        _state_of(self._roots).seed(seed)
        return self._released(rows)

    def difference(
        self, rows: Floats, others: Floats, seed: int, *, sure: bool = True
    ) -> Floats | None:
        """Return the release of ``rows`` less that of ``others``; None if their noise differs.

        The state of the function advances by one call, so that a fault that affects only some
        calls is found.

        Args:
            rows: A batch, ``[n, d]``, in clipping norms.
            others: Another batch, ``[m, d]``.
            seed: Seed of both calls.
            sure: Whether to repeat both calls if the difference exceeds the clipping norm, to rule
                out random numbers that sometimes come from another source.

        Raises:
            MechanismError: As in `Released`.
        """
        calls = (rows, seed), (others, seed)
        state = _state_of(self._roots)
        one, other, same_draws = self._both(*calls, state)
        if not same_draws:
            return None
        if sure and np.linalg.norm(one - other) > 1.0:
            state.put_back()
            again = self._both(*calls, state)
            if not (np.array_equal(one, again[0]) and np.array_equal(other, again[1])):
                return None
        return one - other

    def _both(
        self, first: tuple[Floats, int], second: tuple[Floats, int], state: TrainingState
    ) -> tuple[Floats, Floats, bool]:
        """Return two releases from one state, and whether both drew equally many numbers."""
        state.seed(first[1])
        one, drawn = self._released(first[0]), state.mark()
        state.put_back()
        state.seed(second[1])
        other = self._released(second[0])
        return one, other, drawn == state.mark()


def _state_of(roots: list[object]) -> TrainingState:
    # A function that counts its calls with an iterator releases different values in equal calls.
    return TrainingState(roots, iterators=True)


def _roots(privatize: object) -> list[object]:
    """Return the function and all objects that may hold its generators."""
    roots, known = [privatize], {id(privatize)}
    for item in roots:  # the list grows
        for held in _named_by(item):
            if id(held) not in known and not _holds_none(held):
                known.add(id(held))
                roots.append(held)
    return roots


def _holds_none(item: object) -> bool:
    """Return whether no generator can be reached from an object."""
    if isinstance(item, _WITHOUT):
        return True
    return isinstance(item, types.FunctionType) and _is_library(item)


def _named_by(item: object) -> Iterator[object]:
    """Yield what the user's code uses in addition to its arguments."""
    if isinstance(item, types.FunctionType):
        if not _is_library(item):
            yield from (item.__globals__.get(name) for name in _names(item.__code__))
            yield from (*(item.__defaults__ or ()), *(item.__kwdefaults__ or {}).values())
            yield from (cell.cell_contents for cell in item.__closure__ or () if _bound(cell))
    elif isinstance(item, types.MethodType):
        yield from (item.__self__, item.__func__)
    elif isinstance(item, functools.partial):
        yield from (item.func, *item.args, *item.keywords.values())
    elif not _is_library(type(item)):
        for kind in type(item).__mro__:
            yield from (each for each in vars(kind).values() if not _is_library(kind))
        yield from getattr(item, "__dict__", {}).values()


def _is_library(item: Any) -> bool:
    return (item.__module__ or "").partition(".")[0] in _LIBRARIES


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _names(inner)


def _bound(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False
