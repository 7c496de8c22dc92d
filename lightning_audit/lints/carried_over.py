"""Gradients and signals of split batches that remain in the optimizer after an epoch."""

from __future__ import annotations

from typing import Any

from opacus.optimizers import DPOptimizer
from opacus.utils.batch_memory_manager import BatchSplittingSampler
from torch.utils import _pytree
from torch.utils.data import DataLoader


def splits_batches(loaders: Any) -> bool:
    """Return whether a loader splits logical batches into physical ones (`BatchMemoryManager`)."""
    samplers = (getattr(loader, "batch_sampler", None) for loader in _pytree.tree_leaves(loaders))
    return any(isinstance(sampler, BatchSplittingSampler) for sampler in samplers)


def signals_ahead(loaders: Any) -> int:
    """Return how many batch memory manager signals may be pending at an epoch's first batch.

    Returns:
        One for the batch, one for a batch that Lightning may prefetch, and those of the workers.
    """
    leaves = _pytree.tree_leaves(loaders)
    ahead = [(x.prefetch_factor or 0) * x.num_workers for x in leaves if isinstance(x, DataLoader)]
    return 2 + sum(ahead)


def carries_over(optimizer: DPOptimizer, ahead: int) -> bool:
    """Return whether the optimizer holds leftovers of the previous epoch.

    Args:
        optimizer: the private optimizer, before the first step of the epoch.
        ahead: number of signals that may be pending (`signals_ahead`).

    Returns:
        True if gradients of an incomplete logical batch are pending, or signals of batches that
        were never trained on.
    """
    unfinished = optimizer._is_last_step_skipped and any(
        getattr(p, "summed_grad", None) is not None for p in optimizer.params
    )
    return bool(unfinished) or len(optimizer._step_skip_queue) > ahead
