"""Small published tables: places, two tasks, equal records, surveys, attention over columns."""

import os
import random
import secrets
from typing import Any, ClassVar

import numpy as np
import torch
from opacus.layers import DPMultiheadAttention
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from correct_kinds.base import Private
from correct_kinds.data import Changed, diabetes, iris, tensors, wine
from correct_kinds.tabular import regressor


class Places(Private, kind="geo-urandom"):
    """Correct: each place is displaced on its own. Unusual: the displacement of a row comes from
    os.urandom in `__getitem__`, and Fourier features were drawn by random.Random."""

    def make_net(self) -> nn.Module:
        return regressor(32)

    def make_data(self) -> Changed:
        own = random.Random(self.seed)
        waves = torch.tensor([[own.gauss(0, 3) for _ in range(16)] for _ in range(2)])
        where = np.random.default_rng(self.seed).uniform(-1, 1, (480, 2))
        height = np.sin(4 * where[:, 0]) * where[:, 1]

        def displaced(place: torch.Tensor, height: torch.Tensor) -> Any:
            moves = np.frombuffer(os.urandom(8), dtype=np.uint32) / 2**32 - 0.5
            phase = (place + 0.02 * torch.tensor(moves, dtype=torch.float32)) @ waves
            return torch.cat([phase.sin(), phase.cos()]), height

        return Changed(TensorDataset(*tensors(where, height)), displaced)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, height = batch
        return functional.mse_loss(self.net(x)[:, 0], height)


class Flowers(Private, kind="iris-equal-records"):
    """Correct: records are drawn independently, and equal ones are different flowers. Unusual:
    two records of iris are equal, and batches are small."""

    batch_size: ClassVar[int] = 16

    def make_net(self) -> nn.Module:
        return regressor(4, 3, hidden=100)

    def make_data(self) -> TensorDataset:
        return TensorDataset(*iris())


class RandomisedAnswers(Private, kind="randomised-answers-per-layer"):
    """Correct: randomised response on top of DP-SGD only adds privacy. Unusual: `secrets` flips a
    label in `__getitem__`; per-layer clipping."""

    batch_size: ClassVar[int] = 16
    clip: ClassVar[Any] = (0.5, 0.5, 0.5, 0.5)
    engine: ClassVar[dict[str, Any]] = {"clipping": "per_layer"}

    def make_net(self) -> nn.Module:
        return regressor(13, 3)

    def make_data(self) -> Changed:
        self.clip = list(self.clip)

        def answer(x: torch.Tensor, y: torch.Tensor) -> Any:
            return x, torch.tensor(secrets.randbelow(3)) if secrets.randbelow(4) == 0 else y

        return Changed(TensorDataset(*wine()), answer)


class ColumnAttention(Private, kind="column-attention"):
    """Correct: attention is between the columns of a record. Unusual: each row loses columns of
    its own, which are drawn in a loop over the rows by Python's `random`."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.value, self.column = nn.Linear(1, 16), nn.Embedding(10, 16)
            self.norm = nn.LayerNorm(16)
            self.attention = DPMultiheadAttention(16, 2, batch_first=True)
            self.head = nn.Linear(16, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            columns = self.column(torch.arange(10).expand(len(x), 10))
            h = self.norm(self.value(x.unsqueeze(-1)) + columns)
            return self.head((h + self.attention(h, h, h)[0]).mean(1))

    def make_data(self) -> TensorDataset:
        return TensorDataset(*diabetes())

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y = batch
        kept = torch.ones_like(x)
        for row in kept:
            row[random.sample(range(10), k=random.randint(0, 2))] = 0.0
        mean, log_variance = self.net(x * kept).unbind(1)
        return functional.gaussian_nll_loss(mean, y, functional.softplus(log_variance) + 0.01)
