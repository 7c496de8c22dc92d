"""Sums of clipped per-sample gradients of many models of one architecture at once."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

#: Tensors of m models by name, each ``[m, ...]``.
Stacked = dict[str, Tensor]
#: Function of (outputs, targets) of a batch that returns the mean loss of its records.
Loss = Callable[[Tensor, Tensor], Tensor]

#: Opacus adds it to a norm before it divides by the norm.
_SMALL = 1e-6
#: Modules that map each number of a record by itself, without parameters or random numbers.
_ELEMENTWISE = (
    nn.ELU,
    nn.GELU,
    nn.Hardtanh,
    nn.Identity,
    nn.LeakyReLU,
    nn.LogSigmoid,
    nn.ReLU,
    nn.SELU,
    nn.Sigmoid,
    nn.SiLU,
    nn.Softplus,
    nn.Softsign,
    nn.Tanh,
)


class ClippedSums(Protocol):
    """Computes the sums of clipped gradients of m models, each on a batch of its own.

    Attributes:
        numbers: numbers that are in memory for each record of a batch of one model.
    """

    numbers: int

    def __call__(
        self, trained: Stacked, fixed: Stacked, inputs: Tensor, targets: Tensor, counts: Tensor
    ) -> Stacked:
        """Return the sums, each ``[m, ...]`` as in ``trained``.

        Args:
            trained: trained parameters.
            fixed: other parameters and buffers.
            inputs: batches, ``[m, b, ...]``.
            targets: ``[m, b, ...]``.
            counts: 1 for a record of the batch and 0 for padding, ``[m, b]``.
        """


def clipped_sums(model: nn.Module, loss: Loss | None, max_grad_norm: float) -> ClippedSums:
    """Return what computes the sums for models like this one.

    Args:
        model: a stack of linear layers with elementwise activations between them, whose norms are
            computed without the gradients; any other model gets per-sample gradients.
        loss: function of (outputs, targets); None for the mean cross-entropy.
        max_grad_norm: clipping norm, > 0.
    """
    layers = linear_stack(model)
    if layers is None:
        return PerSampleSums(model, loss, max_grad_norm)
    return GhostSums(layers, loss, max_grad_norm)


def linear_stack(model: nn.Module) -> list[tuple[str, nn.Module]] | None:
    """Return the modules of a stack of linear layers, each with the prefix of its tensors' names.

    Returns:
        None if the model is something else: a module of another kind, a layer that is used twice,
        parameters that are not trained, hooks, or an activation that works in place.
    """
    modules = list(_flat(model, ""))
    linear = [module for _, module in modules if type(module) is nn.Linear]
    plain = all(
        type(module) is nn.Linear
        or (type(module) in _ELEMENTWISE and not getattr(module, "inplace", False))
        or (index == 0 and _flattens(module))
        for index, (_, module) in enumerate(modules)
    )
    hooked = any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    trained = all(parameter.requires_grad for parameter in model.parameters())
    owned = {id(parameter) for parameter in model.parameters()}
    used = [parameter for module in linear for parameter in module.parameters()]
    once = len(used) == len(owned)  # also if two layers share a tensor
    return modules if linear and plain and once and trained and not hooked else None


def _flat(module: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    if type(module) is not nn.Sequential:
        yield prefix, module
        return
    for name, child in module._modules.items():
        if child is not None:
            yield from _flat(child, f"{prefix}{name}.")


def _flattens(module: nn.Module) -> bool:
    return type(module) is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1)


def _factors(squared: Tensor, counts: Tensor, max_grad_norm: float) -> Tensor:
    """Return what each record's gradient is multiplied by, from its squared norm."""
    return (max_grad_norm / (squared.sqrt() + _SMALL)).clamp(max=1.0) * counts


