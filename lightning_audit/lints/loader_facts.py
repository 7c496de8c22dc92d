"""Determines from a loader's type how it draws its batches."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from opacus.utils.batch_memory_manager import BatchSplittingSampler
from opacus.utils.uniform_sampler import (
    DistributedUniformWithReplacementSampler,
    UniformWithReplacementSampler,
)
from torch.utils import _pytree
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SequentialSampler,
    Subset,
)

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
        once: whether each record enters at most one batch per epoch.
        raised_in: epoch, from 0, since which the rate is this one; None if it never changed.
    """

    kind: Literal["poisson", "not_poisson", "unknown"]
    description: str
    sample_rate: float | None = None
    records: int | None = field(default=None, compare=False)
    once: bool = False
    raised_in: int | None = None


def loader_facts(loaders: Any) -> LoaderFacts:
    """Return how the trainer's loaders draw their batches.

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


def rate_of(loader: Any) -> float | None:
    """Return the current sampling rate of a loader's sampler; None if it states none."""
    sampler = unwatched(getattr(loader, "batch_sampler", None))
    if isinstance(sampler, BatchSplittingSampler):
        sampler = unwatched(sampler.sampler)
    return getattr(sampler, "sample_rate", None)


def loader_count(loaders: Any) -> int:
    """Return the number of the trainer's training loaders."""
    return len(_pytree.tree_leaves(loaders))


def _facts(loader: Any) -> LoaderFacts:
    sampler = unwatched(getattr(loader, "batch_sampler", None))
    if isinstance(sampler, BatchSplittingSampler):
        # These are physical batches; the inner sampler draws the logical ones.
        sampler = unwatched(sampler.sampler)
    # A subclass may override how it draws.
    if isinstance(sampler, _POISSON) and any(
        type(sampler).__iter__ is p.__iter__ for p in _POISSON
    ):
        return LoaderFacts(
            "poisson", f"{type(loader).__name__} with {type(sampler).__name__}", sampler.sample_rate
        )
    if type(sampler) is BatchSampler:
        order = type(sampler.sampler).__name__
        size = f"batches of {sampler.batch_size}"
        described = f"{type(loader).__name__} with {order}, {size}"
        return LoaderFacts("not_poisson", described, once=_deals_out(sampler.sampler))
    name = type(loader).__name__
    if isinstance(loader, DataLoader):
        name += f" with {'no batch sampler' if sampler is None else type(sampler).__name__}"
    return LoaderFacts("unknown", name)


def _deals_out(sampler: Any) -> bool:
    """Return whether a torch sampler yields each record at most once."""
    if type(sampler) is RandomSampler:
        return not sampler.replacement and sampler.num_samples <= len(sampler.data_source)
    return type(sampler) is SequentialSampler


def draws_from(loaders: Any, *, part: bool) -> bool:
    """Return whether a Poisson loader draws from all records, not one process's share of them.

    Args:
        loaders: ``trainer.train_dataloader``: a loader, or a list or dict of them.
        part: test instead whether it draws from a `Subset` of the records, chosen by the user.
    """
    return any(
        isinstance(getattr(loader, "batch_sampler", None), UniformWithReplacementSampler)
        and isinstance(loader.dataset, Subset) == part
        for loader in _pytree.tree_leaves(loaders)
    )
