"""The events of a plain loop: its batches, its passes over the loader, its loss of ghost clipping.

Nothing is put on the user's objects. Python looks up ``__iter__`` on the class, and Opacus' batch
memory manager trains on a new loader over the same sampler: so two methods of classes are replaced
while an audit is attached, and put back when the last one ends.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import torch
from opacus.utils.batch_memory_manager import BatchSplittingSampler
from opacus.utils.fast_gradient_clipping_utils import DPTensorFastGradientClipping
from torch.utils import _pytree
from torch.utils.data import DataLoader

from lightning_audit.hooks.sampler_tap import unwatched

#: Packages whose frames are not the user's.
_LIBRARIES = {*sys.stdlib_module_names, "torch", "opacus", "tqdm", "lightning_audit"}
#: The selftest's trainings are a user's.
_TRAININGS = "lightning_audit.testing"


def users_frame() -> Any:
    """Return the innermost frame of the user's code; None if there is none."""
    frame = sys._getframe(1)
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name.startswith(_TRAININGS) or name.partition(".")[0] not in _LIBRARIES:
            return frame
        frame = frame.f_back  # type: ignore[assignment]
    return None


#: An audit whose methods are called at the events of its loop: ``follows(loader)`` (whether this
#: training's batches come from it), ``starts_pass(loader)``, ``asks()`` (nothing is trained on the
#: last batch any more), ``fetched(batch)``, which returns the batch to train on, ``ends_pass()``;
#: ``clips(loss)`` (whether a loss of ghost clipping is this training's), and ``before_ghost(loss)``
#: and ``after_ghost()`` around its two backward passes.
Listener: TypeAlias = Any


class Batches:
    """The iterator of a followed loader.

    Args:
        inner: yields the batches.
        listener: is called at their events.
    """

    def __init__(self, inner: Iterator[Any], listener: Listener) -> None:
        self._inner, self._listener = inner, listener

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> Any:
        self._listener.asks()
        try:
            batch = next(self._inner)
        except StopIteration:
            self._listener.ends_pass()
            raise
        return self._listener.fetched(batch)

    def __len__(self) -> int:
        return len(self._inner)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_inner":  # while it is copied
            raise AttributeError(name)
        return getattr(self._inner, name)


class Fetched:
    """A batch that a loop fetched and has not trained on, held only while its user holds it.

    Args:
        batch: as the loader yielded it.
    """

    def __init__(self, batch: Any) -> None:
        leaves, self._kind = _pytree.tree_flatten(batch)
        self._leaves = [
            weakref.ref(leaf) if isinstance(leaf, torch.Tensor) else lambda leaf=leaf: leaf
            for leaf in leaves
        ]

    def among(self, args: Any) -> bool:
        """Return whether a tensor of the batch is among these arguments."""
        own = {id(leaf()) for leaf in self._leaves if isinstance(leaf(), torch.Tensor)}
        return any(id(leaf) in own for leaf in _pytree.tree_leaves(args))

    def batch(self) -> Any:
        """Return the batch; None if it is no longer held."""
        leaves = [leaf() for leaf in self._leaves]
        gone = any(leaf is None for leaf in leaves)
        return None if gone else _pytree.tree_unflatten(leaves, self._kind)


def drawn_by(loader: Any) -> Any:
    """Return what draws a loader's logical batches."""
    sampler = unwatched(getattr(loader, "batch_sampler", None))
    if isinstance(sampler, BatchSplittingSampler):
        sampler = unwatched(sampler.sampler)
    return sampler


class _ClassHook:
    """A method of a class, replaced while there are listeners.

    Args:
        owner: the class.
        name: of the method.
        made: returns the replacement, given the class's own method and the list of listeners.
    """

    def __init__(self, owner: type, name: str, made: Callable[[Any, list[Listener]], Any]) -> None:
        self._owner, self._name, self._made = owner, name, made
        self._own: Any = None
        self._replaced: Any = None
        self._lock = threading.Lock()
        self.listeners: list[Listener] = []

    def add(self, listener: Listener) -> None:
        with self._lock:
            if not self.listeners and vars(self._owner)[self._name] is not self._replaced:
                self._own = vars(self._owner)[self._name]
                self._replaced = self._made(self._own, self.listeners)
                setattr(self._owner, self._name, self._replaced)
            self.listeners.append(listener)

    def remove(self, listener: Listener) -> None:
        with self._lock:
            if listener in self.listeners:
                self.listeners.remove(listener)
            # Wrapped by others since, it stays, and calls the class's own method.
            if not self.listeners and vars(self._owner)[self._name] is self._replaced:
                setattr(self._owner, self._name, self._own)
                self._replaced = None


def _iterates(own: Any, listeners: list[Listener]) -> Any:
    def iterate(loader: Any) -> Any:
        followed = [one for one in listeners if one.follows(loader)]
        for one in followed:
            one.starts_pass(loader)
        batches = own(loader)
        for one in followed:
            batches = Batches(batches, one)
        return batches

    return iterate


def _clips(own: Any, listeners: list[Listener]) -> Any:
    def backward(loss: Any, *args: Any, **kwargs: Any) -> Any:
        concerned = [one for one in listeners if one.clips(loss)]
        for one in concerned:
            one.before_ghost(loss)
        result = own(loss, *args, **kwargs)
        for one in concerned:
            one.after_ghost()
        return result

    return backward


_HOOKS = (
    _ClassHook(DataLoader, "__iter__", _iterates),
    _ClassHook(DPTensorFastGradientClipping, "backward", _clips),
)


class Listening:
    """Registration of a listener, until it is removed."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        for hook in _HOOKS:
            hook.add(listener)

    def remove(self) -> None:
        """Unregister the listener; the classes get their own methods back after the last one."""
        for hook in _HOOKS:
            hook.remove(self._listener)


def listeners() -> list[Listener]:
    """Return the listeners that are registered."""
    return list(_HOOKS[0].listeners)
