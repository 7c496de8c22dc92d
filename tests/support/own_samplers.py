"""A training with a batch sampler of the user's own."""

from collections.abc import Iterator
from typing import Any

import torch
from opacus.data_loader import DPDataLoader
from torch.utils.data import DataLoader, RandomSampler, Sampler
from training_support import PrivateModule


class OwnPoisson(Sampler):
    """Poisson sampling by a class of the user's."""

    def __init__(self, records: int = 512, rate: float = 1 / 32) -> None:
        self.records, self.rate = records, rate

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(len(self)):
            yield torch.nonzero(torch.rand(self.records) < self.rate).flatten().tolist()

    def __len__(self) -> int:
        return 32


class OwnShuffle(OwnPoisson):
    """Goes through the data in batches of varying sizes."""

    def __iter__(self) -> Iterator[list[int]]:
        sizes = torch.full((32,), 16) + torch.randint(-6, 7, (32,))
        sizes[-1] += 512 - sizes.sum()
        yield from (b.tolist() for b in torch.randperm(512).split(sizes.clamp(min=1).tolist()))


class OwnSizes(OwnPoisson):
    """Draws every batch anew, always of one size."""

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(len(self)):
            yield torch.randperm(512)[:16].tolist()


class SeedsItself(OwnPoisson):
    """The same batches in every epoch."""

    def __iter__(self) -> Iterator[list[int]]:
        generator = torch.Generator().manual_seed(3)
        for _ in range(len(self)):
            mask = torch.rand(self.records, generator=generator) < self.rate
            yield torch.nonzero(mask).flatten().tolist()


class WithReplacement(OwnPoisson):
    """Torch's own sampler with replacement: a record can stand twice in a batch."""

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(len(self)):
            yield list(RandomSampler(range(64), replacement=True, num_samples=16))


class OwnSampling(PrivateModule):
    def __init__(self, sampler: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.sampler, self.workers = sampler, 0

    def train_dataloader(self) -> Any:
        collate = DPDataLoader.from_data_loader(self.plain_loader()).collate_fn
        self.loader = DataLoader(
            self.dataset, batch_sampler=self.sampler, collate_fn=collate, num_workers=self.workers
        )
        return self.loader
