"""What an audit puts into Lightning's checkpoints: plain values and tensors only."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from lightning_audit.dpsgd.opacus import AccountantLink

#: Version of the state's layout.
VERSION = 1


def to_tensors(value: Any) -> Any:
    """Arrays as tensors, so that a checkpoint loads under ``weights_only=True``."""
    match value:
        case np.ndarray():
            return torch.from_numpy(np.ascontiguousarray(value)).reshape(value.shape).clone()
        case dict():
            return {key: to_tensors(item) for key, item in value.items()}
        case list() | tuple():
            return [to_tensors(item) for item in value]
    return value


def to_arrays(value: Any) -> Any:
    """Undo `to_tensors`."""
    match value:
        case torch.Tensor():
            return value.cpu().numpy()
        case dict():
            return {key: to_arrays(item) for key, item in value.items()}
        case list():
            return [to_arrays(item) for item in value]
    return value


def accountant_history(link: AccountantLink | None) -> list[list[float]]:
    """Phases of (noise_multiplier, sample_rate, steps) that the accountant holds."""
    return [list(phase) for phase in link.accountant.history] if link else []


def restore_accountant(link: AccountantLink | None, history: list[list[float]]) -> None:
    """Give a fresh accountant the history that a resumed run had spent.

    Lightning's checkpoints do not hold it. An accountant that has a history was restored by the
    user, and is left alone.
    """
    if link is not None and history and not link.accountant.history:
        link.accountant.history = [(sigma, rate, int(n)) for sigma, rate, n in history]
