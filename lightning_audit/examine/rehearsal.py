"""A pass of ``training_step`` up to the per-sample gradients, that leaves the training as it was.

The user's own code runs, so that what it does to a batch is done. It is broken off where it hands
its per-sample gradients over, or where it would take a step.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch.nn.modules.dropout import _DropoutNd

from lightning_audit.dpsgd.hand_over import diverted
from lightning_audit.dpsgd.opacus import chain, private_optimizer
from lightning_audit.examine.own_gradient import undisturbed

Gradients = TypeVar("Gradients", bound=dict[str, torch.Tensor])

#: Coordinates of the gradient that are kept of each row, spread over all tensors.
_COORDINATES = 20_000
#: Longest container whose contents are kept, too, and largest tensor outside of the parameters.
_LONG, _LARGE = 1_000, 10_000_000
#: Attributes of a parameter during a pass: gradients of the training are out of the way.
_CLEAN = {"grad_sample": None, "summed_grad": None, "_forward_counter": 0}


class _BreakOff(BaseException):
    """Ends ``training_step``; no `Exception`, so that no code of the user's takes it for one."""


@dataclass(frozen=True)
class Pass:
    """What a pass showed.

    Args:
        rows: per-sample gradients at some coordinates, ``[n, coordinates]``; None if there were
            none to see.
        drawn: states of torch's generators at its end.
    """

    rows: torch.Tensor | None
    drawn: tuple[bytes, ...]


