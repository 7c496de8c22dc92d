"""DP-SGD of one model, by plain loops over steps and records and by Opacus."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from opacus.utils.uniform_sampler import UniformWithReplacementSampler

from lightning_audit.many.vectorised import DPSGDMany, batch_generator, noise_generator

Data = tuple[torch.Tensor, torch.Tensor]


def start_of(train: DPSGDMany, seed: int) -> torch.nn.Module:
    """The model before the training."""
    if isinstance(train.model, torch.nn.Module):
        return copy.deepcopy(train.model)
    torch.manual_seed(seed)
    return train.model()


def batches_of(train: DPSGDMany, records: int, seed: int) -> list[list[int]]:
    """The batches of Opacus' sampler."""
    if train.sample_rate == 1.0:
        return [list(range(records))] * train.steps
    sampler = UniformWithReplacementSampler(
        num_samples=records,
        sample_rate=train.sample_rate,
        generator=batch_generator(seed),
        steps=train.steps,
    )
    return list(sampler)


def looped(
    train: DPSGDMany,
    data: Data,
    seed: int,
    loss: Callable[..., Any],
    batches: Sequence[Sequence[int]] | None = None,
) -> torch.nn.Module:
    """One backward pass a record, of Opacus' batches or of these."""
    model, generator = start_of(train, seed), noise_generator(seed)
    parameters = list(model.parameters())
    for batch in batches or batches_of(train, len(data[1]), seed):
        total = [torch.zeros_like(p) for p in parameters]
        for index in batch:
            value = loss(model(data[0][index : index + 1]), data[1][index : index + 1])
            gradients = torch.autograd.grad(value, parameters)
            norm = torch.cat([g.flatten() for g in gradients]).norm()
            for own, gradient in zip(total, gradients, strict=True):
                own += gradient * min(1.0, train.max_grad_norm / (float(norm) + 1e-6))
        with torch.no_grad():
            for parameter, own in zip(parameters, total, strict=True):
                deviation = train.noise_multiplier * train.max_grad_norm
                own += deviation * torch.randn(parameter.shape, generator=generator)
                parameter -= train.learning_rate * own / train.expected_batch_size
    return model


def by_opacus(train: DPSGDMany, data: Data, seed: int) -> torch.nn.Module:
    """The same training by Opacus' GradSampleModule and DPOptimizer."""
    model = start_of(train, seed)
    private = GradSampleModule(model)
    optimizer = DPOptimizer(
        torch.optim.SGD(private.parameters(), lr=train.learning_rate),
        noise_multiplier=train.noise_multiplier,
        max_grad_norm=train.max_grad_norm,
        expected_batch_size=train.expected_batch_size,
        generator=noise_generator(seed),
    )
    for batch in batches_of(train, len(data[1]), seed):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(private(data[0][batch]), data[1][batch]).backward()
        optimizer.step()
    return model


def differences(models: Sequence[torch.nn.Module], others: Sequence[torch.nn.Module]) -> float:
    """The largest difference of a parameter between two lists of models."""
    return max(
        float((one - other).detach().abs().max())
        for model, twin in zip(models, others, strict=True)
        for one, other in zip(model.parameters(), twin.parameters(), strict=True)
    )
