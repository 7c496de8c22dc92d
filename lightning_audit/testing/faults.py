"""Known faults of DP-SGD, to test whether a gate catches them.

`FAULTS` holds them by name; `plant` puts one into your own training, whose configuration then
claims more privacy than it gives:

Example:
    >>> import torch
    >>> from opacus.optimizers import DPOptimizer
    >>> weights = torch.nn.Parameter(torch.zeros(3))
    >>> private = DPOptimizer(
    ...     torch.optim.SGD([weights], lr=0.1),
    ...     noise_multiplier=1.0,
    ...     max_grad_norm=1.0,
    ...     expected_batch_size=64,
    ... )
    >>> type(plant(private, "half_noise")).__name__
    'HalfNoise'
    >>> FAULTS["half_noise"].check
    'noise'
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from opacus.optimizers import DPOptimizer

from lightning_audit.testing.drawn_faults import OF_THE_DRAW
from lightning_audit.testing.fault import Fault as Fault
from lightning_audit.testing.optimizer_faults import OF_THE_OPTIMIZER
from lightning_audit.testing.step_faults import OF_CORRELATED_NOISE, OF_THE_STEP
from lightning_audit.testing.training_faults import BY_HAND_CLAIM as BY_HAND_CLAIM
from lightning_audit.testing.training_faults import INPUT_CANARY as INPUT_CANARY
from lightning_audit.testing.training_faults import OF_THE_TRAINING


def plant(optimizer: DPOptimizer, name: str) -> DPOptimizer:
    """Put a fault into your own training.

    Args:
        optimizer: as `make_private` returned it.
        name: of a fault in `FAULTS` with an ``optimizer``.

    Returns:
        The optimizer to train with.

    Raises:
        ValueError: there is no such fault, or it is harmless in this training.
        TypeError: see `Fault.apply`.
    """
    if name not in FAULTS:
        known = sorted(fault.name for fault in FAULTS.values() if fault.optimizer)
        raise ValueError(f"name={name!r} must be one of {known}.")
    return FAULTS[name].apply(optimizer)


_ALL = (
    *OF_THE_OPTIMIZER,
    *OF_THE_TRAINING,
    *OF_THE_STEP,
    *OF_CORRELATED_NOISE,
    *OF_THE_DRAW,
)

#: The faults by name.
FAULTS: Mapping[str, Fault] = MappingProxyType({fault.name: fault for fault in _ALL})
