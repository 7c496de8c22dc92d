"""Parameters that no private optimizer trains: do they change all the same."""

from __future__ import annotations

from collections.abc import Iterable

import torch


def fingerprints(
    module: torch.nn.Module, trained: Iterable[torch.nn.Parameter]
) -> dict[str, tuple[float, float]]:
    """Two sums of every parameter that a private optimizer does not train, to see it change.

    Returns:
        Parameter name -> (sum, sum of absolute values).
    """
    known = {id(p) for p in trained}
    with torch.no_grad():
        return {
            name: (float(p.double().sum()), float(p.double().abs().sum()))
            for name, p in module.named_parameters()
            if id(p) not in known
        }
