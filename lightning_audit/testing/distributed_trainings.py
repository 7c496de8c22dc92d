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
    """Several processes as Opacus has it: each clips its own batch, the first one adds noise."""

    #: Whether the records are dealt out to the processes.
    dealt: ClassVar = True

    def plain_loader(self) -> DataLoader[Any]:
        """Batches in order, of so many records that no process has an empty one by chance."""
        return DataLoader(self.data, 2 * BATCH_SIZE)

    def train_dataloader(self) -> DataLoader[Any]:
        """Poisson batches of each process."""
        return DPDataLoader.from_data_loader(self.plain_loader(), distributed=self.dealt)

    def configure_optimizers(self) -> Any:
        """The optimizer of make_private, with the fault planted."""
        self.net, optimizer, _ = PrivacyEngine().make_private(
            module=self.for_private(),
            optimizer=torch.optim.SGD(self.net.parameters(), lr=0.05),
            data_loader=self.plain_loader(),
            **self.settings,
        )
        return self.plant(optimizer)

    def for_private(self) -> torch.nn.Module:
        """What make_private is given as its module."""
        return DifferentiallyPrivateDistributedDataParallel(self.net)


class NotSynchronised(Distributed):
    """``make_private`` sees a plain module, and Lightning's DDP does not see Opacus' gradients."""

    def for_private(self) -> torch.nn.Module:
        """The net that only Lightning wraps."""
        return self.net


class DrawnByAll(Distributed):
    """Every process draws from all records."""

    dealt = False