class GhostSums:
    """Sums of clipped gradients of stacks of linear layers, without per-sample gradients.

    The gradient of a layer for one record is the outer product of the gradient d of the layer's
    output and of its input a. Its squared norm is ``|d|^2 |a|^2``, and with a bias
    ``|d|^2 (|a|^2 + 1)`` (Goodfellow, arXiv:1510.01799). The clipped sum is one product of
    matrices a layer.

    Args:
        layers: as `linear_stack` returns them.
        loss: function of (outputs, targets); None for the mean cross-entropy.
        max_grad_norm: clipping norm, > 0.
    """

    def __init__(
        self, layers: list[tuple[str, nn.Module]], loss: Loss | None, max_grad_norm: float
    ) -> None:
        self._layers, self._loss, self._norm = layers, loss, max_grad_norm
        linear = [module for _, module in layers if isinstance(module, nn.Linear)]
        self.numbers = sum(layer.in_features + 2 * layer.out_features for layer in linear)

    def __call__(
        self, trained: Stacked, fixed: Stacked, inputs: Tensor, targets: Tensor, counts: Tensor
    ) -> Stacked:
        """Return the sums; see `ClippedSums`."""
        with torch.enable_grad():
            seen, outputs, result = self._forward(trained, inputs)
            total = self._total(result.flatten(0, 1), targets.flatten(0, 1))
            gradients = torch.autograd.grad(total, outputs)
        squared = torch.zeros_like(counts)
        for (name, values), gradient in zip(seen, gradients, strict=True):
            norms = values.square().sum(-1)
            if f"{name}bias" in trained:
                norms = norms + 1.0
            squared += gradient.square().sum(-1) * norms
        factors = _factors(squared, counts, self._norm)[..., None]
        sums = {}
        for (name, values), gradient in zip(seen, gradients, strict=True):
            clipped = gradient * factors
            sums[f"{name}weight"] = torch.bmm(clipped.transpose(1, 2), values)
            if f"{name}bias" in trained:
                sums[f"{name}bias"] = clipped.sum(1)
        return sums

    def _forward(
        self, trained: Stacked, inputs: Tensor
    ) -> tuple[list[tuple[str, Tensor]], list[Tensor], Tensor]:
        """Return the inputs and outputs of the linear layers, and those of the whole stack."""
        values, seen, outputs = inputs, [], []
        for name, module in self._layers:
            if type(module) is nn.Linear:
                seen.append((name, values.detach()))
                weight, bias = trained[f"{name}weight"], trained.get(f"{name}bias")
                values = torch.bmm(values, weight.transpose(1, 2))
                values = values if bias is None else values + bias[:, None]
                values = values if values.requires_grad else values.requires_grad_()
                outputs.append(values)
            else:
                values = values.flatten(2) if type(module) is nn.Flatten else module(values)
        return seen, outputs, values

    def _total(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the sum of the losses of all records, each as the mean over itself alone."""
        loss = self._loss
        if loss is None:
            return nn.functional.cross_entropy(outputs, targets, reduction="sum")
        each: Tensor = vmap(lambda one, target: loss(one[None], target[None]))(outputs, targets)
        return each.sum()


class PerSampleSums:
    """Sums of clipped gradients of any model that torch.func.vmap can map.

    Args:
        model: gives the architecture; its own tensors are not used.
        loss: function of (outputs, targets); None for the mean cross-entropy.
        max_grad_norm: clipping norm, > 0.
    """

    def __init__(self, model: nn.Module, loss: Loss | None, max_grad_norm: float) -> None:
        empty = copy.deepcopy(model).to("meta")
        criterion = nn.functional.cross_entropy if loss is None else loss

        def loss_of(
            trained: Mapping[str, Tensor], fixed: Mapping[str, Tensor], one: Tensor, target: Tensor
        ) -> Tensor:
            outputs = functional_call(empty, {**trained, **fixed}, (one[None],))
            return criterion(outputs, target[None])

        per_sample = vmap(grad(loss_of), in_dims=(None, None, 0, 0))

        def of_one_model(
            trained: Stacked, fixed: Stacked, inputs: Tensor, targets: Tensor, counts: Tensor
        ) -> Stacked:
            gradients = per_sample(trained, fixed, inputs, targets)
            squared = torch.stack([g.flatten(1).square().sum(1) for g in gradients.values()]).sum(0)
            factors = _factors(squared, counts, max_grad_norm)
            return {n: torch.einsum("b,b...->...", factors, g) for n, g in gradients.items()}

        self._of_all = vmap(of_one_model)
        self.numbers = sum(p.numel() for p in model.parameters() if p.requires_grad)

    def __call__(
        self, trained: Stacked, fixed: Stacked, inputs: Tensor, targets: Tensor, counts: Tensor
    ) -> Stacked:
        """Return the sums; see `ClippedSums`."""
        sums: Stacked = self._of_all(trained, fixed, inputs, targets, counts)
        return sums
