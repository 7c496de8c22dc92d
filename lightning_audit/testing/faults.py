"""Known faults of DP-SGD, to test whether a gate catches them.

`FAULTS` has them by name; `plant` puts one into your training, which then overstates its privacy:

Example:
    >>> import torch
    >>> from opacus.optimizers import DPOptimizer
    >>> weights = torch.nn.Parameter(torch.zeros(3))
    >>> settings = dict(noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=64)
    >>> private = DPOptimizer(torch.optim.SGD([weights], lr=0.1), **settings)
    >>> type(plant(private, "half_noise")).__name__
    'HalfNoise'
    >>> FAULTS["half_noise"].likely
    'noise_too_small'
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from opacus.optimizers import DPOptimizer
from torch.utils import _pytree

from lightning_audit.testing import faulty as faulty
from lightning_audit.testing import faulty_trainings as faulty_trainings
from lightning_audit.testing.fault import DECLARED
from lightning_audit.testing.fault import Fault as Fault

#: The faults by name: those of the optimizer, which can be planted, and those of the training.
FAULTS: Mapping[str, Fault] = MappingProxyType({**DECLARED})


def plant(optimizer: Any, name: str) -> Any:
    """Put a fault into your own training.

    Args:
        optimizer: as `make_private` returned it, or what `configure_optimizers` returns: a dict,
            list or tuple with such optimizers.
        name: of a fault in `FAULTS` with an ``optimizer``.

    Returns:
        The argument, whose private optimizers have the fault.

    Raises:
        ValueError: there is no such fault, or it is harmless in this training.
        TypeError: see `Fault.apply`.
    """
    if name not in FAULTS:
        known = sorted(fault.name for fault in FAULTS.values() if fault.optimizer)
        raise ValueError(f"name={name!r} must be one of {known}.")
    held = _pytree.tree_leaves(optimizer)
    for one in [each for each in held if isinstance(each, DPOptimizer)] or [optimizer]:
        FAULTS[name].apply(one)
    return optimizer
