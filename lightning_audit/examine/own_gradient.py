"""The gradient of one sample at the present weights, without a trace in the user's training."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch


@contextlib.contextmanager
def undisturbed(module: torch.nn.Module, *, hooks: bool = False) -> Iterator[None]:
    """Run passes through a module that leave it, and every global generator, as they were.

    What the module logs is dropped, and buffers such as running statistics are put back. The mode
    of the modules is left, so that the passes compute what training does.

    Args:
        module: the user's module.
        hooks: whether Opacus' hooks are on, which fill in per-sample gradients.
    """
    devices = {p.device.index or 0 for p in module.parameters() if p.device.type == "cuda"}
    python, numpy = random.getstate(), np.random.get_state()  # the global one
    with (
        torch.random.fork_rng(devices=sorted(devices)),
        torch.enable_grad(),
        contextlib.nullcontext() if hooks else _hooks_off(module),
        _silent(module),
        _same_buffers(module),
    ):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


@contextlib.contextmanager
def _hooks_off(module: torch.nn.Module) -> Iterator[None]:
    """Turn off Opacus' hooks, whether a module of Opacus is around the user's or not."""
    owners: dict[int, Any] = {}
    for part in module.modules():
        hooks = [*part._forward_hooks.values(), *part._backward_hooks.values()]
        # A partial's function is bound to the owner of the hooks.
        for hook in (getattr(hook, "func", hook) for hook in hooks):
            owner = getattr(hook, "__self__", None)
            if hasattr(owner, "disable_hooks"):
                owners[id(owner)] = owner
    before = [(owner, owner.hooks_enabled) for owner in owners.values()]
    for owner, _ in before:
        owner.disable_hooks()
    try:
        yield
    finally:
        for owner, enabled in before:
            owner.hooks_enabled = enabled


@contextlib.contextmanager
def _silent(module: torch.nn.Module) -> Iterator[None]:
    """Drop what a LightningModule logs."""
    names = [name for name in ("log", "log_dict") if hasattr(module, name)]
    own = {name: vars(module)[name] for name in names if name in vars(module)}
    vars(module).update(dict.fromkeys(names, _drop))
    try:
        yield
    finally:
        for name in names:
            del vars(module)[name]
        vars(module).update(own)


def _drop(*_: Any, **__: Any) -> None:
    """Log nothing."""


@contextlib.contextmanager
def _same_buffers(module: torch.nn.Module) -> Iterator[None]:
    """Put every buffer back, also those that a pass replaces."""
    kept = [
        (part, name, buffer, buffer.clone())
        for part in module.modules()
        for name, buffer in part._buffers.items()
        if buffer is not None
    ]
    try:
        yield
    finally:
        with torch.no_grad():
            for part, name, buffer, value in kept:
                part._buffers[name] = buffer
                buffer.copy_(value)


@dataclass(frozen=True)
class DenseDirection:
    """A unit vector over all trained parameters.

    Args:
        parts: its entries, one tensor for each parameter.
        norm: norm of the gradient whose direction it is.
    """

    parts: tuple[torch.Tensor, ...]
    norm: float

    @torch.no_grad()
    def product(self, grads: Sequence[torch.Tensor | None]) -> float:
        """Inner product with a gradient, one tensor for each parameter; NaN where one is None."""
        held = [grad for grad in grads if grad is not None]
        if len(held) < len(grads):
            return float("nan")
        products = [
            torch.dot(part.flatten().to(grad), grad.flatten()).double()
            for part, grad in zip(self.parts, held, strict=True)
        ]
        return float(torch.stack(products).sum())

    @torch.no_grad()
    def take_out(self, tensors: Sequence[torch.Tensor | None], amount: float) -> None:
        """Subtract ``amount`` times the direction from tensors, one for each; None is left out."""
        for part, tensor in zip(self.parts, tensors, strict=True):
            if tensor is not None:
                tensor.sub_(part.to(tensor).view_as(tensor), alpha=amount)


def own_direction(
    loss: torch.Tensor, params: Sequence[torch.nn.Parameter]
) -> DenseDirection | None:
    """The direction of the gradient of one sample's loss.

    Returns:
        The direction; None where the gradient is zero or not finite, and has none.
    """
    found = torch.autograd.grad(loss, list(params), allow_unused=True)
    parts = [torch.zeros_like(p) if g is None else g for g, p in zip(found, params, strict=True)]
    # In double precision: the square of an oversized entry may not fit into single precision.
    norm = float(torch.stack([part.double().norm() for part in parts]).norm())
    if not np.isfinite(norm) or norm == 0.0:
        return None
    return DenseDirection(tuple(part.detach() / norm for part in parts), norm)
