"""Trainings whose modules give one loss a record."""

from __future__ import annotations

import random
from typing import Any

import lightning.pytorch
import lightning.pytorch.cli
import numpy as np
import pytorch_lightning
import pytorch_lightning.cli
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, TensorDataset
from training_support import PrivateModule, digits

DIGITS = digits(700)


TRAIN, POPULATION = (TensorDataset(*DIGITS[part]) for part in (slice(0, 300), slice(300, 700)))


class Jittered(Dataset):
    """Records that draw from every global generator when they are read."""

    def __init__(self, data: TensorDataset) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = self.data[index]
        return x + 1e-3 * (torch.randn(()) + np.random.normal() + random.random()), y


class Training:
    """An ordinary training on 300 digits, with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 10)
        )
        self.train_data: Dataset = TRAIN

    def losses_per_record(self, batch: Any) -> torch.Tensor:
        x, y = batch
        return functional.cross_entropy(self.net(x), y, reduction="none")

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y = batch
        return functional.cross_entropy(self.net(x), y)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        return None

    def train_dataloader(self) -> DataLoader:
        return DataLoader(self.train_data, batch_size=32, shuffle=True)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(POPULATION, batch_size=100)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.2)


class StandaloneTraining(Training, pytorch_lightning.LightningModule):
    pass


class UnifiedTraining(Training, lightning.pytorch.LightningModule):
    pass


class PrivateTraining(PrivateModule):
    """DP-SGD by Opacus, with Poisson batches."""

    def __init__(self) -> None:
        super().__init__(
            nn.Linear(64, 10), dataset=TRAIN, generator=torch.Generator().manual_seed(5)
        )

    def losses_per_record(self, batch: Any) -> torch.Tensor:
        x, y = batch
        return functional.cross_entropy(self.net(x), y, reduction="none")


def losses_now(module: Any, data: TensorDataset) -> np.ndarray:
    with torch.no_grad():
        return module.eval().losses_per_record(data[:]).double().numpy()


def loader_of(data: Dataset) -> DataLoader:
    return DataLoader(data, batch_size=50, shuffle=True)
