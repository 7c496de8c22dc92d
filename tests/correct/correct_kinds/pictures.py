"""Images: augmentation in many places, mixing with public data, depth and width at random."""

import random
from typing import Any, ClassVar

import numpy as np
import pytorch_lightning as pl
import torch
from opacus.data_loader import DPDataLoader
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from correct_kinds.base import Private
from correct_kinds.data import Changed, images, public_digits


def small_conv() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.GroupNorm(2, 8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 12, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(48, 10),
    )


class Pictures(Private):
    """What the kinds of this module share."""

    rate, Net, source = 0.2, staticmethod(small_conv), staticmethod(images)


def shifted(image: torch.Tensor, label: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A transform as image pipelines have it."""
    if random.random() < 0.8:
        image = image.roll((random.randint(-1, 1), random.randint(-1, 1)), dims=(1, 2))
    return image * random.uniform(0.8, 1.2) + 0.05 * torch.randn(image.shape), label


class Transformed(Pictures, kind="transforms-in-getitem"):
    """Correct: an image is augmented on its own. Unusual: both Python's `random` and torch draw
    in `__getitem__`, an unequal number of times."""

    def make_data(self) -> Dataset[Any]:
        return Changed(images(), shifted)


class MixedWithPublic(Pictures, kind="mixup-with-public"):
    """Correct: each record is mixed with a public image, never with another record. Unusual: one
    mixing weight for the step by np.random.beta, and partners by torch.randint."""

    def make_data(self) -> Dataset[Any]:
        x, self.public_labels = public_digits()
        self.public = x.view(-1, 1, 8, 8)
        return images()

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y = batch
        share = float(np.random.beta(2.0, 2.0))
        partner = torch.randint(len(self.public), (len(x),))
        scores = self.net(share * x + (1 - share) * self.public[partner])
        own = functional.cross_entropy(scores, y)
        other = functional.cross_entropy(scores, self.public_labels[partner])
        return share * own + (1 - share) * other


class CutOut(Pictures, kind="cutout-in-datamodule"):
    """Correct: a hole is cut into each image on its own. Unusual: random.Random of a
    LightningDataModule draws it row by row, in on_after_batch_transfer of the data module."""

    class Data(pl.LightningDataModule):
        def __init__(self, seed: int) -> None:
            super().__init__()
            self.holes = random.Random(seed)

        def train_dataloader(self) -> DataLoader[Any]:
            return DPDataLoader.from_data_loader(DataLoader(images(), batch_size=24))

        def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
            x = batch[0].clone()
            for row in x:
                top, left = self.holes.randrange(6), self.holes.randrange(6)
                row[:, top : top + 3, left : left + 3] = 0.0
            return [x, batch[1]]

    datamodule_class: ClassVar[Any] = Data


class Block(nn.Module):
    """A residual block that a record skips by its own coin."""

    def __init__(self, kept: float) -> None:
        super().__init__()
        self.kept, self.body = kept, nn.Sequential(nn.Linear(32, 32), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return x + self.body(x)
        return x + (torch.rand(len(x), 1) < self.kept) * self.body(x) / self.kept


class RandomDepth(Private, kind="stochastic-depth"):
    """Correct: every record has its own coins for the blocks. Unusual: a record's gradient is
    exactly zero in the blocks that it skips."""

    def make_net(self) -> nn.Module:
        blocks = (Block(kept) for kept in (0.9, 0.7, 0.5))
        return nn.Sequential(nn.Linear(64, 32), *blocks, nn.Linear(32, 10))


class RandomWidth(Private, kind="slimmable-width"):
    """Correct: the width is drawn for the step, without a look at the records. Unusual: a slimmable
    net whose units above the width have no gradient in that step, by Python's `random`."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(64, 64), nn.Linear(64, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            width = random.choice((16, 32, 48, 64))
            return self.last(torch.relu(self.first(x)) * (torch.arange(64) < width))


class Adapters(Private, kind="adapters-noisy-features"):
    """Correct: the backbone is public and frozen, and adapters see one record each. Unusual: noise
    on the features (numpy Generator of the module), and an up-projection that starts at zero."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.backbone = nn.Linear(64, 64).requires_grad_(requires_grad=False)
            self.down, self.up = nn.Linear(64, 4, bias=False), nn.Linear(4, 64, bias=False)
            nn.init.zeros_(self.up.weight)
            self.head, self.rng = nn.Linear(64, 10), np.random.default_rng(7)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = torch.relu(self.backbone(x) + self.up(self.down(x)))
            noise = self.rng.normal(0, 0.05, tuple(h.shape)).astype(np.float32)
            return self.head(h + torch.from_numpy(noise))
