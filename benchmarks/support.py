"""Trainings shared by the benchmarks: real data, real Opacus, a real Trainer."""

from __future__ import annotations

import contextlib
import logging
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytorch_lightning as pl
import torch
from opacus import PrivacyEngine
from opacus.data_loader import DPDataLoader
from opacus.layers import DPMultiheadAttention
from sklearn.datasets import load_breast_cancer, load_digits
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, TensorDataset

# The package is imported where it is used: `plain_loops` measures its import.
DELTA = 1e-5


def quiet() -> None:
    """Silence the messages of Lightning and Opacus on loaders, hooks and devices."""
    for name in ("pytorch_lightning", "lightning_audit"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", module="opacus|pytorch_lightning|torch|lightning_utilities")
    torch.set_num_threads(1)


def digits() -> TensorDataset:
    """1,797 images of 8 x 8 pixels."""
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    return TensorDataset(images, torch.tensor(data.target))


def large_digits() -> TensorDataset:
    """Return the digits, enlarged to 28 x 28 pixels."""
    images, labels = digits().tensors
    return TensorDataset(functional.interpolate(images, 28, mode="bilinear"), labels)


def digit_tokens() -> TensorDataset:
    """Return the digits as sequences of 16 tokens: the quantized means of 2 x 2 pixels."""
    images, labels = digits().tensors
    means = functional.avg_pool2d(images, 2).flatten(1)
    return TensorDataset((means * 16).round().long(), labels)


def cells() -> TensorDataset:
    """569 records of 30 standardized features, two classes."""
    data = load_breast_cancer()
    features = torch.tensor(data.data, dtype=torch.float32)
    return TensorDataset((features - features.mean(0)) / features.std(0), torch.tensor(data.target))


def conv_net() -> nn.Module:
    """5,994 parameters, for the digits."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(128, 10),
    )


def medium_conv_net() -> nn.Module:
    """26,010 parameters, for 28 x 28 pixels."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, padding=3),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, 2),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(512, 32),
        nn.ReLU(),
        nn.Linear(32, 10),
    )


def mlp(
    inputs: int = 64,
    hidden: int = 64,
    classes: int = 10,
    activation: Callable[[], nn.Module] = nn.ReLU,
) -> nn.Module:
    """Return a net of three linear layers."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(inputs, hidden),
        activation(),
        nn.Linear(hidden, hidden),
        activation(),
        nn.Linear(hidden, classes),
    )


class Transformer(nn.Module):
    """One block of attention over 16 tokens: 1.1 million parameters at width 304."""

    def __init__(self, width: int = 304) -> None:
        super().__init__()
        self.tokens = nn.Embedding(17, width)
        self.places = nn.Embedding(16, width)
        self.attention = DPMultiheadAttention(width, 4, batch_first=True)
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.head = nn.Linear(width, 10)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return class scores of token sequences, ``[n, 16]`` to ``[n, 10]``."""
        places = torch.arange(tokens.shape[1], device=tokens.device).expand(tokens.shape)
        x = self.norms[0](self.tokens(tokens) + self.places(places))
        x = x + self.attention(x, x, x)[0]
        x = self.norms[1](x + self.narrow(torch.relu(self.widen(x))))
        return self.head(x.mean(1))


class Classifier(pl.LightningModule):
    """Any net on any data set, trained with DP-SGD."""

    def __init__(
        self,
        net: nn.Module,
        data: Dataset,
        *,
        batch_size: int = 64,
        noise_multiplier: float = 1.0,
        max_grad_norm: float = 1.0,
        learning_rate: float = 0.25,
        noise_factor: float = 1.0,
        make_optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
    ) -> None:
        super().__init__()
        self.net = net
        self.data = data
        self.options = {"noise_multiplier": noise_multiplier, "max_grad_norm": max_grad_norm}
        self.batch_size, self.learning_rate = batch_size, learning_rate
        self.noise_factor, self.make_optimizer = noise_factor, make_optimizer

    def training_step(self, batch, _):
        """Return the cross-entropy of a batch."""
        inputs, labels = batch
        return functional.cross_entropy(self.net(inputs), labels)

    def train_dataloader(self):
        """Return a loader of Poisson batches."""
        return DPDataLoader.from_data_loader(DataLoader(self.data, self.batch_size))

    def configure_optimizers(self):
        """Return the optimizer of make_private, or a faulty one instead."""
        self.net, optimizer, _ = PrivacyEngine().make_private(
            module=self.net,
            optimizer=self.make_optimizer(self.net.parameters(), lr=self.learning_rate),
            data_loader=DataLoader(self.data, self.batch_size),
            **self.options,
        )
        if self.noise_factor == 1.0:
            return optimizer
        from lightning_audit.testing.faulty import ScaledNoise

        optimizer.__class__ = ScaledNoise
        optimizer.factor = self.noise_factor
        return optimizer


class GhostClassifier(Classifier):
    """The same with ghost clipping."""

    def training_step(self, batch, _):
        """Return the cross-entropy of a batch, wrapped by Opacus for its two backward passes."""
        inputs, labels = batch
        return {"loss": self.criterion(self.net(inputs), labels)}

    def configure_optimizers(self):
        """Return the optimizer of make_private."""
        self.net, optimizer, criterion, _ = PrivacyEngine().make_private(
            module=self.net,
            optimizer=self.make_optimizer(self.net.parameters(), lr=self.learning_rate),
            data_loader=DataLoader(self.data, self.batch_size),
            criterion=nn.CrossEntropyLoss(),
            grad_sample_mode="ghost",
            **self.options,
        )
        self.__dict__["criterion"] = criterion
        return optimizer


def now() -> float:
    """Return a time in seconds, after the work that accelerators were given."""
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()
    return time.perf_counter()


def trainer(steps: int, *callbacks: pl.Callback, accelerator: str = "cpu") -> pl.Trainer:
    """Return a Trainer of a given number of steps that writes nothing."""
    return pl.Trainer(
        max_steps=steps,
        max_epochs=-1,
        callbacks=list(callbacks),
        accelerator=accelerator,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


@contextlib.contextmanager
def counted_replays() -> Iterator[list[int]]:
    """Yield a list to which each examination appends its number of replayed steps."""
    counts: list[int] = []
    from lightning_audit.run import examinations

    make = examinations.examine_step

    def examine_step(*given: Any, **named: Any) -> Any:
        found = make(*given, **named)
        counts.append(found.steps)
        return found

    examinations.examine_step = examine_step  # type: ignore[assignment]
    try:
        yield counts
    finally:
        examinations.examine_step = make
