"""What can be read off a run without a canary."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from opacus.optimizers import DPOptimizer
from opacus.utils.batch_memory_manager import BatchSplittingSampler
from opacus.utils.uniform_sampler import (
    DistributedUniformWithReplacementSampler,
    UniformWithReplacementSampler,
)
from torch.utils import _pytree
from torch.utils.data import BatchSampler, DataLoader, Subset

from lightning_audit.taps.sampler_tap import can_be_watched, unwatched

_POISSON = (UniformWithReplacementSampler, DistributedUniformWithReplacementSampler)


@dataclass(frozen=True)
class LoaderFacts:
    """How a loader draws its batches.

    Args:
        kind: "poisson", "not_poisson", or "unknown" for a sampler that is not torch's or Opacus'.
        description: the loader's type and batch sampler.
        sample_rate: the sampler's rate, None if it states none.
        records: number of records in the data set, None if it has no length.
    """

    kind: Literal["poisson", "not_poisson", "unknown"]
    description: str
    sample_rate: float | None = None
    records: int | None = field(default=None, compare=False)


def loader_facts(loaders: Any) -> LoaderFacts:
    """Read how the trainer's loaders draw their batches.

    Args:
        loaders: ``trainer.train_dataloader``: a loader, or a list or dict of them.

    Returns:
        The facts of the first loader that is not Poisson, else of the first one.
    """
    facts = [
        replace(_facts(loader), records=len(loader.dataset) if can_be_watched(loader) else None)
        for loader in _pytree.tree_leaves(loaders)
    ]
    doubtful = [fact for fact in facts if fact.kind != "poisson"]
    return (doubtful or facts or [LoaderFacts("unknown", "no loader")])[0]


def loader_count(loaders: Any) -> int:
    """Number of the trainer's training loaders."""
    return len(_pytree.tree_leaves(loaders))


def _facts(loader: Any) -> LoaderFacts:
    sampler = unwatched(getattr(loader, "batch_sampler", None))
    # Physical batches: the logical ones are what counts.
    split = isinstance(sampler, BatchSplittingSampler)
    if split:
        sampler = unwatched(sampler.sampler)
    # A subclass may draw as it likes.
    if isinstance(sampler, _POISSON) and any(
        type(sampler).__iter__ is p.__iter__ for p in _POISSON
    ):
        return LoaderFacts(
            "poisson", f"{type(loader).__name__} with {type(sampler).__name__}", sampler.sample_rate
        )
    if type(sampler) is BatchSampler:
        order = type(sampler.sampler).__name__
        size = f"batches of {sampler.batch_size}"
        return LoaderFacts("not_poisson", f"{type(loader).__name__} with {order}, {size}")
    name = type(sampler).__name__ if sampler is not None else "no batch sampler"
    if isinstance(loader, DataLoader):
        name = f"{type(loader).__name__} with {name}"
    else:
        name = type(loader).__name__
    return LoaderFacts("unknown", name)


def draws_from_all(loaders: Any) -> bool:
    """Whether a Poisson loader draws from all records, and not from one process's share of them.

    Args:
        loaders: ``trainer.train_dataloader``: a loader, or a list or dict of them.
    """
    return any(
        _is_plain_poisson(loader) and not isinstance(loader.dataset, Subset)
        for loader in _pytree.tree_leaves(loaders)
    )


def draws_from_parts(loaders: Any) -> bool:
    """Whether a Poisson loader draws from a part of the records that the user has chosen.

    Args:
        loaders: ``trainer.train_dataloader``: a loader, or a list or dict of them.
    """
    return any(
        _is_plain_poisson(loader) and isinstance(loader.dataset, Subset)
        for loader in _pytree.tree_leaves(loaders)
    )


def _is_plain_poisson(loader: Any) -> bool:
    return isinstance(getattr(loader, "batch_sampler", None), UniformWithReplacementSampler)


def fingerprints(
    module: torch.nn.Module, trained: Iterable[torch.nn.Parameter]
) -> dict[str, tuple[float, float]]:
    """Two sums of every parameter that a private optimizer does not train, to see it change.

    Args:
        module: the module whose parameters are looked at.
        trained: the parameters of the private optimizer.

    Returns:
        Parameter name -> (sum, sum of absolute values).
    """
    known = {id(p) for p in trained}
    with torch.no_grad():
        return {
            name: (float(p.double().sum()), float(p.double().abs().sum()))
            for name, p in module.named_parameters()
            if id(p) not in known
        }


def splits_batches(loaders: Any) -> bool:
    """Whether a loader splits logical batches into physical ones, as `BatchMemoryManager` does."""
    samplers = (getattr(loader, "batch_sampler", None) for loader in _pytree.tree_leaves(loaders))
    return any(isinstance(sampler, BatchSplittingSampler) for sampler in samplers)


def signals_ahead(loaders: Any) -> int:
    """Signals of a batch memory manager that may wait when the first batch of an epoch is there.

    Args:
        loaders: ``trainer.train_dataloader``.

    Returns:
        One for the batch, one for a batch that Lightning may fetch ahead, and those of the workers.
    """
    leaves = _pytree.tree_leaves(loaders)
    ahead = [(x.prefetch_factor or 0) * x.num_workers for x in leaves if isinstance(x, DataLoader)]
    return 2 + sum(ahead)


def carries_over(optimizer: DPOptimizer, ahead: int) -> bool:
    """Whether, at the start of an epoch, something of the epoch before waits in the optimizer.

    Args:
        optimizer: the private optimizer, before the first step of the epoch.
        ahead: signals that may wait (`signals_ahead`).

    Returns:
        True if gradients of a logical batch without its end wait, or signals of batches that were
        never taken.
    """
    unfinished = optimizer._is_last_step_skipped and any(
        getattr(p, "summed_grad", None) is not None for p in optimizer.params
    )
    return bool(unfinished) or len(optimizer._step_skip_queue) > ahead


def accumulation_remarks(optimizer: Any, accumulate_grad_batches: int) -> list[str]:
    """A sentence where Lightning and Opacus both divide by the number of accumulated batches.

    Args:
        optimizer: what steps.
        accumulate_grad_batches: of the Trainer.
    """
    both = isinstance(optimizer, DPOptimizer) and optimizer.loss_reduction == "mean"
    if accumulate_grad_batches < 2 or not both:
        return []
    n = accumulate_grad_batches
    return [
        f"accumulate_grad_batches={n} divides gradients twice: Lightning divides the loss by {n}, "
        f"and Opacus the noisy sum once more, so that gradients which need no clipping are {n} "
        f"times too small beside their noise; that loses no privacy. Return {n} times the loss "
        "from training_step, or let opacus.utils.batch_memory_manager.BatchMemoryManager split "
        "large batches instead"
    ]
