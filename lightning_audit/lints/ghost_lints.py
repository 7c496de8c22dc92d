"""Notes on what Lightning silently does to ghost clipping; none of it loses privacy."""

from __future__ import annotations

from typing import Any

import torch
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
from opacus.utils.adaptive_clipping.adaptive_clipping_utils import (
    DPLossFastGradientAdaptiveClipping,
    DPTensorFastGradientAdaptiveClipping,
    PrivacyEngineAdaptiveClipping,
)
from opacus.utils.fast_gradient_clipping_utils import DPTensorFastGradientClipping

_ADAPTIVE_OFF = (
    "adaptive clipping is off: Lightning divides the loss by the number of accumulated batches, "
    "and the division drops adaptive clipping from Opacus' loss, so that max_grad_norm never "
    "changes. Write `self.automatic_optimization = False` and call `self.manual_backward(loss)`"
)


def ghost_remarks(
    optimizer: DPOptimizer, accumulate_grad_batches: int, gradient_clip_val: float | None
) -> list[str]:
    """Return notes on Trainer arguments that harm an optimizer with ghost clipping.

    Neither is a violation: dropped gradients need no noise, and clipping the sum does not increase
    the distance between the sums of neighboring data sets.

    Returns:
        Notes with what to write instead; empty for other optimizers.
    """
    if not isinstance(optimizer, DPOptimizerFastGradientClipping):
        return []
    remarks = []
    if accumulate_grad_batches > 1:
        remarks.append(
            f"accumulate_grad_batches={accumulate_grad_batches} trains on one batch in "
            f"{accumulate_grad_batches} only: the backward pass of ghost clipping clears the "
            "gradients, so that each batch drops the previous one. Write accumulate_grad_batches=1 "
            "and let opacus.utils.batch_memory_manager.BatchMemoryManager split large batches"
        )
    if gradient_clip_val:
        remarks.append(
            f"gradient_clip_val={gradient_clip_val} shortens the sum of the clipped gradients "
            "before the noise is added, but not the noise: the model learns less for the same "
            "epsilon. Write gradient_clip_val=None; max_grad_norm clips each record's gradient"
        )
    return remarks


def adaptive_remark(module: torch.nn.Module, loss: Any) -> str:
    """Return a note if adaptive clipping was set up but this loss does not adapt.

    Opacus' adaptive criterion or engine is searched among the attributes of ``module``.

    Returns:
        The note with what to write instead; empty if nothing is wrong.
    """
    if not isinstance(loss, DPTensorFastGradientClipping):
        return ""
    if isinstance(loss, DPTensorFastGradientAdaptiveClipping):
        return ""
    wanted = (DPLossFastGradientAdaptiveClipping, PrivacyEngineAdaptiveClipping)
    held = (value for part in module.modules() for value in vars(part).values())
    return _ADAPTIVE_OFF if any(isinstance(value, wanted) for value in held) else ""
