"""Small trainings with other features of Opacus, on the random data of `trainings`."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from opacus import PrivacyEngine
from opacus.utils.batch_memory_manager import BatchSplittingSampler
from torch import nn
from torch.utils.data import DataLoader

from lightning_audit.testing.trainings import Training


class Configured(Training):
    """A training whose class states the arguments of `PrivacyEngine` and `make_private`."""

    engine: ClassVar[dict[str, Any]] = {}
    engine_arguments: ClassVar[dict[str, Any]] = {}

    def configure_optimizers(self) -> Any:
        """Return the optimizer of make_private, with the fault planted."""
        self.net, optimizer, *_ = self._private()
        return self.plant(optimizer)

    def _private(self, **more: Any) -> tuple[Any, ...]:
        made: tuple[Any, ...] = PrivacyEngine(**self.engine).make_private(
            module=self.net,
            optimizer=torch.optim.SGD(self.net.parameters(), lr=0.05),
            data_loader=self.plain_loader(),
            **{**self.settings, **self.engine_arguments, **more},
        )
        return made


class Ghost(Configured):
    """Ghost clipping as in its tutorial."""

    def configure_optimizers(self) -> Any:
        """Return the optimizer of make_private, with the fault planted."""
        self.net, optimizer, criterion, _ = self._private(
            criterion=nn.CrossEntropyLoss(), grad_sample_mode="ghost"
        )
        self.__dict__["criterion"] = criterion  # not registered as a submodule
        return self.plant(optimizer)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """Return the loss, whose backward pass clips."""
        x, y = batch
        return {"loss": self.__dict__["criterion"](self.forward(x), y)}


class NormNotPassedOn(Ghost):
    """Halves the clipping norm of the optimizer after some steps, but not that of the module."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """Halve the optimizer's norm at step 4, and return the loss, whose backward pass clips."""
        if batch_idx == 4:
            self.trainer.optimizers[0].max_grad_norm /= 2.0  # type: ignore[attr-defined]
        return super().training_step(batch, batch_idx)


class _WholeBatches(BatchSplittingSampler):
    """Opacus' sampler without a length, at which Lightning would cut the epoch."""

    def __len__(self) -> int:
        raise TypeError("the number of physical batches is not known in advance")


class PhysicalBatches(Training):
    """Opacus' batch memory manager: physical batches of at most eight records."""

    splitter: ClassVar[type[BatchSplittingSampler]] = _WholeBatches

    def train_dataloader(self) -> Any:
        """Return Poisson batches in parts."""
        logical = super().train_dataloader()
        sampler = self.splitter(
            sampler=logical.batch_sampler,
            max_batch_size=8,
            optimizer=self.trainer.optimizers[0],  # type: ignore[attr-defined]  # Lightning's
        )
        return DataLoader(logical.dataset, batch_sampler=sampler, collate_fn=logical.collate_fn)


class GhostInParts(PhysicalBatches, Ghost):
    """Ghost clipping of physical batches."""
