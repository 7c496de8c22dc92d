"""Hooks around methods of optimizers and around their steps."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from lightning_audit.hooks.boundary import Handles, around, entry, nothing

# --- Wraps one optimizer method with pre and post hooks.


class Installed:
    """A callable that replaces a method of one object until it is removed.

    Args:
        owner: the object, or a class.
        name: name of the method.
        hook: the callable, which calls the method.
    """

    def __init__(self, owner: object, name: str, hook: Callable[..., Any]) -> None:
        self._owner: Any = owner
        self._name, self._hook = name, hook
        #: What the object itself held by this name; None if its class alone does.
        self.earlier: Any = vars(owner).get(name)
        vars(hook)["hook"] = self
        #: Whether the callbacks run; a wrapper around the hook may outlive the audit.
        self.armed = True
        self._handles = Handles()
        self._handles.append(self)
        setattr(owner, name, hook)

    def remove(self) -> None:
        """Remove the hook; if another hook wraps it, disable it until that one is removed."""
        self.armed = False
        self._handles.forget()
        if vars(self._owner).get(self._name) is not self._hook:
            return
        delattr(self._owner, self._name)
        earlier = self.earlier
        while isinstance(below := getattr(earlier, "hook", None), Installed) and not below.armed:
            earlier = below.earlier
        if earlier is not None:
            setattr(self._owner, self._name, earlier)
        self._hook = nothing  # no cycle, which would hold what the callbacks hold until collected


class MethodHook(Installed):
    """Pre and post hooks on a method of one object.

    Lightning's hooks run only for steps that Lightning itself takes: not in manual optimization
    with the raw optimizer.

    Args:
        owner: the object; an override in its class is wrapped unchanged.
        name: name of the method.
        before: called before the method.
        after: called after the method.
        otherwise: called after the method if the audit has failed.
        shown: whether the callbacks get the arguments of `around`'s.
    """

    def __init__(
        self,
        owner: object,
        name: str,
        before: Callable[..., Any] = nothing,
        after: Callable[..., Any] = nothing,
        otherwise: Callable[..., Any] = nothing,
        *,
        shown: bool = False,
    ) -> None:
        hook = around(
            getattr(owner, name),
            before if shown else lambda *_, **__: before(),
            after if shown else lambda *_, **__: after(),
            otherwise if shown else lambda *_, **__: otherwise(),
            armed=partial(getattr, self, "armed"),
        )
        super().__init__(owner, name, hook)


class Retry(Installed):
    """Hook on a method of the user's that is called again if it raises.

    Args:
        owner: the object.
        name: name of the method.
        hold: called before the method; returns what ``again`` needs, None for no second call.
        again: called with that and the exception; returns why the method cannot be called again,
            which the exception is raised with, or empty.
    """

    def __init__(
        self,
        owner: object,
        name: str,
        hold: Callable[[], Any],
        again: Callable[[Any, Exception], str],
    ) -> None:
        own, begin, retry = getattr(owner, name), entry(hold), entry(again)

        def called(*args: Any, **kwargs: Any) -> Any:
            held = begin() if self.armed else None
            try:
                return own(*args, **kwargs)
            except Exception as error:
                if held is None:
                    raise
                why_not = retry(held, error)
                if why_not:
                    error.add_note(why_not)
                if why_not != "":  # None after a failure of the audit
                    raise
            return own(*args, **kwargs)

        super().__init__(owner, name, called)


# --- Hooks around the steps of a torch optimizer.


class StepHooks:
    """Calls back when a step starts and when it ends.

    Args:
        optimizer: the innermost optimizer.
        begin: called when a step starts; returns the number of nested steps, including it.
        at_update: called with that number when the step's gradients are computed.
        end: called when a step ends.
        otherwise: called instead of ``at_update`` after the audit has failed.
        skip: called instead of ``end`` after the audit has failed.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        begin: Callable[[], int],
        at_update: Callable[[int], None],
        end: Callable[[], None],
        otherwise: Callable[[int], None] = nothing,
        skip: Callable[[], None] = nothing,
    ) -> None:
        self._optimizer = optimizer
        self._begin_step, self._at_update, self._otherwise = begin, at_update, otherwise
        #: Whether the callbacks run.
        self.armed = True
        #: Level of a step that has begun and whose gradients are not computed; else 0.
        self._level = 0
        self.start = entry(self._if_armed(self._start), self._if_armed(self._start_failed))
        self.end = entry(self._if_armed(lambda *_: end()), self._if_armed(lambda *_: skip()))
        self._handles = Handles()
        self._handles.append(optimizer.register_step_pre_hook(self.start))
        self._handles.append(optimizer.register_step_post_hook(self.end))

    def _if_armed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *given: call(*given) if self.armed else None

    def _start(self, *given: Any) -> Any:
        """Call back at the start of a step."""
        self._level = self._begin_step()
        return self._begin(self._level, self._at_update, given)

    def _start_failed(self, *given: Any) -> Any:
        """Call ``otherwise`` for a step that starts, or has started: the audit has failed."""
        return self._begin(self._level or self._begin_step(), self._otherwise, given)

    def _begin(self, level: int, at_update: Callable[[int], None], given: tuple[Any, ...]) -> Any:
        at_update(level)
        self._level = 0

    def remove(self) -> None:
        """Unregister the hooks."""
        self._handles.remove()


