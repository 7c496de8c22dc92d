"""What the Trainer's accumulation of batches does beside that of Opacus."""

from __future__ import annotations

from typing import Any

from opacus.optimizers import DPOptimizer


def accumulation_remarks(optimizer: Any, accumulate_grad_batches: int) -> list[str]:
    """A sentence where Lightning and Opacus both divide by the number of accumulated batches."""
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
