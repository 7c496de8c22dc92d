"""The events of a plain loop: its batches, its passes over the loader, its loss of ghost clipping.

Nothing is put on the user's objects. Python looks up ``__iter__`` on the class, and Opacus' batch
memory manager trains on a new loader over the same sampler: so three methods of classes are
replaced while an audit is attached, and put back when the last one ends.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from typing import Any, TypeAlias

import torch
from opacus.utils.adaptive_clipping.adaptive_clipping_utils import (
    DPTensorFastGradientAdaptiveClipping,
)
from opacus.utils.batch_memory_manager import BatchSplittingSampler
from opacus.utils.fast_gradient_clipping_utils import DPTensorFastGradientClipping
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils import _pytree
from torch.utils.data import DataLoader

from lightning_audit._validate import end_at_user
from lightning_audit.hooks.boundary import entry
from lightning_audit.hooks.sampler_tap import unwatched
from lightning_audit.replay.fork import ReachesOut
from lightning_audit.results.audit_report import OF_VERDICTS


def loss_in_backward() -> Any:
    """Return the tensor whose backward pass runs; None if no frame of this thread shows it."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code is not torch.Tensor.backward.__code__:
        frame = frame.f_back
    return None if frame is None else frame.f_locals.get("self")


def forward_hooks(
    running: Callable[[], torch.nn.Module | None],
    own: Collection[int],
    before: Callable[..., None],
    after: Callable[..., None],
    reads: Any,
) -> list[Any]:
    """Hook on outermost forward passes; return the handles.

    The hooks are of all modules: a module's own would be copied and saved with the user's module.

    Args:
        running: returns the outermost module of the pass that runs; None if none does.
        own: identities of the modules that are trained.
        before: called with a module of these that trains, and all that it is given.
        after: called with the outputs of the outermost module.
        reads: what the loop reads, notified of other modules' passes without gradients.
    """
    evaluates = entry(reads.evaluates)

    def given(args: Any) -> tuple[Any, ...]:
        # A hook of all modules gets no keyword arguments; the frame that calls it has them.
        return (*args, *(sys._getframe(2).f_locals.get("kwargs") or {}).values())

    def begins(module: torch.nn.Module, args: Any) -> None:
        if torch.compiler.is_compiling() or running() is not None:
            return  # in a compiled module a hook is no graph break
        if not module.training or not torch.is_grad_enabled():
            if reads.open:
                evaluates(given(args))
        elif id(module) in own:
            before(module, given(args))

    def ends(module: torch.nn.Module, _: Any, output: Any) -> None:
        if not torch.compiler.is_compiling() and module is running():
            after(output)

    return [register_module_forward_pre_hook(begins), register_module_forward_hook(ends)]


#: An audit whose methods are called at the events of its loop: ``follows(loader)`` (whether this
#: training's batches come from it), ``starts_pass(loader)``, ``asks()`` (nothing is trained on the
#: last batch any more), ``fetched(batch, count)``, which returns the batch to train on, with the
#: pass's `PassCount`, ``ends_pass(count)``; ``clips(loss)`` (whether a loss of ghost clipping is
#: this training's), ``before_ghost(loss)`` and ``after_ghost()`` around its two backward passes.
Listener: TypeAlias = Any


class PassCount:
    """Count of one pass over a loader: which batches were fetched, trained on, and left out."""

    def __init__(self) -> None:
        #: Batches that were fetched and may be trained on; whether the loader has no more.
        self.ahead, self.over = 0, False
        #: Whether a batch was trained on, and whether an empty one was left out.
        self.trained = self.left_out_empty = False
        # Number of empty batches; whether the last one is empty and not trained on.
        self._empty, self._waits = 0, False
        # Others since one was trained on; how often each number was before one, but for the first.
        self._since, self._gaps = 0, Counter[int]()
        # Known to be left out, and left out unless they were fetched ahead.
        self._passed = self._unsure = 0

    def fetch(self, *, empty: bool, trains: bool) -> None:
        """Count a batch; one that is fetched while the model does not train replaces the others."""
        self.ahead = self.ahead + 1 if trains else 1
        self.left_out_empty |= self._waits and self.trained
        self._waits = empty
        self._empty += empty
        self._since += not empty

    def train(self, passed: int | None) -> None:
        """Count that a batch is trained on.

        Args:
            passed: number of batches that were fetched before it, and are left out; None if it is
                unknown which batch it is.
        """
        gap = self._since if passed is None else passed + 1
        if self.trained:
            self._gaps[gap] += 1
            self._unsure += gap - 1 if passed is None else 0
        self._passed, self.ahead = self._passed + (passed or 0), self.ahead - 1 - (passed or 0)
        self.trained, self._since, self._waits = True, 0, False

    @property
    def left_out(self) -> int:
        """Number of batches that were not trained on; 0 if one in k was, as by its number."""
        if len(self._gaps.keys() - {0}) < 2:
            return 0
        rest = self.ahead if self.over else self._unsure
        return max(self._passed + max(rest, 0) - self._empty, 0)


