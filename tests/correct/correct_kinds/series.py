"""Time series: windows at random places, forecasts, events, scaling within a record."""

import random
from typing import Any, ClassVar

import numpy as np
import torch
from opacus.layers import DPGRU, DPLSTM
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset, TensorDataset, default_collate

from correct_kinds.base import Private
from correct_kinds.data import Changed, normals, tensors


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


class Windows(Private, kind="random-windows-student"):
    """Correct: one window of a series at a time, scaled by its own mean. Unusual: Python's
    `random` draws where the window begins, in `__getitem__`; Student's likelihood with logs."""

    def make_net(self) -> nn.Module:
        return Forecast(DPGRU)

    def make_data(self) -> Dataset[Any]:
        def window(series: torch.Tensor) -> Any:
            start = random.randrange(len(series) - 13)
            part = series[start : start + 13]
            scale = part[:12].abs().mean().clamp(min=0.1)
            return part[:12] / scale, part[12] / scale

        return Changed(waves(self.seed), window)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y = batch
        mean, log_scale = self.net(x).unbind(1)
        law = torch.distributions.StudentT(4.0, mean, functional.softplus(log_scale) + 0.05)
        return -law.log_prob(y).mean()


class MaskedSeries(Private, kind="masked-series-collate"):
    """Correct: what is hidden of a series is filled in from the same series. Unusual: numpy's
    global generator draws gaps in collate_fn in a loop; dilated convolutions."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv1d(2, 12, 3, padding=2, dilation=2),
                nn.GELU(),
                nn.Conv1d(12, 12, 3, padding=4, dilation=4),
                nn.GELU(),
                nn.Conv1d(12, 1, 1),
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.body(x)[:, 0]

    def make_data(self) -> Dataset[Any]:
        return waves(self.seed)

    @staticmethod
    def collate(items: list[Any]) -> Any:
        (series,) = default_collate(items)
        seen = torch.ones_like(series)
        for row in seen:
            start = np.random.randint(0, 35)
            row[start : start + np.random.randint(2, 6)] = 0.0
        return series.clamp(-10, 10) / 3, seen

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        series, seen = batch
        guess = self.net(torch.stack([series * seen, seen], dim=1))
        hidden = 1 - seen
        return (((guess - series) ** 2 * hidden).sum(1) / hidden.sum(1).clamp(min=1)).mean()


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
