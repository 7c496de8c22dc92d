"""Puts single things of a training back: tensors, containers, attributes, generators."""

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
#: Values that are changed by giving a name another one.
_PLAIN = (bool, int, float, complex, str, bytes, type(None))


def set_atoms(held: Mapping[str, Any], owner: object) -> PutBack:
    """What gives a module or a class its plain values back.

    Args:
        held: its variables.
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
    """Whether two tensors of one shape are equal; NaN equals nothing, and is copied."""
    return one.shape == other.shape and bool(torch.equal(one, other))


def set_grad(tensor: torch.Tensor, grad: torch.Tensor | None) -> None:
    """Give a tensor its gradient back."""
    if tensor.grad is not grad:
        tensor.grad = grad


def set_slot(item: object, name: str, value: object) -> None:
    """Give a slot of an object its value back."""
    if getattr(item, name, None) is not value:
        setattr(item, name, value)


def refill_dict(held: dict[Any, Any], keys: list[Any], values: list[Any]) -> None:
    """Give a dictionary back what it held, in its order."""
    values_stay = len(held) == len(keys) and all(map(operator.is_, held.values(), values))
    if values_stay and all(map(operator.is_, held, keys)):
        return
    # Not its own methods: `Counter.update` counts, and a user's class may do anything.
    base: Any = OrderedDict if isinstance(held, OrderedDict) else dict
    base.clear(held)
    for key, value in zip(keys, values, strict=True):
        base.__setitem__(held, key, value)


def refill(held: Any, items: list[Any]) -> None:
    """Give a container back what it held; one that holds it still is left alone."""
    if len(held) == len(items) and all(map(operator.is_, held, items)):
        return
    held.clear()
    held.update(items) if isinstance(held, set) else held.extend(items)


def global_generators() -> PutBack:
    """What sets the generators of torch, numpy and Python to where they are now."""
    own, numpy, python = torch.get_rng_state(), np.random.get_state(), random.getstate()
    devices = torch.cuda.get_rng_state_all() if uses_cuda() else []

    def put_back() -> None:
        torch.set_rng_state(own)
        np.random.set_state(numpy)
        random.setstate(python)
        if devices:
            torch.cuda.set_rng_state_all(devices)

    return put_back


def generator_state(generator: Any) -> PutBack:
    """What sets a generator of random numbers to where it is now."""
    if isinstance(generator, torch.Generator):
        state = generator.get_state()
        return lambda: _discard(generator.set_state(state))
    if isinstance(generator, np.random.RandomState):
        return functools.partial(generator.set_state, generator.get_state())
    bits = generator.bit_generator
    return functools.partial(setattr, bits, "state", bits.state)


def uses_cuda() -> bool:
    """Whether this process computes on GPUs."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def _discard(_: object) -> None:
    """Give nothing back."""
