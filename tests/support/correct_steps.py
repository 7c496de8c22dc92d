"""Correct trainings of many kinds, that an examination by replay must not accuse."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from opacus.layers import DPGRU
from opacus.optimizers import DPOptimizer
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from training_support import PrivateModule, digits

CLASSES = 10


class Trains(PrivateModule):
    """Opacus as its documentation has it, on digits; a kind overrides what it needs."""

    loss_scale = 1.0

    def __init__(self, net: nn.Module, private: Any = None, **more: Any) -> None:
        given = {"dataset": self.data(), "batch_size": 32, "optimizer_class": private}
        super().__init__(net, **{**given, **more})

    def data(self) -> TensorDataset:
        """The digits."""
        return digits()

    def loader(self) -> DataLoader[Any]:
        return self.plain_loader()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.loss_scale * super().training_step(batch, batch_idx)


def mlp(*between: nn.Module) -> nn.Module:
    """A net with layers between."""
    return nn.Sequential(nn.Linear(64, 32), *between, nn.ReLU(), nn.Linear(32, CLASSES))


# ------------------------------------------------------------------ nets


class Recurrent(nn.Module):
    """Each row of an image is a time step; dropout between layers and behind them."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = DPGRU(8, 16, num_layers=2, batch_first=True, dropout=0.3)
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.drop(self.rnn(x.reshape(len(x), 8, 8))[0][:, -1]))


class Words(nn.Module):
    """An embedding of which a batch uses few rows."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(500, 8, padding_idx=0)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.words((x.flatten(1) * 16).long() * 7).mean(1))


class Adapted(nn.Module):
    """A frozen layer with an adapter of low rank."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(64, CLASSES)
        self.frozen.requires_grad_(requires_grad=False)
        self.down, self.up = nn.Linear(64, 2, bias=False), nn.Linear(2, CLASSES, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.frozen(x) + self.up(self.down(x))


class FunctionalDropout(nn.Module):
    """Dropout that no module tells of."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.dropout(x, 0.3, training=True)


def dead() -> nn.Module:
    """Half of the units never fire."""
    net = mlp()
    with torch.no_grad():
        net[0].bias[::2] = -100.0
    return net


class OneWeight(Trains):
    """Linear regression with so few weights."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        scores = self.net(x[:, 20 : 20 + getattr(self.net, "_module", self.net).in_features])
        return functional.mse_loss(scores[:, 0], y.float())


# ------------------------------------------------------------------ optimizers


class ResetsState(DPOptimizer):
    """Adam whose moments are forgotten each fifth step, by a public count."""

    _count = 0

    def step(self, closure: Any = None) -> Any:
        out = super().step(closure)
        self._count += 1
        if self._count % 5 == 0:
            self.original_optimizer.state.clear()
        return out


# ------------------------------------------------------------------ steps


class Augmented(Trains):
    """Noise and shifts by torch, numpy and Python."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        by_numpy = torch.from_numpy(np.random.randn(*x.shape)).to(x)  # as much code has it
        x = x + 0.1 * torch.randn_like(x) + 0.01 * by_numpy
        return super().training_step((x.roll(random.randint(-1, 1), dims=1), y), batch_idx)


class Remembers(Trains):
    """Logs, counts, keeps the last batch for a plot and a running accuracy, and prints."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.seen, self.right, self.last = 0, torch.zeros(()), None

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = self.last = batch
        self.seen += len(x)
        scores = self.net(x)
        self.right += (scores.argmax(1) == y).sum()
        loss = functional.cross_entropy(scores, y, label_smoothing=0.1)
        self.log("loss", loss)
        print("loss", loss.item())
        return loss


class Scheduled(Trains):
    """Warm-up by steps."""

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        warm = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=10)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": warm, "interval": "step"}}


def scaled(by: float) -> Trains:
    """The loss is multiplied."""
    made = Trains(mlp())
    made.loss_scale = by
    return made


@dataclass(frozen=True)
class Correct:
    """A correct training, and the questions that cannot be asked of it, with parts of reasons."""

    name: str
    module: Callable[[], pl.LightningModule]
    not_asked: dict[str, str] = field(default_factory=dict)
    trainer: dict[str, Any] = field(default_factory=dict)
    callbacks: Callable[[], list[pl.Callback]] = list


CORRECT = (
    Correct("a scheduler by steps", lambda: Scheduled(mlp())),
    Correct("LoRA", lambda: Trains(Adapted())),
    Correct("embeddings", lambda: Trains(Words())),
    Correct("GRU with dropout", lambda: Trains(Recurrent())),
    Correct("functional dropout", lambda: Trains(mlp(FunctionalDropout()))),
    Correct("module dropout, LayerNorm", lambda: Trains(mlp(nn.Dropout(), nn.LayerNorm(32)))),
    Correct("augmentation", lambda: Augmented(mlp())),
    Correct("batches of 4", lambda: Trains(mlp(), batch_size=4)),
    Correct("gradients of 1e6", lambda: scaled(1e6)),
    Correct("gradients of 1e-6", lambda: scaled(1e-6)),
    Correct(
        "Adam that forgets its moments",
        lambda: Trains(
            mlp(),
            inner=lambda p: torch.optim.Adam(p, lr=1e-3, weight_decay=0.1),
            private=ResetsState,
        ),
    ),
    Correct("dead units", lambda: Trains(dead())),
    Correct("one weight", lambda: OneWeight(nn.Linear(1, 1, bias=False))),
    Correct(
        "stochastic weight averaging",
        lambda: Trains(mlp()),
        callbacks=lambda: [pl.callbacks.StochasticWeightAveraging(0.01, swa_epoch_start=1)],
        trainer={"max_steps": -1, "max_epochs": 4, "limit_train_batches": 3},
    ),
    Correct("logs, counts and prints", lambda: Remembers(mlp())),
)
