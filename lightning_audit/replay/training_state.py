"""The state that a training step may change, saved before a replay and restored after it.

Saved is all that can be reached from the module, its optimizers, schedulers and callbacks: tensors
(parameters, buffers, gradients, per-sample gradients, optimizer states), containers, attributes of
objects, variables in closures, attributes of the user's own classes, plain values, containers and
generators among the global variables of their modules, and every random number generator, including
the global ones. Loaders, data sets, loggers and the Trainer are not followed: a replay does not
touch them. An iterator cannot be restored: if the training holds one, no step is replayed.
"""

from __future__ import annotations

import functools
import io
import random
import sys
import threading
import types
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from lightning_audit.replay.own_entropy import OwnEntropy
from lightning_audit.replay.put_back import (
    Generator,
    GlobalGenerators,
    PutBack,
    generator_mark,
    generator_state,
    refill,
    refill_dict,
    same_bits,
    seed_generator,
    set_atoms,
    set_grad,
    set_slot,
)
from lightning_audit.taps.boundary import attempt, raised_in_audit

#: Bytes for tensors that neither are parameters nor belong to one.
_BESIDE = 2**28

#: Largest lengths of a global container and of a container in it that are saved.
_LONG, _SHORT = 10_000, 100
_GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
_ATOMS = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
_NOT_FOLLOWED = (
    type,
    types.ModuleType,
    threading.Thread,
    io.IOBase,
    DataLoader,
    Dataset,
    Sampler,
)
#: Packages whose objects are not saved; objects of the user's subclasses are.
_FOREIGN = (
    "pytorch_lightning.trainer",
    "pytorch_lightning.loggers",
    "pytorch_lightning.strategies",
    "pytorch_lightning.accelerators",
    "pytorch_lightning.loops.fetchers",
    "lightning.pytorch.trainer",
    "lightning.pytorch.loggers",
    "lightning.pytorch.strategies",
    "lightning.pytorch.accelerators",
    "lightning_fabric",
    "lightning.fabric",
    "lightning_audit",
    "logging",
)
#: The selftest's trainings are saved like a user's.
_OWN_TRAININGS = "lightning_audit.testing"
#: Packages whose classes hold no state of the user's training.
_LIBRARIES = ("torch", "pytorch_lightning", "lightning", "opacus", "builtins", "numpy", "abc")


class CannotKeep(Exception):
    """A training's state cannot be saved; the message says why."""


