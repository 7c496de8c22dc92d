"""Generative models: reparametrisation, timesteps, dequantisation, relaxed codes."""

import math
import random
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from correct_kinds.base import Private


class Autoencoder(nn.Module):
    """Draws its code inside of the forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 12))
        self.decode = nn.Sequential(nn.Linear(6, 48), nn.ReLU(), nn.Linear(48, 64))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        mean, log_variance = self.encode(x).chunk(2, dim=1)
        code = mean + torch.exp(0.5 * log_variance) * torch.randn_like(mean)
        return self.decode(code), mean, log_variance


class Variational(Private, kind="variational-autoencoder"):
    """Correct: each record's code has noise of its own. Unusual: the model draws it in forward,
    from the generator that Opacus' noise comes from as well."""

    Net = Autoencoder

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        scores, mean, log_variance = self.net(batch[0])
        fit = functional.binary_cross_entropy_with_logits(scores, batch[0], reduction="none")
        kl = 0.5 * (mean**2 + log_variance.exp() - 1 - log_variance)
        return (fit.sum(1) + kl.sum(1)).mean()


class Denoiser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Embedding(50, 16)
        self.body = nn.Sequential(nn.Linear(80, 64), nn.SiLU(), nn.Linear(64, 64))

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return self.body(torch.cat([x, self.time(t)], dim=1))


class Diffusion(Private, kind="diffusion-own-generator"):
    """Correct: a record has its own timestep and noise. Unusual: an own torch.Generator of the
    module draws both before the forward pass; AdamW with warm-up."""

    Net = Denoiser

    def set_up(self) -> None:
        self.draws = torch.Generator().manual_seed(self.seed)
        self.kept = torch.cos(torch.linspace(0, math.pi / 2, 52)[1:-1]) ** 2

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=20)
        return [optimizer], [{"scheduler": warm, "interval": "step"}]

    def inner(self, params: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(params, lr=0.003)

    def times(self, records: int) -> torch.Tensor:
        return torch.randint(0, 50, (records,), generator=self.draws)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x = batch[0] * 2 - 1
        t = self.times(len(x))
        noise = torch.randn(x.shape, generator=self.draws)
        kept = self.kept[t][:, None]
        return functional.mse_loss(self.net(kept.sqrt() * x + (1 - kept).sqrt() * noise, t), noise)


class OneTimestep(Diffusion, kind="diffusion-one-timestep"):
    """Correct: one timestep for all records, drawn without a look at them. Unusual: shared by the
    batch; Python's random.Random of the module draws it, an own torch.Generator the noise."""

    def times(self, records: int) -> torch.Tensor:
        self.clock = self.__dict__.get("clock") or random.Random(self.seed)
        return torch.full((records,), self.clock.randrange(50))


class Corrupted(Private, kind="denoising-numpy-on-device"):
    """Correct: pixels of a record are deleted on its own. Unusual: the corruption is drawn by
    numpy's global generator in on_after_batch_transfer, and the target is the clean image."""

    widths = (64, 32, 64)

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        x, _ = batch
        deleted = torch.from_numpy(np.random.random_sample(tuple(x.shape)) < 0.3)
        return [x.masked_fill(deleted, 0.0), x]

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return functional.mse_loss(self.net(batch[0]), batch[1])
