"""Chooses the adapter of an optimizer, and reads `make_private`'s settings off its module."""

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
    """Return the adapter of a private optimizer; arguments and errors as for `OpacusStep`."""
    kind = GhostStep if isinstance(optimizer, DPOptimizerFastGradientClipping) else OpacusStep
    return kind(optimizer, names, modules)


def draws_poisson(module: torch.nn.Module) -> bool | None:
    """Return whether `make_private` was called with Poisson sampling.

    Inferred from the module: with Poisson sampling Opacus forbids gradient accumulation.

    Returns:
        Whether it was; None if no module holds per-sample gradients, or if the modules differ.
    """
    wrapped = [m for m in module.modules() if isinstance(m, GradSampleModule)]
    # Before Opacus 1.6 a hook forbade it.
    told = {
        not getattr(m, "grad_accumulation_allowed", getattr(m, "grad_accumulation_hook", 0) is None)
        for m in wrapped
    }
    return told.pop() if len(told) == 1 else None