class Batches:
    """The iterator of a followed loader.

    Args:
        inner: yields the batches.
        listener: is called at their events.
        count: of this pass; None if no loader draws the batches.
    """

    def __init__(
        self, inner: Iterator[Any], listener: Listener, count: PassCount | None = None
    ) -> None:
        self._inner, self._listener, self._count = inner, listener, count

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> Any:
        if self._listener._replays:
            raise ReachesOut("the step fetches another batch")
        try:
            self._listener._asks()
            try:
                batch = next(self._inner)
            except StopIteration:
                self._listener._ends_pass(self._count)
                raise
        except OF_VERDICTS as error:
            end_at_user(error)
            raise
        return self._listener._fetched(batch, self._count)

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
        count: of the pass; None if no loader drew it.
    """

    def __init__(self, batch: Any, count: PassCount | None) -> None:
        leaves, self._kind = _pytree.tree_flatten(batch)
        #: The pass, and whether the batch holds no record.
        tensors = [len(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.dim()]
        self.count, self.empty = count, bool(tensors) and not any(tensors)
        self._leaves = [
            weakref.ref(leaf) if isinstance(leaf, torch.Tensor) else lambda leaf=leaf: leaf
            for leaf in leaves
        ]

    def among(self, args: Any) -> bool:
        """Return whether a tensor of the batch, or a view of all of it, is among the arguments."""
        given = [_memory(leaf) for leaf in _pytree.tree_leaves(args)]
        return any(
            isinstance(leaf := held(), torch.Tensor) and _memory(leaf) in given
            for held in self._leaves
        )

    def batch(self) -> Any:
        """Return the batch; None if it is no longer held."""
        leaves = [leaf() for leaf in self._leaves]
        gone = any(leaf is None for leaf in leaves)
        return None if gone else _pytree.tree_unflatten(leaves, self._kind)


def _memory(leaf: Any) -> tuple[int, int]:
    """Return where a tensor lies in memory, or what it is, and its number of entries."""
    try:
        return leaf.data_ptr() or id(leaf), leaf.numel()
    except (AttributeError, RuntimeError, NotImplementedError):  # no tensor, sparse, under vmap
        return id(leaf), -1


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
        followed = [one for one in listeners if one._follows(loader)]
        for one in followed:
            one._starts_pass(loader)
        batches = own(loader)
        for one in followed:
            batches = one._around(batches)
        return batches

    return iterate


def _clips(own: Any, listeners: list[Listener]) -> Any:
    def backward(loss: Any, *args: Any, **kwargs: Any) -> Any:
        concerned = [one for one in listeners if one._clips(loss)]
        for one in concerned:
            one._before_ghost(loss)
        result = own(loss, *args, **kwargs)
        for one in concerned:
            one._after_ghost()
        return result

    return backward


_HOOKS = (
    _ClassHook(DataLoader, "__iter__", _iterates),
    _ClassHook(DPTensorFastGradientClipping, "backward", _clips),
    _ClassHook(DPTensorFastGradientAdaptiveClipping, "backward", _clips),
)


class Listening:
    """Registration of a listener, until it is removed."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        try:
            for hook in _HOOKS:
                hook.add(listener)
        except BaseException:
            self.remove()
            raise

    def remove(self) -> None:
        """Unregister the listener; the classes get their own methods back after the last one."""
        for hook in _HOOKS:
            hook.remove(self._listener)


def listeners() -> list[Listener]:
    """Return the listeners that are registered."""
    return list(_HOOKS[0].listeners)
