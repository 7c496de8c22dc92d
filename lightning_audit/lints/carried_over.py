"""What batches that are split into physical ones leave behind at the end of an epoch."""

from __future__ import annotations

from typing import Any

from opacus.optimizers import DPOptimizer
from opacus.utils.batch_memory_manager import BatchSplittingSampler
from torch.utils import _pytree
from torch.utils.data import DataLoader


def splits_batches(loaders: Any) -> bool:
    """Whether a loader splits logical batches into physical ones, as `BatchMemoryManager` does."""
    samplers = (getattr(loader, "batch_sampler", None) for loader in _pytree.tree_leaves(loaders))
    return any(isinstance(sampler, BatchSplittingSampler) for sampler in samplers)


def signals_ahead(loaders: Any) -> int:
    """Signals of a batch memory manager that may wait when the first batch of an epoch is there.

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
