"""Which adapter audits an optimizer, and what `make_private` told its module."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from opacus.grad_sample import GradSampleModule
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping

from lightning_audit.dpsgd.ghost import GhostStep
from lightning_audit.dpsgd.opacus import OpacusStep


def opacus_step(
    optimizer: DPOptimizer, names: dict[int, str], modules: Iterable[torch.nn.Module] = ()
) -> OpacusStep:
    """The adapter of a private optimizer; arguments and errors are those of `OpacusStep`."""
    kind = GhostStep if isinstance(optimizer, DPOptimizerFastGradientClipping) else OpacusStep
    return kind(optimizer, names, modules)


def draws_poisson(module: torch.nn.Module) -> bool | None:
    """Whether `make_private` was told that the batches of a module are Poisson.

    It forbids then that gradients of several batches are accumulated.

    Returns:
        None where no module holds per-sample gradients, or they differ.
    """
    wrapped = [m for m in module.modules() if isinstance(m, GradSampleModule)]
    # Before Opacus 1.6 a hook forbade it.
    told = {
        not getattr(m, "grad_accumulation_allowed", getattr(m, "grad_accumulation_hook", 0) is None)
        for m in wrapped
    }
    return told.pop() if len(told) == 1 else None
