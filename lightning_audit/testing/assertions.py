"""Assertions for unit tests of a private model: its per-sample gradients, and its clipped sums.

Both run Opacus' own code on a copy of the model, without noise, and compare it with a second way to
compute the same. Dropout is off. A model that passes may still train without privacy, by its data
or its loop: see `lightning_audit.Examination` for these.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from opacus import GradSampleModule, PrivacyEngine
from torch import nn
from torch.nn.modules.dropout import _DropoutNd
from torch.utils.data import DataLoader, TensorDataset

from lightning_audit import _validate
from lightning_audit.dpsgd.opacus import own_name

#: Relative difference that rounding may cause, in the parameters' precision: a few hundred units.
_UNITS = 512.0


def assert_per_sample_gradients(
    model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor], loss: nn.Module
) -> None:
    """Compare Opacus' per-sample gradients with autograd's for each record alone.

    They differ if a layer has a wrong or missing grad sampler, is used in a way that its grad
    sampler does not know, or changes one record by another.

    Args:
        model: not wrapped by Opacus.
        batch: inputs and targets, ``[n, ...]`` each, of at least two records.
        loss: of outputs and targets, with ``reduction`` "mean" or "sum", such as
            ``nn.CrossEntropyLoss()``.

    Raises:
        ValueError: an argument is of the wrong type.
        AssertionError: a tensor's gradients differ; it names the tensor.

    Example:
        >>> batch = torch.randn(4, 3), torch.tensor([0, 1, 1, 0])
        >>> assert_per_sample_gradients(nn.Linear(3, 2), batch, nn.CrossEntropyLoss())
    """
    inputs, targets, reduction = _checked(model, batch, loss)
    wrapped = GradSampleModule(_copied(model), loss_reduction=reduction)
    _backward(loss, wrapped, (inputs, targets))
    found = {own_name(name): p.grad_sample for name, p in _trained(wrapped)}
    alone = _copied(model)
    for row in range(len(inputs)):
        alone.zero_grad()
        _backward(loss, alone, (inputs[row : row + 1], targets[row : row + 1]))
        for name, p in _trained(alone):
            wanted = torch.zeros_like(p) if p.grad is None else p.grad
            grads = found.get(name)
            if grads is None or len(grads) != len(inputs):
                raise AssertionError(
                    f"{name}: Opacus forms {0 if grads is None else len(grads)} per-sample "
                    f"gradients of {len(inputs)} records."
                )
            _compare(name, f"the gradient of record {row}", grads[row], wanted, "autograd's")


def assert_same_release(
    model: nn.Module,
    batch: tuple[torch.Tensor, torch.Tensor],
    loss: nn.Module,
    modes: Sequence[str] = ("hooks", "ghost"),
    *,
    max_grad_norm: float = 1.0,
) -> None:
    """Compare the gradients that a step without noise releases in several modes of Opacus.

    Args:
        model: not wrapped by Opacus.
        batch: inputs and targets, ``[n, ...]`` each, of at least two records.
        loss: of outputs and targets, with ``reduction`` "mean" or "sum".
        modes: of ``make_private(grad_sample_mode=...)``, at least two.
        max_grad_norm: clipping norm; some of the gradients should exceed it.

    Raises:
        ValueError: an argument is of the wrong type or outside its range.
        AssertionError: a tensor's clipped sums differ; it names the tensor and the mode.

    Example:
        >>> batch = torch.randn(4, 3), torch.tensor([0, 1, 1, 0])
        >>> assert_same_release(nn.Linear(3, 2), batch, nn.CrossEntropyLoss())
    """
    inputs, targets, reduction = _checked(model, batch, loss)
    norm = _validate.positive("max_grad_norm", max_grad_norm)
    if isinstance(modes, str) or len(modes) < 2:
        raise ValueError(f"modes={modes!r} must name two or more of Opacus' grad_sample_modes.")
    released: list[dict[str, torch.Tensor]] = []
    for mode in modes:
        own = _copied(model)
        with warnings.catch_warnings(action="ignore"):  # a generator that is not secure
            private, optimizer, *rest = PrivacyEngine().make_private(
                module=own,
                optimizer=torch.optim.SGD([p for _, p in _trained(own)], lr=0.0),
                data_loader=DataLoader(TensorDataset(inputs, targets), batch_size=len(inputs)),
                criterion=loss,
                noise_multiplier=0.0,
                max_grad_norm=norm,
                loss_reduction=reduction,
                poisson_sampling=False,
                grad_sample_mode=mode,
            )
        _backward(rest[0] if len(rest) > 1 else loss, private, (inputs, targets))
        optimizer.step()
        released.append({own_name(n): p.grad.clone() for n, p in _trained(private)})
        for name, wanted in released[0].items():
            what = f"the clipped sum with grad_sample_mode={mode!r}"
            _compare(name, what, released[-1][name], wanted, f"that with {modes[0]!r}")


def _checked(
    model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor], loss: nn.Module
) -> tuple[torch.Tensor, torch.Tensor, str]:
    """Return inputs, targets and the loss's reduction."""
    if not isinstance(model, nn.Module) or isinstance(model, GradSampleModule):
        raise ValueError(f"model={type(model).__name__} must be a module, before make_private.")
    pair = batch if isinstance(batch, tuple | list) else ()
    if len(pair) != 2 or not all(isinstance(each, torch.Tensor) for each in pair):
        raise ValueError("batch= must be two tensors, inputs and targets, with the records first.")
    if len(pair[0]) != len(pair[1]) or len(pair[0]) < 2:
        raise ValueError(
            f"batch= has {len(pair[0])} inputs and {len(pair[1])} targets; it must have as many of "
            "both, at least 2."
        )
    reduction = getattr(loss, "reduction", None)
    if reduction not in ("mean", "sum"):
        raise ValueError(
            f"loss= has reduction={reduction!r}; take one with 'mean' or 'sum', such as "
            "nn.CrossEntropyLoss()."
        )
    return pair[0], pair[1], str(reduction)


def _copied(model: nn.Module) -> nn.Module:
    """Return a copy of a model in training mode, without dropout."""
    own = copy.deepcopy(model).train()
    for part in own.modules():
        if isinstance(part, _DropoutNd):
            part.eval()
    return own


def _backward(loss: Any, model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> None:
    """Run a forward and a backward pass."""
    with warnings.catch_warnings(action="ignore"):  # Opacus' hooks, if no input needs a gradient
        loss(model(batch[0]), batch[1]).backward()


def _trained(model: nn.Module) -> Iterator[tuple[str, Any]]:
    return ((name, p) for name, p in model.named_parameters() if p.requires_grad)


def _compare(name: str, what: str, found: torch.Tensor, wanted: torch.Tensor, other: str) -> None:
    """Raise an AssertionError if two tensors differ by more than rounding."""
    size = max(float(wanted.norm()), torch.finfo(wanted.dtype).eps)
    far = float((found - wanted).norm()) / size
    if not far <= _UNITS * torch.finfo(wanted.dtype).eps:
        raise AssertionError(f"{name}: {what} differs from {other} by {far:.2g} of its norm.")
