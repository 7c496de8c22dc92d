"""Time series: windows at random places, forecasts, events, scaling within a record."""

from typing import Any, ClassVar

import numpy as np
import torch
from opacus.layers import DPLSTM
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset, TensorDataset

from correct_kinds.base import Private
from correct_kinds.data import normals, tensors


def waves(seed: int, records: int = 480, length: int = 40) -> TensorDataset:
    """A noisy wave each, of its own frequency and level."""
    rng = np.random.default_rng(4000 + seed)
    t = np.arange(length)
    frequency, phase = rng.uniform(0.2, 0.8, (records, 1)), rng.uniform(0, 6, (records, 1))
    level = np.exp(rng.normal(0, 1, (records, 1)))
    values = level * (1.5 + np.sin(frequency * t + phase)) + 0.1 * rng.normal(
        size=(records, length)
    )
    return TensorDataset(*tensors(values))


class Forecast(nn.Module):
    def __init__(self, layer: type[nn.Module]) -> None:
        super().__init__()
        self.rnn, self.head = layer(1, 16, batch_first=True), nn.Linear(16, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.rnn(x.unsqueeze(2))[0][:, -1])


class Events(Private, kind="point-process-monte-carlo"):
    """Correct: the likelihood of a record's own waiting times. Unusual: the compensator is
    integrated by Monte Carlo in the loss, with draws for each record, loss_reduction a sum."""

    engine: ClassVar[dict[str, Any]] = {"loss_reduction": "sum"}

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = DPLSTM(1, 8, batch_first=True)
            self.rate = nn.Sequential(nn.Linear(9, 16), nn.Tanh(), nn.Linear(16, 1))

        def forward(self, waits: torch.Tensor, ahead: torch.Tensor) -> torch.Tensor:
            wide = self.rnn(waits[:, :, None])[0][:, -1][:, None].expand(-1, ahead.shape[1], -1)
            return functional.softplus(self.rate(torch.cat([wide, ahead[:, :, None]], 2)))[:, :, 0]

    def make_data(self) -> Dataset[Any]:
        self.draws = torch.Generator().manual_seed(self.seed)
        return TensorDataset(*tensors(np.exp(0.5 * normals(self.seed, 480, 8)) / 2))

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        (waits,) = batch
        last = waits[:, 7:]
        drawn = torch.rand(len(last), 6, generator=self.draws) * last
        rates = self.net(waits[:, :7], torch.cat([last, drawn], dim=1))
        return (last[:, 0] * rates[:, 1:].mean(1) - rates[:, 0].clamp(min=1e-6).log()).sum()
