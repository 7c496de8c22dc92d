"""The gradient of one sample at the present weights, without a trace in the user's training."""

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
    """Run passes through a module that leave it, and every global generator, as they were.

    What the module logs is dropped, and buffers such as running statistics are put back. The mode
    of the modules is left, so that the passes compute what training does. Where another thread may
    train, generators are not put back: it would draw its last numbers again.

    Args:
        module: the user's module.
        hooks: whether Opacus' hooks are on, which fill in per-sample gradients.
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
    """What puts every buffer back, also those that a pass replaces."""
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
