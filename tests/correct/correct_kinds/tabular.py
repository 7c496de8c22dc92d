"""Tables: embeddings, missing values, ordered classes, places, equal records."""

import math
import os
import random
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from correct_kinds.base import Private, mlp
from correct_kinds.data import Changed, iris, normals, tensors


class Columns(nn.Module):
    """Two categorical columns as embeddings, and numbers with flags of those that are missing."""

    def __init__(self) -> None:
        super().__init__()
        self.job, self.town = nn.Embedding(12, 4), nn.Embedding(40, 6)
        self.head = mlp(4 + 6 + 10, 32, 1)

    def forward(self, job: Any, town: Any, numbers: Any) -> torch.Tensor:
        known = numbers.isfinite()
        filled = torch.where(known, numbers, torch.zeros_like(numbers))
        parts = (self.job(job), self.town(town), filled, known.float())
        return self.head(torch.cat(parts, dim=1))[:, 0]


class MissingValues(Private, kind="tabular-missing-values"):
    """Correct: each row is imputed by constants. Unusual: NaN in the batch, and more values
    dropped at random by a numpy Generator that the module holds."""

    Net = Columns

    def make_data(self) -> TensorDataset:
        self.rng = np.random.default_rng(self.seed)
        x = normals(self.seed, 480, 5)
        target = (x[:, 0] > 0).astype(float)
        x[normals(self.seed + 1, 480, 5) > 1.0] = np.nan
        jobs, towns = self.rng.integers(0, 12, 480), self.rng.integers(0, 40, 480)
        return TensorDataset(*tensors(jobs, towns, x, target))

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        job, town, numbers, y = batch
        drop = torch.from_numpy(self.rng.random(tuple(numbers.shape)) < 0.1)
        numbers = numbers.masked_fill(drop, math.nan)
        return functional.binary_cross_entropy_with_logits(self.net(job, town, numbers), y)


class Cutpoints(nn.Module):
    """Ordered thresholds as parameters, which is no layer that Opacus knows."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.gaps = nn.Parameter(-torch.ones(1)), nn.Parameter(torch.zeros(3))

    def forward(self, score: torch.Tensor) -> torch.Tensor:
        steps = functional.softplus(self.gaps).cumsum(0)
        return torch.cat([self.first, self.first + steps]) - score


class Ordinal(Private, kind="ordinal-cutpoints"):
    """Correct: a cumulative link per record. Unusual: cutpoints are bare parameters, for which
    Opacus computes per-sample gradients with functorch."""

    def make_net(self) -> nn.Module:
        return nn.Sequential(mlp(6, 32, 1), Cutpoints())

    def make_data(self) -> TensorDataset:
        x = normals(self.seed, 480, 6)
        score = x[:, 0] + normals(self.seed + 1, 480)
        return TensorDataset(*tensors(x, np.digitize(score, [-1.0, -0.3, 0.3, 1.0])))

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y = batch
        below = torch.sigmoid(self.net(x))
        ends = functional.pad(functional.pad(below, (1, 0), value=0.0), (0, 1), value=1.0)
        return -(ends[:, 1:] - ends[:, :-1]).gather(1, y[:, None]).clamp(min=1e-6).log().mean()


class Places(Private, kind="geo-urandom"):
    """Correct: each place is displaced on its own. Unusual: the displacement of a row comes from
    os.urandom in `__getitem__`, and Fourier features were drawn by random.Random."""

    widths = (32, 32, 1)

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

    batch_size, widths, source = 16, (4, 100, 3), staticmethod(iris)
