"""Which adapter audits an optimizer."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping

from lightning_audit.dpsgd.ghost import GhostStep
from lightning_audit.dpsgd.opacus import OpacusStep


def opacus_step(
    optimizer: DPOptimizer, names: dict[int, str], modules: Iterable[torch.nn.Module] = ()
) -> OpacusStep:
    """The adapter of a private optimizer; arguments and errors are those of `OpacusStep`."""
    kind = GhostStep if isinstance(optimizer, DPOptimizerFastGradientClipping) else OpacusStep
    return kind(optimizer, names, modules)
