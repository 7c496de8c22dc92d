"""Hooks around the steps of a torch optimizer."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch

from lightning_audit.taps.boundary import Handles, around, entry


def _nothing(*_: Any) -> None:
    """Do nothing."""


class StepHooks:
    """Calls back when a step starts and when it ends.

    Args:
        optimizer: the innermost optimizer.
        enters: called when a step starts; returns the number of nested steps, including it.
        arrives: called with that number when the step's gradients are computed.
        leaves: called when a step ends.
        otherwise: called instead of ``arrives`` after the audit has failed.
        skips: called instead of ``leaves`` after the audit has failed.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        enters: Callable[[], int],
        arrives: Callable[[int], None],
        leaves: Callable[[], None],
        otherwise: Callable[[int], None] = _nothing,
        skips: Callable[[], None] = _nothing,
    ) -> None:
        self._optimizer = optimizer
        self._enters, self._arrives, self._leaves = enters, arrives, leaves
        self._otherwise, self._skips = otherwise, skips
        #: Whether the callbacks run.
        self.armed = True
        #: Level of a step that has begun and whose gradients are not computed; else 0.
        self._level = 0
        self.start = entry(self._start, self._start_failed)
        self.end = entry(self._end, self._end_failed)
        self._handles = Handles()
        self._handles.append(optimizer.register_step_pre_hook(self.start))
        self._handles.append(optimizer.register_step_post_hook(self.end))

    def _start(self, *given: Any) -> Any:
        """Call back at the start of a step."""
        if self.armed:
            self._level = self._enters()
            return self._begin(self._level, self._arrives, given)
        return None

    def _start_failed(self, *given: Any) -> Any:
        """Call ``otherwise`` for a step that starts, or has started: the audit has failed."""
        if self.armed:
            return self._begin(self._level or self._enters(), self._otherwise, given)
        return None

    def _begin(self, level: int, arrives: Callable[[int], None], given: tuple[Any, ...]) -> Any:
        arrives(level)
        self._level = 0

    def _end(self, *_: Any) -> None:
        """Call back at the end of a step."""
        if self.armed:
            self._leaves()

    def _end_failed(self, *_: Any) -> None:
        if self.armed:
            self._skips()

    def remove(self) -> None:
        """Unregister the hooks."""
        self._handles.remove()


class ClosureHooks(StepHooks):
    """Step hooks for gradients that a closure, or the step of a parent class, computes.

    If an optimizer's class overrides ``step``, the steps of its parents call back as well. If a
    closure is given, ``arrives`` is called each time that it returns.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, *calls: Callable[..., Any]) -> None:
        super().__init__(optimizer, *calls)
        if not is_torchs(steps_of(type(optimizer))[0]):
            self._handles.append(_Parents(optimizer))
            _watch_parents(optimizer, self)

    def _begin(self, level: int, arrives: Callable[[int], None], given: tuple[Any, ...]) -> Any:
        """Call ``arrives``, or return the step's arguments with a closure that does."""
        _, args, kwargs = given
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            return super()._begin(level, arrives, given)
        self._level = 0
        observed = around(
            closure,
            after=lambda *_, **__: arrives(level),
            otherwise=lambda *_, **__: self._otherwise(level),
        )
        if len(args) > 1:
            return (args[0], observed, *args[2:]), kwargs
        return args, {**kwargs, "closure": observed}


def steps_of(kind: type) -> list[Any]:
    """Return the `step` methods of a class and its parents, outermost first."""
    return [step for c in kind.__mro__ if (step := vars(c).get("step")) is not None]


def is_torchs(step: Any) -> bool:
    """Return whether the code of a step is torch's own."""
    return str(getattr(step, "__module__", "")).startswith("torch.optim.")


#: Hooks by optimizer; parent class -> (its own step, the step that replaces it).
_hooks: WeakKeyDictionary[torch.optim.Optimizer, ClosureHooks] = WeakKeyDictionary()
_unwatched: dict[type, tuple[Any, Any]] = {}


def _watch_parents(optimizer: torch.optim.Optimizer, hooks: ClosureHooks) -> None:
    """Wrap the steps of parent classes that run no hooks yet.

    torch makes a class's step run hooks when the class's first object is created. Doing the same
    here would run other code's hooks twice in a step that calls its parent's.
    """
    for parent in type(optimizer).__mro__[1:]:
        step = vars(parent).get("step")
        hooked = getattr(step, "hooked", False) or parent in _unwatched
        if step is not None and parent is not torch.optim.Optimizer and not hooked:
            watched = _watched(step)
            _unwatched[parent] = (step, watched)
            parent.step = watched  # type: ignore[attr-defined]
    _hooks[optimizer] = hooks


class _Parents:
    """Handle of the hooks on the steps of an optimizer's parent classes.

    Args:
        optimizer: the optimizer.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer

    def remove(self) -> None:
        """Remove the hooks."""
        _unwatch(self._optimizer)


def _unwatch(optimizer: torch.optim.Optimizer) -> None:
    """Restore the steps of parent classes after the last hooks were removed."""
    _hooks.pop(optimizer, None)
    while not _hooks and _unwatched:
        parent, (step, watched) = _unwatched.popitem()
        if vars(parent)["step"] is watched:  # not wrapped since
            parent.step = step  # type: ignore[attr-defined]


def _watched(step: Any) -> Any:
    @functools.wraps(step)
    def watched(*args: Any, **kwargs: Any) -> Any:
        hooks = _hooks.get(args[0])
        if hooks is None:
            return step(*args, **kwargs)
        args, kwargs = hooks.start(args[0], args, kwargs) or (args, kwargs)
        result = step(*args, **kwargs)
        hooks.end()
        return result

    return watched