class TrainingState:
    """The state of a training at one moment.

    Args:
        roots: the objects that a step may change: module, optimizers, schedulers, callbacks.
        not_followed: objects that are not saved.
        room: largest number of bytes for the copies; None for no limit.
        iterators: whether iterators are ignored; they keep their later position.

    Raises:
        CannotKeep: the copies would need more memory, or the training holds an iterator.
    """

    def __init__(
        self,
        roots: Iterable[object],
        not_followed: Iterable[object] = (),
        room: int | None = None,
        *,
        iterators: bool = False,
    ) -> None:
        #: What could not be restored, as text.
        self.lost: list[str] = []
        #: The training's own generators, in the order in which they were found.
        self.generators: list[Generator] = []
        self._room, self._iterators = room, iterators
        self._known: dict[int, object] = {id(each): each for each in not_followed}
        self._tensors: list[tuple[torch.Tensor, torch.Tensor]] = []
        #: Generators that other threads may draw from, and the entropy of a replay.
        self.shared, self.entropy = GlobalGenerators(), OwnEntropy()
        self._back: list[PutBack] = []
        todo: deque[object] = deque(roots)
        while todo:
            todo.extend(self._keep(todo.popleft()))

    def put_back(self) -> None:
        """Restore the saved state; may be called many times."""
        with torch.no_grad():
            for tensor, value in self._tensors:
                if tensor.shape != value.shape:  # so have all tensors that share its memory
                    self._lose(f"a tensor of shape {tuple(value.shape)} has another shape now")
                elif not same_bits(tensor, value):
                    tensor.copy_(value)
        failed: Exception | None = None
        for put in self._back:
            try:
                put()
            except Exception as error:
                if raised_in_audit(error) and not isinstance(error, AttributeError | TypeError):
                    failed = error
                    attempt(put)
                else:  # an attribute that cannot be set
                    self._lose(f"{type(error).__name__}")
        self.shared.put_back()
        if failed is not None:
            raise failed

    def _lose(self, what: str) -> None:
        if what not in self.lost:
            self.lost.append(what)

    def seed(self, number: int) -> None:
        """Seed every generator, including the training's own, with ``number``."""
        self.shared.seed(number)
        self.entropy.seed(number + 15_485_863)
        for place, generator in enumerate(self.generators, start=1):
            seed_generator(generator, number + 7919 * place)

    def mark(self) -> int:
        """Return the state of all generators as one number; equal after equally many draws."""
        own = map(generator_mark, self.generators)
        return hash((self.shared.mark(), self.entropy.mark(), *own))

    # ------------------------------------------------------------------ one object

    def _keep(self, item: object) -> Iterator[object]:
        """Save an object, and yield the objects to save with it."""
        if isinstance(item, _ATOMS) or id(item) in self._known:
            return
        self._known[id(item)] = item  # held, so that its id is not reused
        match item:
            case torch.Tensor():
                yield from self._keep_tensor(item)
            case random.SystemRandom():
                """It has no state; `OwnEntropy` replaces its entropy in a replay."""
            case _ if isinstance(item, _GENERATORS):
                self.generators.append(item)
                self._back.append(generator_state(item))
            case Iterator() if not isinstance(item, (io.IOBase, *weakref.ProxyTypes)):
                if self._iterators:
                    return
                raise CannotKeep(
                    f"the training holds an iterator ({type(item).__name__}), which cannot be "
                    "restored; hold its iterable and an index instead"
                )
            case np.ndarray():
                self._keep_array(item)
            case dict() | list() | set() | deque():
                yield from self._keep_container(item)
            case tuple() | frozenset():
                yield from item
            case functools.partial():
                yield from (item.func, *item.args, *item.keywords.values())
            case types.MethodType():
                yield from (item.__self__, item.__func__)
            case types.FunctionType():
                if not _is_foreign(item.__module__ or ""):
                    yield from self._keep_cells(item.__closure__ or ())
            case _ if not isinstance(item, _NOT_FOLLOWED) and not _is_foreign(
                type(item).__module__
            ):
                yield from self._keep_object(item)

    def _keep_tensor(self, tensor: torch.Tensor) -> Iterator[object]:
        if tensor.is_inference() or tensor.layout != torch.strided or tensor.device.type == "meta":
            return
        if getattr(tensor, "_processed", False):
            # Per-sample gradients that Opacus has clipped and does not use again: they are large,
            # and nothing writes into them.
            return
        self._take_room(tensor.numel() * tensor.element_size())
        self._tensors.append((tensor, tensor.detach().clone()))
        if tensor.is_leaf:
            self._back.append(functools.partial(set_grad, tensor, tensor.grad))
            yield tensor.grad
        yield from self._keep_attributes(tensor)

    def _take_room(self, size: int) -> None:
        if self._room is None:
            return
        self._room -= size
        if self._room < 0:
            raise CannotKeep(
                "the state of the training does not fit into memory a second time, or holds more "
                "than parameters, gradients and optimizer states; keep data in a Dataset"
            )

    def _keep_array(self, array: np.ndarray) -> None:
        if not array.flags.writeable:
            return
        self._take_room(array.nbytes)
        value = array.copy()
        self._back.append(functools.partial(np.copyto, array, value))

    def _keep_container(self, held: Any) -> Iterator[object]:
        if isinstance(held, dict):
            keys, values = list(held), list(held.values())
            self._back.append(functools.partial(refill_dict, held, keys, values))
            yield from values
        else:
            items = list(held)
            self._back.append(functools.partial(refill, held, items))
            yield from items

    def _keep_cells(self, cells: tuple[types.CellType, ...]) -> Iterator[object]:
        for cell in cells:
            try:
                value = cell.cell_contents
            except ValueError:  # not bound yet
                continue
            self._back.append(functools.partial(setattr, cell, "cell_contents", value))
            yield value

    def _keep_object(self, item: object) -> Iterator[object]:
        yield from self._keep_attributes(item)
        for kind in type(item).__mro__:
            if kind.__module__.partition(".")[0] not in _LIBRARIES:
                # A user's object changes containers of its class in place.
                yield from (v for v in vars(kind).values() if isinstance(v, dict | list | set))
                self._back.append(set_atoms(dict(vars(kind)), kind))
                yield from self._keep_globals(sys.modules.get(kind.__module__))
                for name in vars(kind).get("__slots__", ()):
                    if isinstance(name, str) and hasattr(item, name):
                        value = getattr(item, name)
                        self._back.append(functools.partial(set_slot, item, name, value))
                        yield value

    def _keep_globals(self, module: types.ModuleType | None) -> Iterator[object]:
        """Save the variables of the user's module that its code may change."""
        where = getattr(module, "__file__", None) or ""
        if module is None or id(module) in self._known or "site-packages" in where:
            return
        self._known[id(module)] = module
        held = {n: v for n, v in vars(module).items() if not n.startswith("__")}
        self._back.append(set_atoms(held, module))
        for value in held.values():
            if isinstance(value, _GENERATORS):
                yield value
            elif isinstance(value, dict | list | set | deque) and len(value) <= _LONG:
                for inner in self._keep_container(value):
                    if isinstance(inner, dict | list | set | deque) and len(inner) <= _SHORT:
                        for _ in self._keep_container(inner):
                            """Not followed any further: these may be the whole data set."""

    def _keep_attributes(self, item: object) -> Iterator[object]:
        attributes = getattr(item, "__dict__", None)
        if isinstance(attributes, dict):
            yield from self._keep_container(attributes)


def room_for(params: Iterable[torch.nn.Parameter], optimizers: Iterable[Any]) -> int:
    """Return the largest number of bytes for the copy of a training's state.

    Enough for parameters, one batch's gradients and optimizer states, plus 256 MiB; at most half of
    a GPU's free memory.

    Args:
        params: of the module.
        optimizers: of the training.
    """
    params = list(params)
    tensors: list[Any] = [*params, *(p.grad for p in params)]
    for p in params:
        own = [getattr(p, name, None) for name in ("grad_sample", "summed_grad")]
        tensors += [each for o in own for each in (o if isinstance(o, list) else [o])]
    tensors += [held for o in optimizers for state in o.state.values() for held in _values(state)]
    wanted = sum(t.numel() * t.element_size() for t in tensors if isinstance(t, torch.Tensor))
    devices = {p.device for p in params if p.device.type == "cuda"}
    return min([wanted + _BESIDE, *(_free_memory(device) // 2 for device in devices)])


def _values(state: Any) -> list[Any]:
    return list(state.values()) if isinstance(state, dict) else []


def _free_memory(device: torch.device) -> int:
    """Return the free bytes of a device, including those that torch's allocator caches."""
    held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0]) + held


def _is_foreign(module: str) -> bool:
    return module.startswith(_FOREIGN) and not module.startswith(_OWN_TRAININGS)
