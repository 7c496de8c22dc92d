"""What can be read off a run without a canary."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from opacus.data_loader import DPDataLoader
from opacus.utils.uniform_sampler import (
    DistributedUniformWithReplacementSampler,
    UniformWithReplacementSampler,
)
from torch.utils import _pytree
from torch.utils.data import BatchSampler, DataLoader

_POISSON = (UniformWithReplacementSampler, DistributedUniformWithReplacementSampler)


@dataclass(frozen=True)
class LoaderFacts:
    """How a loader draws its batches.

    Args:
        kind: "poisson", "not_poisson", or "unknown" for a sampler that is not torch's or Opacus'.
        description: the loader's type and batch sampler.
        sample_rate: the sampler's rate, None if it states none.
    """

    kind: Literal["poisson", "not_poisson", "unknown"]
    description: str
    sample_rate: float | None = None


def loader_facts(loaders: Any) -> LoaderFacts:
    """Read how the trainer's loaders draw their batches.

    Args:
        loaders: ``trainer.train_dataloader``: a loader, or a list or dict of them.

    Returns:
        The facts of the first loader that is not Poisson, else of the first one.
    """
    facts = [_facts(loader) for loader in _pytree.tree_leaves(loaders)]
    doubtful = [fact for fact in facts if fact.kind != "poisson"]
    return (doubtful or facts or [LoaderFacts("unknown", "no loader")])[0]


def _facts(loader: Any) -> LoaderFacts:
    sampler = getattr(loader, "batch_sampler", None)
    if isinstance(sampler, _POISSON):
        return LoaderFacts(
            "poisson", f"{type(loader).__name__} with {type(sampler).__name__}", sampler.sample_rate
        )
    if isinstance(loader, DPDataLoader):
        return LoaderFacts("poisson", type(loader).__name__)
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
    samplers = (getattr(loader, "batch_sampler", None) for loader in _pytree.tree_leaves(loaders))
    return any(isinstance(sampler, UniformWithReplacementSampler) for sampler in samplers)


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
