"""Tables: embeddings, missing values, survival, prices, counts, quantiles, ordered classes."""

import math
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from correct_kinds.base import Private
from correct_kinds.data import Changed, normals, tensors


def regressor(width: int, out: int = 1, hidden: int = 32) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, hidden), nn.Tanh(), nn.Linear(hidden, out))


class Columns(nn.Module):
    """Two categorical columns as embeddings, and numbers with flags of those that are missing."""

    def __init__(self) -> None:
        super().__init__()
        self.job, self.town = nn.Embedding(12, 4), nn.Embedding(40, 6)
        self.head = regressor(4 + 6 + 10)

    def forward(self, job: Any, town: Any, numbers: Any) -> torch.Tensor:
        known = numbers.isfinite()
        filled = torch.where(known, numbers, torch.zeros_like(numbers))
        parts = (self.job(job), self.town(town), filled, known.float())
        return self.head(torch.cat(parts, dim=1))[:, 0]


class MissingValues(Private, kind="tabular-missing-values"):
    """Correct: each row is imputed by constants. Unusual: NaN in the batch, and more values
    dropped at random by a numpy Generator that the module holds."""

    def make_net(self) -> nn.Module:
        return Columns()

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


class CoxPublicRiskSet(Private, kind="cox-public-risk-set"):
    """Correct: the partial likelihood compares a record with a public cohort, never with the
    batch. Unusual: a part of the cohort is drawn in each step by an own torch.Generator."""

    def make_net(self) -> nn.Module:
        return regressor(8)

    def make_data(self) -> TensorDataset:
        self.draws = torch.Generator().manual_seed(self.seed)
        x = normals(self.seed, 480, 8)
        times = np.exp(-x[:, 1] + 0.3 * normals(self.seed + 1, 480))
        public = normals(99, 200, 8)
        self.cohort, self.times = tensors(public, np.exp(-public[:, 1]))
        return TensorDataset(*tensors(x, times))

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, time = batch
        chosen = torch.randperm(200, generator=self.draws)[:64]
        with torch.no_grad():
            others = self.net(self.cohort[chosen])[:, 0]
        at_risk = self.times[chosen] >= time[:, None]
        own = self.net(x)[:, 0]
        rest = others.expand(len(x), -1).masked_fill(~at_risk, -1e4)
        return (torch.logsumexp(torch.cat([own[:, None], rest], dim=1), dim=1) - own).mean()


class Prices(Private, kind="log-prices"):
    """Correct: a house's price is jittered on its own. Unusual: log targets, jitter by numpy's
    global generator in `__getitem__`, cosine annealing by steps."""

    def make_net(self) -> nn.Module:
        return regressor(6)

    def make_data(self) -> Changed:
        x = normals(self.seed, 480, 6)
        price = np.exp(11 + 0.4 * x[:, 0] + 0.1 * normals(self.seed + 1, 480))

        def jitter(features: torch.Tensor, price: torch.Tensor) -> Any:
            return features, torch.log1p(price * float(np.random.uniform(0.95, 1.05)))

        return Changed(TensorDataset(*tensors(x, price)), jitter)

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        annealed = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 60)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": annealed, "interval": "step"}}

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, price = batch
        return functional.huber_loss(self.net(x)[:, 0] + 11.0, price)


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
        return nn.Sequential(regressor(6), Cutpoints())

    def make_data(self) -> TensorDataset:
        x = normals(self.seed, 480, 6)
        score = x[:, 0] + normals(self.seed + 1, 480)
        return TensorDataset(*tensors(x, np.digitize(score, [-1.0, -0.3, 0.3, 1.0])))

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y = batch
        below = torch.sigmoid(self.net(x))
        ends = functional.pad(functional.pad(below, (1, 0), value=0.0), (0, 1), value=1.0)
        return -(ends[:, 1:] - ends[:, :-1]).gather(1, y[:, None]).clamp(min=1e-6).log().mean()
