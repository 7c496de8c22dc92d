"""The state after a step that later steps or a checkpoint use."""

from __future__ import annotations

from typing import Any

import torch

from lightning_audit.dpsgd.opacus import chain, own_name

#: Attributes of Opacus' optimizers that affect the next step. Attributes of the user's own classes
#: may be for display only; their effects show in the next step.
_SETTINGS = ("max_grad_norm", "noise_multiplier", "expected_batch_size", "max_grad_norms")


def left_behind(module: torch.nn.Module, optimizer: Any) -> dict[str, torch.Tensor]:
    """Return copies of the module's and optimizer's state, by name.

    Args:
        module: the user's module.
        optimizer: its private optimizer.
    """
    names = {id(p): own_name(name) for name, p in module.named_parameters()}
    kept: dict[str, Any] = {
        f"{'parameters' if id(v) in names else 'buffers'} of {own_name(name)}": v
        for name, v in module.state_dict(keep_vars=True).items()
    }
    for each in chain(optimizer):
        for p, state in each.state.items():
            where = names.get(id(p), "another tensor")
            kept |= {f"optimizer state {key} of {where}": v for key, v in state.items()}
        for number, group in enumerate(each.param_groups):
            kept |= {f"{key} of group {number}": v for key, v in group.items()}
        own = {key: v for key, v in vars(each).items() if key in _SETTINGS}
        kept |= {f"attribute {key} of the optimizer": v for key, v in own.items()}
    return {name: _copied(value) for name, value in kept.items() if _is_number(value)}


def _is_number(value: Any) -> bool:
    return isinstance(value, torch.Tensor | int | float) and not isinstance(value, bool)


def _copied(value: Any) -> torch.Tensor:
    return torch.as_tensor(value).detach().to("cpu", torch.float64, copy=True).reshape(-1)
