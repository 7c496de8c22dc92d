"""Detects changes of parameters that no private optimizer trains."""

from __future__ import annotations

from collections.abc import Iterable

import torch


def fingerprints(
    module: torch.nn.Module, trained: Iterable[torch.nn.Parameter]
) -> dict[str, tuple[float, float]]:
    """Return two sums of every parameter that no private optimizer trains, to detect changes.

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