class Rehearsal:
    """Passes through a training's step; its code steps ``wrappers`` in the optimizers' place."""

    def __init__(
        self,
        module: torch.nn.Module,
        optimizers: Sequence[Any],
        wrappers: Sequence[Any],
        params: Sequence[torch.nn.Parameter],
    ) -> None:
        self._module = module
        self._params = params
        self._private = next(filter(None, map(private_optimizer, optimizers)), None)
        found = [link for optimizer in optimizers for link in chain(optimizer)]
        self._optimizers = list({id(o): o for o in [*wrappers, *found]}.values())
        self._parts: list[torch.Tensor] = []
        self._records = 0

    def run(self, train: Callable[[], Any], records: int) -> Pass:
        """Run a pass: ``train`` calls ``training_step`` with a batch of so many records."""
        self._parts, self._records = [], records
        module = self._module
        with (
            undisturbed(module, hooks=True),
            _same_parameters(module),
            _same_attributes([*module.modules(), *self._optimizers]),
            diverted(module, self),
        ):
            for optimizer in self._optimizers:
                vars(optimizer)["step"] = self._step
            vars(module)["manual_backward"] = _backward
            for part in module.modules():
                if isinstance(part, _DropoutNd):
                    part.training = False  # the mask of a record that moves would be another one
            with contextlib.suppress(_BreakOff):
                loss = train()
                loss = loss.get("loss") if isinstance(loss, Mapping) else loss
                if not self._parts and isinstance(loss, torch.Tensor) and loss.requires_grad:
                    _backward(loss)
                    self._take([p.grad_sample for p in self._params if hasattr(p, "grad_sample")])
            drawn = _generators(self._params)
        parts, self._parts = self._parts, []
        return Pass(torch.cat(parts) if parts else None, drawn)

    def per_sample(
        self, grads: Gradients, module: torch.nn.Module, root: torch.nn.Module
    ) -> Gradients:
        """Take gradients that are handed over; the pass ends with those of the last record."""
        self._take(list(grads.values()))
        if sum(map(len, self._parts)) >= self._records:
            raise _BreakOff
        return grads

    def rows(self, module: torch.nn.Module, root: torch.nn.Module) -> list[dict[str, torch.Tensor]]:
        """No canary enters a pass."""
        return []

    def released(self, grads: Gradients, module: torch.nn.Module, root: torch.nn.Module) -> None:
        """Nothing is read of a pass."""

    def _step(self, *args: Any, **kwargs: Any) -> None:
        """In the place of an optimizer's step: take Opacus' gradients, and end the pass."""
        for closure in filter(callable, (*args, *kwargs.values())):
            closure()
        self._take([p.grad_sample for p in self._params if hasattr(p, "grad_sample")])
        private = self._private
        if private is None or not private._check_skip_next_step():
            raise _BreakOff
        for p in self._params:
            p.grad_sample = None  # type: ignore[attr-defined]  # a part of a batch that goes on

    @torch.no_grad()
    def _take(self, held: Sequence[Any]) -> None:
        """Keep some coordinates of per-sample gradients."""
        single = [h[0] if isinstance(h, list) and len(h) == 1 else h for h in held]
        tensors = [h for h in single if isinstance(h, torch.Tensor) and h.dim()]
        if len(tensors) < len(held) or len({len(t) for t in tensors}) != 1:
            return
        most = max(_COORDINATES // len(tensors), 8)
        flat = [t.detach().reshape(len(t), -1) for t in tensors if t.numel()]
        kept = [t[:, :: -(-t.shape[1] // most)] for t in flat]
        if kept:
            self._parts.append(torch.cat([t.to(kept[0].device, torch.float64) for t in kept], 1))


def _backward(loss: torch.Tensor, *args: Any, **kwargs: Any) -> None:
    """In the place of ``manual_backward``, which tells the callbacks."""
    loss.backward(*args, **kwargs)  # type: ignore[no-untyped-call]


def _generators(params: Sequence[torch.nn.Parameter]) -> tuple[bytes, ...]:
    devices = sorted({p.device.index or 0 for p in params if p.device.type == "cuda"})
    states = [torch.get_rng_state(), *(torch.cuda.get_rng_state(d) for d in devices)]
    return tuple(state.numpy().tobytes() for state in states)


@contextlib.contextmanager
def _same_parameters(module: torch.nn.Module) -> Iterator[None]:
    """Put values and gradients of the parameters back, and run with none of the gradients."""
    params = list(module.parameters())
    kept = [
        (p, p.detach().clone(), p._version, p.grad, dict(vars(p)), p.requires_grad) for p in params
    ]
    for p in params:
        p.grad = None
        vars(p).update({name: value for name, value in _CLEAN.items() if name in vars(p)})
        vars(p).pop("_current_grad_sample", None)
    try:
        yield
    finally:
        for p, value, version, grad, attributes, trained in kept:
            if p._version != version:
                with torch.no_grad():
                    p.copy_(value)
            p.requires_grad_(trained)
            p.grad = grad
            vars(p).clear()
            vars(p).update(attributes)


@contextlib.contextmanager
def _same_attributes(owners: Sequence[Any]) -> Iterator[None]:
    """Put the attributes of objects back, with the contents of containers and small tensors."""
    kept = [(vars(owner), _kept(vars(owner), depth=3)) for owner in owners]
    try:
        yield
    finally:
        for _, put_back in kept:
            put_back()


def _kept(value: Any, depth: int) -> Callable[[], None]:
    """What puts an object back to what it holds now."""
    if isinstance(value, torch.nn.Parameter):
        return _nothing
    if isinstance(value, torch.Tensor):
        return _kept_tensor(value)
    if isinstance(value, torch.Generator):
        state = value.get_state()
        return lambda: _discard(value.set_state(state))
    if isinstance(value, np.random.Generator):
        drawn = value.bit_generator.state
        return lambda: setattr(value.bit_generator, "state", drawn)
    if not depth or not isinstance(value, dict | list | set | deque):
        return _nothing
    items = list(value.items()) if isinstance(value, dict) else list(value)
    inner = list(value.values()) if isinstance(value, dict) else items
    parts = [_kept(part, depth - 1) for part in inner] if len(items) <= _LONG else []

    def put_back() -> None:
        now = list(value.items()) if isinstance(value, dict) else list(value)
        if len(now) != len(items) or not all(map(_same, now, items)):
            value.clear()
            value.extend(items) if isinstance(value, list | deque) else value.update(items)
        for part in parts:
            part()

    return put_back


def _kept_tensor(tensor: torch.Tensor) -> Callable[[], None]:
    if tensor.numel() > _LARGE or tensor.is_inference():
        return _nothing
    value, version = tensor.detach().clone(), tensor._version

    def put_back() -> None:
        if tensor._version != version:
            with torch.no_grad():
                tensor.copy_(value)

    return put_back


def _same(now: Any, before: Any) -> bool:
    """Whether an item of a container is the one that it was; of a dictionary key and value."""
    if isinstance(now, tuple) and isinstance(before, tuple) and len(now) == len(before) == 2:
        return now[0] is before[0] and now[1] is before[1]
    return now is before


def _nothing() -> None:
    """Nothing is to be put back."""


def _discard(_: Any) -> None:
    """Give nothing back."""
