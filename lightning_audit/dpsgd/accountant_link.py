"""Finds the accountant in a private optimizer's step hook."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from opacus.accountants import IAccountant
from opacus.optimizers import DPOptimizer

#: How far a hook is followed: functions within functions, objects within objects.
_DEEPEST = 6


@dataclass(frozen=True)
class AccountantLink:
    """The accountant that a step hook updates, and the sampling rate that it is given.

    Args:
        accountant: Opacus' accountant.
        stated_rate: sampling rate that the hook passes to the accountant; None if the hook holds
            none.
    """

    accountant: Any
    stated_rate: float | None = None

    @property
    def sample_rate(self) -> float | None:
        """The hook's rate, else the last rate in the accountant's history; None if empty."""
        if self.stated_rate is not None:
            return self.stated_rate
        history = self.accountant.history
        return float(history[-1][1]) if history else None


def accountant_link(optimizer: DPOptimizer) -> AccountantLink | None:
    """Return the accountant in the optimizer's step hook; None unless exactly one is found.

    `IAccountant.get_optimizer_hook_fn` closes over the accountant and the sampling rate; the
    optimizer stores them nowhere else. A user's hook, or a wrapper of Opacus' hook, holds them in
    a closure, in the arguments of a `partial`, or in an object.
    """
    accountants: dict[int, Any] = {}
    rates: dict[int, float] = {}
    for held in _held_by(getattr(optimizer, "step_hook", None)):
        names = _variables(held)
        found = [v for v in (held, *names.values()) if isinstance(v, IAccountant)]
        accountants |= {id(each): each for each in found}
        rate = names.get("sample_rate")
        if found and isinstance(rate, int | float):
            rates[id(found[0])] = float(rate)
    if len(accountants) != 1:
        return None
    ((number, accountant),) = accountants.items()
    return AccountantLink(accountant, rates.get(number))


def hook_is_unread(optimizer: DPOptimizer) -> bool:
    """Return whether there is a step hook whose accountant cannot be determined."""
    return getattr(optimizer, "step_hook", None) is not None and accountant_link(optimizer) is None


def _held_by(hook: Any) -> Iterator[Any]:
    """Yield the hook and the objects that it holds, nearest first; each once."""
    seen: set[int] = set()
    waiting = [(hook, 0)]
    while waiting:
        item, depth = waiting.pop(0)
        if item is None or id(item) in seen or isinstance(item, torch.Tensor | torch.nn.Module):
            continue
        seen.add(id(item))
        yield item
        if depth < _DEEPEST and not isinstance(item, IAccountant):
            waiting += [(value, depth + 1) for value in _variables(item).values()]


def _variables(item: Any) -> dict[str, Any]:
    """Return, by name, the objects that a function or a user's callable object holds."""
    if inspect.ismethod(item):
        return {"self": item.__self__, "function": item.__func__}
    if inspect.isfunction(item):
        try:
            enclosed = inspect.getclosurevars(item)
        except (TypeError, ValueError):  # a cell that is empty as yet
            return {}
        own = {
            name: value
            for name, value in enclosed.globals.items()
            if isinstance(value, IAccountant) or (callable(value) and not isinstance(value, type))
        }
        defaults = inspect.signature(item).parameters.values()
        given = {p.name: p.default for p in defaults if p.default is not inspect.Parameter.empty}
        return {**own, **given, **enclosed.nonlocals}
    if isinstance(item, functools.partial):
        named = {f"argument {number}": value for number, value in enumerate(item.args)}
        return {"function": item.func, **named, **item.keywords}
    if isinstance(item, IAccountant) or not callable(item) or isinstance(item, type):
        return {}
    return dict(getattr(item, "__dict__", {}))
