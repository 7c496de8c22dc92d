"""Trainings whose batches, records or accountant differ from what is accounted for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from opacus.data_loader import DPDataLoader
from opacus.utils.uniform_sampler import UniformWithReplacementSampler
from torch.utils.data import ConcatDataset, DataLoader, Subset, TensorDataset

from lightning_audit.testing.trainings import RECORDS, Training, random_data

#: Records that `FavouredRecords` adds to each batch.
FAVOURED = (3, 5, 8)


class SameBatchesInEveryEpoch(Training):
    """Seeds the Poisson sampler at each epoch's start; the first epoch may have begun before."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.data = random_data(records=RECORDS // 4)

    def on_train_epoch_start(self) -> None:
        """Make epochs reproducible, and thereby equal."""
        self.order.manual_seed(1)

    def train_dataloader(self) -> DataLoader[Any]:
        """Return Poisson batches from their own generator."""
        self.order = torch.Generator()
        return DPDataLoader.from_data_loader(self.plain_loader(), generator=self.order)


class FavouringSampler(UniformWithReplacementSampler):
    """Poisson batches to which some records are always added."""

    def __iter__(self) -> Iterator[list[int]]:
        """Yield Poisson batches with the favored records."""
        for batch in super().__iter__():
            yield sorted({*batch, *FAVOURED})


class FavouredRecords(Training):
    """Some records are in every batch."""

    def train_dataloader(self) -> DataLoader[Any]:
        """Return a loader with the favoring sampler."""
        loader = super().train_dataloader()
        loader.batch_sampler.__class__ = FavouringSampler
        return loader


class RecordsTwice(Training):
    """The data set holds half of the records twice."""

    data: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        data: TensorDataset = self.data
        half = Subset(data, range(RECORDS // 2))
        self.data = ConcatDataset([half, Subset(data, range(RECORDS // 2))])


class TwoStepsOnABatch(Training):
    """Takes two steps on each batch."""

    automatic_optimization = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        """Train on the batch twice."""
        module: Any = self
        for _ in range(2):
            optimizer = module.optimizers()
            optimizer.zero_grad()
            module.manual_backward(super().training_step(batch, batch_idx))
            optimizer.step()


class KeptBatches(Training):
    """Trains on an earlier batch at every fourth step, instead of the drawn one."""

    kept: Any = None

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """Keep a batch, and train on it again later."""
        if batch_idx % 4 == 0:
            self.kept = batch
        return super().training_step(self.kept if batch_idx % 4 == 3 else batch, batch_idx)


class HookWrapped(Training):
    """Wraps the accountant's hook, as for logging."""

    calls = 0

    def tells(self) -> bool:
        """Return whether to call the accountant for this step."""
        return True

    def configure_optimizers(self) -> Any:
        """Return the optimizer, with another hook."""
        optimizer = super().configure_optimizers()
        own = optimizer.step_hook

        def hook(stepping: Any) -> None:
            self.calls += 1
            if self.tells():
                own(stepping)

        optimizer.step_hook = lambda stepping: hook(stepping)
        return optimizer


class EverySecondStepTold(HookWrapped):
    """Calls the accountant at every second step only."""

    def tells(self) -> bool:
        """Return whether to call the accountant for this step."""
        return self.calls % 2 == 1


class MoreNoiseTold(Training):
    """Reports twice the optimizer's noise multiplier to the accountant."""

    def configure_optimizers(self) -> Any:
        """Return the optimizer, with a hook that states another noise multiplier."""
        optimizer = super().configure_optimizers()
        own, stated = optimizer.step_hook, optimizer.noise_multiplier

        def hook(stepping: Any) -> None:
            stepping.noise_multiplier = 2.0 * stated
            own(stepping)
            stepping.noise_multiplier = stated

        optimizer.step_hook = hook
        return optimizer
