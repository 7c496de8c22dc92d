"""Restore single objects of a training: tensors, containers, attributes, generators."""

from __future__ import annotations

import functools
import operator
import random
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

PutBack = Callable[[], None]
Generator = torch.Generator | np.random.Generator | np.random.RandomState | random.Random
#: Types of values that only assignment to a name can change.
_PLAIN = (bool, int, float, complex, str, bytes, type(None))


def set_atoms(held: Mapping[str, Any], owner: object) -> PutBack:
    """Return a function that restores the plain values of a module or a class.

    Args:
        held: the variables of the module or class.
        owner: the module or class.
    """
    plain = {n: v for n, v in held.items() if isinstance(v, _PLAIN) and not n.startswith("__")}

    def put_back() -> None:
        now = vars(owner)
        for name, value in plain.items():
            if now.get(name) is not value:
                setattr(owner, name, value)

    return put_back


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors are equal; tensors with NaN are not."""
    return one.shape == other.shape and bool(torch.equal(one, other))


def set_grad(tensor: torch.Tensor, grad: torch.Tensor | None) -> None:
    """Restore the gradient of a tensor."""
    if tensor.grad is not grad:
        tensor.grad = grad


def set_slot(item: object, name: str, value: object) -> None:
    """Restore a slot of an object."""
    if getattr(item, name, None) is not value:
        setattr(item, name, value)


def refill_dict(held: dict[Any, Any], keys: list[Any], values: list[Any]) -> None:
    """Restore the items of a dictionary, in their order."""
    values_stay = len(held) == len(keys) and all(map(operator.is_, held.values(), values))
    if values_stay and all(map(operator.is_, held, keys)):
        return
    # Not the subclass's methods: `Counter.update` counts, and a user's class may do anything.
    base: Any = OrderedDict if isinstance(held, OrderedDict) else dict
    base.clear(held)
    for key, value in zip(keys, values, strict=True):
        base.__setitem__(held, key, value)


def refill(held: Any, items: list[Any]) -> None:
    """Restore the items of a container, unless it still has the same ones."""
    if len(held) == len(items) and all(map(operator.is_, held, items)):
        return
    held.clear()
    held.update(items) if isinstance(held, set) else held.extend(items)


class GlobalGenerators:
    """The generators of torch, numpy and Python, which all threads of a process share.

    They are restored only if no other thread has drawn from them: otherwise that thread would draw
    the same numbers again.
    """

    def __init__(self) -> None:
        #: Whether another thread has drawn.
        self.shared = False
        self._kept = self._states()
        self._left: list[Any] | None = None

    @staticmethod
    def seed(number: int) -> None:
        """Seed all of them with ``number``."""
        # Not `torch.manual_seed`, which queues calls for absent devices.
        torch.default_generator.manual_seed(number)
        if uses_cuda():
            torch.cuda.manual_seed_all(number)
        np.random.seed(number % 2**32)
        random.seed(number)

    @classmethod
    def mark(cls) -> int:
        """Return their state, as one number."""
        numpy, python, *torchs = cls._states()
        return hash((_numpy_mark(numpy), python, *(t.numpy().tobytes() for t in torchs)))

    @staticmethod
    def _states() -> list[Any]:
        devices = torch.cuda.get_rng_state_all() if uses_cuda() else []
        return [np.random.get_state(), random.getstate(), torch.get_rng_state(), *devices]

    def look(self) -> None:
        """Check whether another thread has drawn since they were restored."""
        self.shared = self.shared or not _same_states(self._states(), self._kept)

    def leave(self) -> None:
        """Mark the end of a replay's draws: later draws are another thread's."""
        self._left = self._states()

    def put_back(self) -> None:
        """Restore their first state, unless another thread has drawn."""
        left, self._left = self._left, None
        if left is not None:
            self.shared = self.shared or not _same_states(self._states(), left)
        if self.shared:
            return
        numpy, python, own, *devices = self._kept
        torch.set_rng_state(own)
        np.random.set_state(numpy)
        random.setstate(python)
        if devices:
            torch.cuda.set_rng_state_all(devices)


def _same_states(one: list[Any], other: list[Any]) -> bool:
    (kind, keys, *place), python, *torchs = one
    (its_kind, its_keys, *its_place), its_python, *its_torchs = other
    return (
        (kind, place, python) == (its_kind, its_place, its_python)
        and bool(np.array_equal(keys, its_keys))
        and all(map(torch.equal, torchs, its_torchs))
    )


def generator_state(generator: Generator) -> PutBack:
    """Return a function that restores a generator's current state."""
    if isinstance(generator, torch.Generator):
        state = generator.get_state()
        return lambda: _discard(generator.set_state(state))
    if isinstance(generator, np.random.RandomState):
        return functools.partial(generator.set_state, generator.get_state())
    if isinstance(generator, random.Random):
        return functools.partial(generator.setstate, generator.getstate())
    bits = generator.bit_generator
    return functools.partial(setattr, bits, "state", bits.state)


def seed_generator(generator: Generator, number: int) -> None:
    """Seed a generator with ``number``."""
    if isinstance(generator, torch.Generator):
        generator.manual_seed(number)
    elif isinstance(generator, np.random.RandomState):
        generator.seed(number % 2**32)
    elif isinstance(generator, random.Random):
        generator.seed(number)
    else:
        bits = generator.bit_generator
        bits.state = type(bits)(number).state


def generator_mark(generator: Generator) -> int:
    """Return a generator's state, as one number."""
    if isinstance(generator, torch.Generator):
        return hash(generator.get_state().numpy().tobytes())
    if isinstance(generator, np.random.RandomState):
        return _numpy_mark(generator.get_state())
    if isinstance(generator, random.Random):
        return hash(generator.getstate())
    return hash(repr(generator.bit_generator.state))


def _numpy_mark(state: Any) -> int:
    kind, keys, *place = state
    return hash((kind, keys.tobytes(), *place))


def uses_cuda() -> bool:
    """Return whether this process has initialized CUDA."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def _discard(_: object) -> None:
    """Return None."""
