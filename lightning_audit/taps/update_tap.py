"""Reads the gradient that a plain optimizer's update uses, wherever in its step that is made.

Lightning hands the training step to an optimizer as a closure, so that gradients are made inside
``step``, and an optimizer of the user's own may clip and noise them there too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch

from lightning_audit.layout import FloatArray, IndexArray
from lightning_audit.taps.gradient_tap import GradientTap, Reading

#: Optimizers that are read; parent classes -> (their own step, what stands in its place).
_taps: WeakKeyDictionary[torch.optim.Optimizer, UpdateTap] = WeakKeyDictionary()
_unwatched: dict[type, tuple[Any, Any]] = {}


class UpdateTap(GradientTap):
    """A tap that reads after the closure, in the innermost ``step`` of a class and its parents.

    A step whose code is torch's own is read at once. Where a subclass overrides ``step``, its
    first step shows whether it goes on to its parent's: until then `trial` is true, and no canary
    may be in. If it does not, the tap is `opaque`: nobody can tell what the code does with the
    gradient that was read.

    Args:
        optimizer: the optimizer that updates the parameters.
        before: as the others see `GradientTap`; in a trial it may be called more than once.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        params: Sequence[torch.nn.Parameter],
        coordinates: dict[int, IndexArray],
        before: Callable[[], FloatArray | None],
        after: Callable[[Reading], None],
        lost: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(optimizer, params, coordinates, before, after, lost)
        #: The steps that may run within each other, outermost first.
        self._steps = [s for c in type(optimizer).__mro__ if (s := vars(c).get("step")) is not None]
        own = _is_torchs(self._steps[0])
        self._level: int | None = 1 if own else None
        self._read_at = 0
        self._again = False
        self.opaque = False
        #: Whether the training's code says where its noise is in.
        self.cut_known = False
        self._optimizer = optimizer
        if not own:
            _watch_parents(optimizer, self)

    @property
    def trial(self) -> bool:
        """Whether it is not known yet where the gradient is to be read."""
        return self._level is None and not self.cut_known

    @property
    def inside_step(self) -> bool:
        """Whether the gradient of a step was read, and the update is under way."""
        return self._at_cut or (not self.trial and self._left is not None)

    @torch.no_grad()
    def read_now(self, tensors: Sequence[torch.Tensor | None] | None = None) -> None:
        """See `GradientTap.read_now`; from now on it is known where the gradient is made."""
        super().read_now(tensors)
        self.cut_known = True

    def remove(self) -> None:
        """Take the hooks off."""
        super().remove()
        _unwatch(self._optimizer)

    def reset(self) -> None:
        """Forget a step that broke off between its hooks."""
        super().reset()
        self._read_at, self._again = 0, False

    def _pre(self, *given: Any) -> Any:
        _, args, kwargs = given
        self._depth += 1
        level = self._depth
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            self._arrive(level)
            return None

        def observed(*a: Any, **k: Any) -> Any:
            loss = closure(*a, **k)
            self._arrive(level)
            return loss

        if len(args) > 1:
            return (args[0], observed, *args[2:]), kwargs
        return args, {**kwargs, "closure": observed}

    @torch.no_grad()
    def _arrive(self, level: int) -> None:
        """The gradients of a step at this level are made."""
        if self._at_cut:
            if level == 1 or self._arrived is None:
                self._read_at = 1
                self._arrive_at_update()
            return
        if self.cut_known or self._level not in (None, level):
            return
        if self._level is not None and self._left is not None:
            self._again = True  # the closure runs a second time: which gradient is the step's?
            return
        self._read_at = level
        self._read()

    @torch.no_grad()
    def _post(self, *_: Any) -> None:
        level = self._depth
        self._depth = max(level - 1, 0)
        if self._at_cut:
            if level == 1:  # whatever is done with a release, in whose step, is done
                self._end(trusted=True)
                self._read_at, self._again = 0, False
            return
        if self.cut_known:
            if level == 1:  # its code did not come to the place where the noise is in
                unread = np.full(self._size, np.nan)
                self._after(Reading(unread, unclear=True))
            return
        if level != self._read_at or self._left is None:
            return
        if self._level is None:
            self._level, self.opaque = level, not _is_torchs(self._steps[level - 1])
        again, self._read_at, self._again = self._again, 0, False
        self._end(trusted=not self.opaque, again=again)


def _is_torchs(step: Any) -> bool:
    return str(getattr(step, "__module__", "")).startswith("torch.optim.")


def _watch_parents(optimizer: torch.optim.Optimizer, tap: UpdateTap) -> None:
    """Tell the tap of the steps of parent classes that run no hooks yet.

    torch has a class's step run hooks when the class's first object is made. Doing so here would
    have the hooks of others run twice in a step that goes on to its parent's.
    """
    for parent in type(optimizer).__mro__[1:]:
        step = vars(parent).get("step")
        hooked = getattr(step, "hooked", False) or parent in _unwatched
        if step is not None and parent is not torch.optim.Optimizer and not hooked:
            watched = _watched(step)
            _unwatched[parent] = (step, watched)
            parent.step = watched  # type: ignore[attr-defined]
    _taps[optimizer] = tap


def _unwatch(optimizer: torch.optim.Optimizer) -> None:
    """Give parent classes their steps back, when the last tap is gone."""
    _taps.pop(optimizer, None)
    while not _taps and _unwatched:
        parent, (step, watched) = _unwatched.popitem()
        if vars(parent)["step"] is watched:  # nobody has wrapped it since
            parent.step = step  # type: ignore[attr-defined]


def _watched(step: Any) -> Any:
    @functools.wraps(step)
    def watched(*args: Any, **kwargs: Any) -> Any:
        tap = _taps.get(args[0])
        if tap is None:
            return step(*args, **kwargs)
        args, kwargs = tap._pre(args[0], args, kwargs) or (args, kwargs)
        result = step(*args, **kwargs)
        tap._post()
        return result

    return watched
