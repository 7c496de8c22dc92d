"""Small trainings of several processes, on the random data of `trainings`."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from opacus import PrivacyEngine
from opacus.data_loader import DPDataLoader
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from torch.utils.data import DataLoader

from lightning_audit.testing.trainings import BATCH_SIZE, Training


class Distributed(Training):
    """Opacus' DP-SGD in several processes: each clips its own batch, the first one adds noise."""

    #: Whether the records are split among the processes.
    dealt: ClassVar = True

    def plain_loader(self) -> DataLoader[Any]:
        """Return sequential batches, large enough that no process gets an empty one by chance."""
        return DataLoader(self.data, 2 * BATCH_SIZE)

    def train_dataloader(self) -> DataLoader[Any]:
        """Return Poisson batches for each process."""
        return DPDataLoader.from_data_loader(self.plain_loader(), distributed=self.dealt)

    def configure_optimizers(self) -> Any:
        """Return the optimizer of make_private, with the fault planted."""
        self.net, optimizer, _ = PrivacyEngine().make_private(
            module=self.for_private(),
            optimizer=torch.optim.SGD(self.net.parameters(), lr=0.05),
            data_loader=self.plain_loader(),
            **self.settings,
        )
        return self.plant(optimizer)

    def for_private(self) -> torch.nn.Module:
        """Return the module for make_private."""
        return DifferentiallyPrivateDistributedDataParallel(self.net)


class NotSynchronised(Distributed):
    """``make_private`` gets a plain module, and Lightning's DDP does not sync Opacus' gradients."""

    def for_private(self) -> torch.nn.Module:
        """Return the net, which only Lightning wraps."""
        return self.net


class DrawnByAll(Distributed):
    """Every process draws from all records."""

    dealt = False
