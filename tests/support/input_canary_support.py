"""Trainings with an input canary, and what was read of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from hand_written_support import CLAIM, HandWritten
from torch import nn
from torch.nn import functional
from training_support import PrivateModule

from lightning_audit import PrivacyAudit
from lightning_audit.canaries import InputCanary
from lightning_audit.record.store import INJECTED, read_observations


def hand_written_loss(module: HandWritten, batch: Any) -> torch.Tensor:
    return functional.cross_entropy(module.net(batch[0]), batch[1])


#: For modules without a ``forward``.
STATED: dict[str, Any] = {"loss": hand_written_loss, "num_classes": 10}


class Forward(PrivateModule):
    """Opacus' training, of a module that has a ``forward``."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)


def records_in(directory: Path) -> Any:
    return read_observations(directory / "audit" / "observations.bin")[1]


def readings_in(directory: Path) -> tuple[np.ndarray, np.ndarray]:
    """What was read without and with the canary."""
    entries = records_in(directory)
    entries = entries[entries["canaries"] == INJECTED]
    inside = entries["coins"][:, 0] > 0
    return entries["readings"][~inside, 0], entries["readings"][inside, 0]


def weights_of(module: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten().double() for p in module.parameters()])


def audit_with(canary: InputCanary, **kwargs: Any) -> PrivacyAudit:
    return PrivacyAudit(**{"canaries": [canary], "seed": 1, **kwargs})


def audit_unchanged(canary: InputCanary, **kwargs: Any) -> PrivacyAudit:
    return audit_with(canary, claim=CLAIM, **kwargs)
