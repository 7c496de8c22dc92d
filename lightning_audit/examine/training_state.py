"""What a step of a training may change: kept, and put back after a replay.

Kept is whatever can be reached from the module, its optimizers, schedulers and callbacks: tensors
(parameters, buffers, gradients, per-sample gradients, states of optimizers), containers, attributes
of objects, variables that functions enclose, attributes of the user's own classes, and every
generator of random numbers, the global ones among them. Loaders, data sets, loggers and the Trainer
are not followed: a replay does not touch them.
"""

from __future__ import annotations

import functools
import random
import threading
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

#: Largest tensor, in entries, that is copied without being a parameter or belonging to one.
LARGE = 10_000_000

_ATOMS = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
_NOT_FOLLOWED = (
    type,
    types.ModuleType,
    types.GeneratorType,
    threading.Thread,
    DataLoader,
    Dataset,
    Sampler,
)
#: Packages of whose objects nothing is kept; of the user's own subclasses it is.
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
#: Trainings of the selftest are trainings like any other.
_OWN_TRAININGS = "lightning_audit.testing"
#: Packages whose classes hold no state of the user's training.
_LIBRARIES = ("torch", "pytorch_lightning", "lightning", "opacus", "builtins", "numpy", "abc")

_PutBack = Callable[[], None]


class TrainingState:
    """The state of a training at one moment.

    Args:
        roots: the module, optimizers, schedulers, callbacks: whatever a step may change.
        not_followed: objects of which nothing is kept.
    """

    def __init__(self, roots: Iterable[object], not_followed: Iterable[object] = ()) -> None:
        #: What could not be kept, in words.
        self.lost: list[str] = []
        #: Generators that the training holds itself, in the order in which they were found.
        self.generators: list[torch.Generator | np.random.Generator | np.random.RandomState] = []
        self._known: dict[int, object] = {id(each): each for each in not_followed}
        self._tensors: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._back: list[_PutBack] = [_global_generators()]
        todo: deque[object] = deque(roots)
        while todo:
            todo.extend(self._keep(todo.popleft()))

    def put_back(self) -> None:
        """Make the training what it was when this was made; it may be done many times."""
        with torch.no_grad():
            for tensor, value in self._tensors:
                if not _same_bits(tensor, value):
                    tensor.copy_(value)
        for put in self._back:
            put()

    def seed(self, number: int) -> None:
        """Set every generator, the training's own among them, to a state that ``number`` gives."""
        # Not `torch.manual_seed`, which queues calls for devices that are not there.
        torch.default_generator.manual_seed(number)
        if _cuda():
            torch.cuda.manual_seed_all(number)
        np.random.seed(number % 2**32)
        random.seed(number)
        for place, generator in enumerate(self.generators, start=1):
            own = number + 7919 * place
            if isinstance(generator, torch.Generator):
                generator.manual_seed(own)
            elif isinstance(generator, np.random.RandomState):
                generator.seed(own % 2**32)
            else:
                bits = generator.bit_generator
                bits.state = type(bits)(own).state

    # ------------------------------------------------------------------ one object

    def _keep(self, item: object) -> Iterator[object]:
        """Keep an object, and give those that are to be kept with it."""
        if isinstance(item, _ATOMS) or id(item) in self._known:
            return
        self._known[id(item)] = item  # held, so that no other object gets its identity
        match item:
            case torch.Tensor():
                yield from self._keep_tensor(item)
            case torch.Generator() | np.random.Generator() | np.random.RandomState():
                self.generators.append(item)
                self._back.append(_generator(item))
            case random.Random():
                self._back.append(functools.partial(item.setstate, item.getstate()))
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
        of_parameters = isinstance(tensor, torch.nn.Parameter)
        if tensor.numel() > LARGE and not of_parameters:
            version = tensor._version
            self._back.append(functools.partial(self._lose_if_changed, tensor, version))
        else:
            self._tensors.append((tensor, tensor.detach().clone()))
        if tensor.is_leaf:
            self._back.append(functools.partial(_set_grad, tensor, tensor.grad))
            yield tensor.grad
        yield from self._keep_attributes(tensor)

    def _lose_if_changed(self, tensor: torch.Tensor, version: int) -> None:
        if tensor._version != version:
            said = f"a tensor of {tensor.numel():,} entries was changed and cannot be put back"
            if said not in self.lost:
                self.lost.append(said)

    def _keep_array(self, array: np.ndarray) -> None:
        if array.size > LARGE or not array.flags.writeable:
            return
        value = array.copy()
        self._back.append(functools.partial(np.copyto, array, value))

    def _keep_container(self, held: Any) -> Iterator[object]:
        items = list(held.items()) if isinstance(held, dict) else list(held)
        self._back.append(functools.partial(_refill, held, items))
        yield from held.values() if isinstance(held, dict) else items

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
                # What an object of the user's changes of its class, it changes in place.
                yield from (v for v in vars(kind).values() if isinstance(v, dict | list | set))
                for name in vars(kind).get("__slots__", ()):
                    if isinstance(name, str) and hasattr(item, name):
                        value = getattr(item, name)
                        self._back.append(functools.partial(_set_slot, item, name, value))
                        yield value

    def _keep_attributes(self, item: object) -> Iterator[object]:
        attributes = getattr(item, "__dict__", None)
        if isinstance(attributes, dict):
            yield from self._keep_container(attributes)


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of one shape are equal; NaN equals nothing, and is copied."""
    return one.shape == other.shape and bool(torch.equal(one, other))


def _set_grad(tensor: torch.Tensor, grad: torch.Tensor | None) -> None:
    if tensor.grad is not grad:
        tensor.grad = grad


def _set_slot(item: object, name: str, value: object) -> None:
    if getattr(item, name, None) is not value:
        setattr(item, name, value)


def _refill(held: Any, items: list[Any]) -> None:
    """Give a container back what it held; one that holds it still is left alone."""
    if isinstance(held, dict):
        now = list(held.items())
        same = len(now) == len(items) and all(
            a is c and b is d for (a, b), (c, d) in zip(now, items, strict=True)
        )
        if not same:
            held.clear()
            held.update(items)
        return
    now = list(held)
    if len(now) == len(items) and all(a is b for a, b in zip(now, items, strict=True)):
        return
    held.clear()
    held.update(items) if isinstance(held, set) else held.extend(items)


def _global_generators() -> _PutBack:
    """What sets the generators of torch, numpy and Python to where they are now."""
    own, numpy, python = torch.get_rng_state(), np.random.get_state(), random.getstate()
    devices = torch.cuda.get_rng_state_all() if _cuda() else []

    def put_back() -> None:
        torch.set_rng_state(own)
        np.random.set_state(numpy)
        random.setstate(python)
        if devices:
            torch.cuda.set_rng_state_all(devices)

    return put_back


def _generator(generator: Any) -> _PutBack:
    if isinstance(generator, torch.Generator):
        state = generator.get_state()
        return lambda: _discard(generator.set_state(state))
    if isinstance(generator, np.random.RandomState):
        return functools.partial(generator.set_state, generator.get_state())
    bits = generator.bit_generator
    return functools.partial(setattr, bits, "state", bits.state)


def _is_foreign(module: str) -> bool:
    return module.startswith(_FOREIGN) and not module.startswith(_OWN_TRAININGS)


def _cuda() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def _discard(_: object) -> None:
    """Give nothing back."""
