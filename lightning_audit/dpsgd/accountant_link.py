"""The accountant that feeds on a private optimizer's steps."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

from opacus.optimizers import DPOptimizer


@dataclass(frozen=True)
class AccountantLink:
    """The accountant that a step hook feeds, and the sample rate it is told.

    Args:
        accountant: Opacus' accountant.
        sample_rate: probability with which the accountant supposes a sample to enter a batch.
    """

    accountant: Any
    sample_rate: float


def accountant_link(optimizer: DPOptimizer) -> AccountantLink | None:
    """Read the accountant off the optimizer's step hook; None where there is none.

    `IAccountant.get_optimizer_hook_fn` closes over the accountant and the sample rate; they are
    kept nowhere else on the optimizer.
    """
    hook = getattr(optimizer, "step_hook", None)
    if not inspect.isfunction(hook):
        return None
    names = inspect.getclosurevars(hook).nonlocals
    accountant, sample_rate = names.get("self"), names.get("sample_rate")
    if accountant is None or sample_rate is None or not hasattr(accountant, "history"):
        return None
    return AccountantLink(accountant, float(sample_rate))
