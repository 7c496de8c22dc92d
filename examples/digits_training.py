"""Model, optimizer and data that examples/audit_training.yaml names."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn


def make_model() -> nn.Module:
    """Return a model at a known start: random initial weights would hide the canary."""
    model = nn.Linear(64, 10)
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    return model


def make_optimizer(parameters) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.5)


def make_dataset(records: int = 100) -> tuple[torch.Tensor, torch.Tensor]:
    digits = load_digits()
    inputs = torch.tensor(digits.data[:records] / 16, dtype=torch.float32)
    return inputs, torch.tensor(digits.target[:records])
