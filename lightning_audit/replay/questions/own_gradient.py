"""The gradient of one sample at the current weights, computed without changing the training."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from lightning_audit.replay.other_threads import training_thread
from lightning_audit.replay.put_back import GlobalGenerators, PutBack
from lightning_audit.taps.boundary import undoing


@contextlib.contextmanager
def undisturbed(module: torch.nn.Module, *, hooks: bool = False) -> Iterator[None]:
    """Run passes through a module without changing it or the global generators.

    What the module logs is dropped, and buffers such as running statistics are restored. The
    modules keep their train or eval mode, so that the passes compute the same as training. If
    another thread may train, generators are not restored: that thread would draw the same numbers
    twice.

    Args:
        module: the user's module.
        hooks: whether Opacus' hooks, which compute per-sample gradients, stay enabled.
    """
    back = [_buffers(module)]
    if not training_thread():
        back.append(GlobalGenerators().put_back)
    with contextlib.ExitStack() as stack:
        for put_back in back:
            stack.enter_context(undoing(put_back))
        if not hooks:
            _turn_hooks_off(module, stack)
        _silence(module, stack)
        stack.enter_context(torch.enable_grad())
        yield


def _turn_hooks_off(module: torch.nn.Module, stack: contextlib.ExitStack) -> None:
    """Disable Opacus' hooks, with or without an Opacus module that wraps the user's."""
    owners: dict[int, Any] = {}
    for part in module.modules():
        hooks = [*part._forward_hooks.values(), *part._backward_hooks.values()]
        # The function in a partial is bound to the owner of the hooks.
        for hook in (getattr(hook, "func", hook) for hook in hooks):
            owner = getattr(hook, "__self__", None)
            if hasattr(owner, "disable_hooks"):
                owners[id(owner)] = owner
    before = [(owner, owner.hooks_enabled) for owner in owners.values()]

    def put_back() -> None:
        for owner, enabled in before:
            owner.hooks_enabled = enabled

    stack.enter_context(undoing(put_back))
    for owner, _ in before:
        owner.disable_hooks()


def _silence(module: torch.nn.Module, stack: contextlib.ExitStack) -> None:
    """Drop what a LightningModule logs."""
    names = [name for name in ("log", "log_dict") if hasattr(module, name)]
    own = {name: vars(module)[name] for name in names if name in vars(module)}

    def put_back() -> None:
        for name in names:
            vars(module).pop(name, None)
        vars(module).update(own)

    stack.enter_context(undoing(put_back))
    vars(module).update(dict.fromkeys(names, _drop))


def _drop(*_: Any, **__: Any) -> None:
    """Log nothing."""


def _buffers(module: torch.nn.Module) -> PutBack:
    """Return a function that restores every buffer, including those that a pass replaces."""
    kept = [
        (part, name, buffer, buffer.clone())
        for part in module.modules()
        for name, buffer in part._buffers.items()
        if buffer is not None
    ]

    def put_back() -> None:
        with torch.no_grad():
            for part, name, buffer, value in kept:
                part._buffers[name] = buffer
                buffer.copy_(value)

    return put_back


@dataclass(frozen=True)
class DenseDirection:
    """A unit vector over all trained parameters.

    Args:
        parts: its entries, one tensor for each parameter.
        norm: norm of the gradient that was normalized.
    """

    parts: tuple[torch.Tensor, ...]
    norm: float

    @torch.no_grad()
    def product(self, grads: Sequence[torch.Tensor | None]) -> float:
        """Return the inner product with a gradient, a tensor per parameter; NaN if one is None."""
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
        """Subtract ``amount`` times the direction from tensors, one per parameter; skip None."""
        pairs = [
            (tensor, part.to(tensor).view_as(tensor))
            for part, tensor in zip(self.parts, tensors, strict=True)
            if tensor is not None
        ]
        for tensor, part in pairs:
            tensor.sub_(part, alpha=amount)


def own_direction(
    loss: torch.Tensor, params: Sequence[torch.nn.Parameter]
) -> DenseDirection | None:
    """Return the direction of the gradient of one sample's loss.

    Returns:
        The direction; None if the gradient is zero or not finite.
    """
    found = torch.autograd.grad(loss, list(params), allow_unused=True)
    parts = [torch.zeros_like(p) if g is None else g for g, p in zip(found, params, strict=True)]
    # In double precision: the square of an oversized entry may not fit into single precision.
    norm = float(torch.stack([part.double().norm() for part in parts]).norm())
    if not np.isfinite(norm) or norm == 0.0:
        return None
    return DenseDirection(tuple(part.detach() / norm for part in parts), norm)
