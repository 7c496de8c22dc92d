"""Private optimizers, for faults to be planted in."""

from typing import Any

import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader

from lightning_audit.testing import trainings


def private(mode: str = "hooks", **settings: Any) -> Any:
    net = trainings.net()
    more: dict[str, Any] = {"criterion": nn.CrossEntropyLoss()} if mode == "ghost" else {}
    return PrivacyEngine().make_private(
        module=net,
        optimizer=torch.optim.SGD(net.parameters(), lr=0.1),
        data_loader=DataLoader(trainings.random_data(), 16),
        grad_sample_mode=mode,
        **{"noise_multiplier": 1.0, "max_grad_norm": 1.0, **more, **settings},
    )[1]