class ClosureHooks(StepHooks):
    """Step hooks for gradients that a closure, or the step of a parent class, computes.

    If an optimizer's class overrides ``step``, the steps of its parents call back as well. If a
    closure is given, ``at_update`` is called each time that it returns.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, *calls: Callable[..., Any]) -> None:
        super().__init__(optimizer, *calls)
        if not is_torchs(steps_of(type(optimizer))[0]):
            self._handles.append(_Parents(optimizer))
            _watch_parents(optimizer, self)

    def _begin(self, level: int, at_update: Callable[[int], None], given: tuple[Any, ...]) -> Any:
        """Call ``at_update``, or return the step's arguments with a closure that does."""
        observed = with_closure(given, partial(at_update, level), partial(self._otherwise, level))
        if observed is None:
            return super()._begin(level, at_update, given)
        self._level = 0
        return observed


def with_closure(
    given: tuple[Any, ...], after: Callable[[], None], otherwise: Callable[[], None] = nothing
) -> tuple[Any, Any] | None:
    """Return the arguments of a step with a closure that calls back; None without a closure.

    Args:
        given: what a step's pre-hook gets: the optimizer, positional and other arguments.
        after: called when the closure has run, which computes the gradients.
        otherwise: called instead after the audit has failed.
    """
    _, args, kwargs = given
    closure = args[1] if len(args) > 1 else kwargs.get("closure")
    if closure is None:
        return None
    observed = around(
        closure, after=lambda *_, **__: after(), otherwise=lambda *_, **__: otherwise()
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
        self._optimizer, self._before = optimizer, _hooks.get(optimizer)

    def remove(self) -> None:
        """Remove the hooks; those of the training, within which a replay has its own, come back."""
        if self._before is not None:
            _hooks[self._optimizer] = self._before
            return
        _hooks.pop(self._optimizer, None)
        while not _hooks and _unwatched:  # the last ones were removed
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


# --- Counts steps of optimizers that are not private.

#: Fewest steps, and fewest distinct numbers of records, for rows in proportion to records not to
#: be chance.
_STEPS, _SIZES = 8, 3


@dataclass
class _Rows:
    """Rows on which an optimizer's module is trained, and the numbers of records per batch."""

    now: int = 0
    steps: int = 0
    sizes: set[int] = field(default_factory=set)
    #: Ratios of rows to records.
    ratios: set[float] = field(default_factory=set)

    @property
    def follow_records(self) -> bool:
        """Whether every step trains on the same number of rows per record."""
        enough = self.steps >= _STEPS and len(self.sizes) >= _SIZES
        return enough and len(self.ratios) == 1

    def end_step(self, records: int | None) -> None:
        """Update with a step after a batch of ``records`` records."""
        if records and self.now:
            self.steps += 1
            self.sizes.add(records)
            self.ratios.add(self.now / records)
        self.now = 0

    def watch(self, module: torch.nn.Module) -> Any:
        """Count the rows of the module's outputs that receive a gradient; return the hook."""

        def take(_module: Any, _inputs: Any, output: Any) -> None:
            if isinstance(output, torch.Tensor) and output.requires_grad and output.dim():
                output.register_hook(entry(self._came_back))  # type: ignore[no-untyped-call]

        return module.register_forward_hook(entry(take))

    def _came_back(self, grad: torch.Tensor) -> None:
        self.now += len(grad)


class PlainSteps:
    """Counts the steps that are taken without DP-SGD; exempt ones are counted separately."""

    def __init__(self) -> None:
        #: Number of steps; class of the optimizer that took the last one; number of hidden steps,
        #: from the batch of the first private step on.
        self.count, self.kind, self.unknown = 0, "", 0
        #: Steps of exempt optimizers, by the optimizer's description.
        self.exempt: dict[str, int] = {}
        #: Number of records of the current batch; None if unknown.
        self.records: int | None = None
        #: Rows of exempt optimizers with a known module, by the optimizer's description.
        self.rows: dict[str, _Rows] = {}
        #: Class of the optimizer whose step was refused; function that raises `StepRefused`.
        self.refused = ""
        self.refuse: Callable[[str], None] | None = None
        self._handles = Handles()

    @property
    def follow_records(self) -> tuple[str, ...]:
        """Exempt optimizers that train on a fixed number of rows per record of the batch."""
        return tuple(words for words, rows in self.rows.items() if rows.follow_records)

    def watch(
        self,
        plain: Iterable[tuple[torch.optim.Optimizer, str, torch.nn.Module | None]],
        known: Sequence[Any] = (),
        is_hidden: Callable[[torch.optim.Optimizer], bool] = lambda _: False,
    ) -> None:
        """Count the steps of these optimizers from now on, and of hidden ones.

        Args:
            plain: optimizers that are not private, each with its description if it is exempt (else
                an empty string), and the module with all parameters that it trains, if known.
            known: the optimizers of the training; what wraps one has its parameter groups.
            is_hidden: whether the step that an unknown optimizer took counts.
        """
        self.detach()
        self._handles = Handles()
        for optimizer, words, module in plain:
            take = entry(partial(self._take, words))
            self._handles.append(optimizer.register_step_post_hook(take))
            if words and module is not None:
                self._handles.append(self.rows.setdefault(words, _Rows()).watch(module))
            if not words:
                self._handles.append(optimizer.register_step_pre_hook(entry(self._about_to)))
        look = entry(partial(self._look, known, is_hidden))
        self._handles.append(register_optimizer_step_post_hook(look))

    def _look(self, known: Sequence[Any], is_hidden: Any, optimizer: Any, *_: Any) -> None:
        """Count the step of an unknown optimizer of the process, if it is hidden."""
        unknown = all(optimizer.param_groups is not one.param_groups for one in known)
        if unknown and is_hidden(optimizer):
            self.unknown, self.kind = self.unknown + 1, type(optimizer).__name__

    def _about_to(self, optimizer: Any, *_: Any) -> None:
        """Refuse the first step if `refuse` is set."""
        if self.refuse is not None and not self.count:
            self.refuse(type(optimizer).__name__)

    def _take(self, exempt: str, optimizer: Any, *_: Any) -> None:
        if exempt:
            self.exempt[exempt] = self.exempt.get(exempt, 0) + 1
            if exempt in self.rows:
                self.rows[exempt].end_step(self.records)
            return
        self.count += 1
        self.kind = type(optimizer).__name__

    def detach(self) -> None:
        """Unregister all hooks."""
        self._handles.remove()

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint stores, without the numbers of records, which are private."""
        return {"count": self.count, "kind": self.kind, "exempt": dict(self.exempt)}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore a checkpoint's state."""
        self.count, self.kind = state["count"], state["kind"]
        self.exempt = dict(state["exempt"])
