"""Gradient accumulation by the Trainer together with Opacus'."""

from __future__ import annotations

from typing import Any

from opacus.optimizers import DPOptimizer


def accumulation_remarks(optimizer: Any, accumulate_grad_batches: int) -> list[str]:
    """Return a note if Lightning and Opacus both divide by the number of accumulated batches."""
    both = isinstance(optimizer, DPOptimizer) and optimizer.loss_reduction == "mean"
    if accumulate_grad_batches < 2 or not both:
        return []
    n = accumulate_grad_batches
    return [
        f"accumulate_grad_batches={n} divides gradients twice: Lightning divides the loss by {n}, "
        f"and Opacus the noisy sum once more, so that gradients below the clipping norm are {n} "
        f"times too small relative to the noise; this loses no privacy. Return {n} times the loss "
        "from training_step, or let opacus.utils.batch_memory_manager.BatchMemoryManager split "
        "large batches instead"
    ]
