"""Small trainings with a fault of the run: accountant, loader, resume, network."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from opacus.layers import DPLSTM
from opacus.utils.batch_memory_manager import BatchSplittingSampler
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.data import DataLoader

from lightning_audit.testing.opacus_trainings import Configured, PhysicalBatches
from lightning_audit.testing.trainings import CLASSES, HIDDEN, Training, random_data


class GdpAccountant(Configured):
    """The accountant of Gaussian DP, whose central limit theorem needs many steps."""

    engine: ClassVar = {"accountant": "gdp"}


class Accumulated(Configured):
    """With ``poisson_sampling=False``, Opacus lets a Trainer accumulate batches."""

    engine_arguments: ClassVar = {"poisson_sampling": False}


class MergedBatches(PhysicalBatches):
    """Lightning ends each epoch at the length that Opacus' splitting sampler estimates."""

    splitter = BatchSplittingSampler

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.data = random_data(records=256)


class SkipsEmptyBatches(Training):
    """The expected batch size is two, and empty batches are skipped."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.automatic_optimization = False

    def plain_loader(self) -> DataLoader[Any]:
        """Return batches of two."""
        return DataLoader(self.data, 2)

    def training_step(self, batch: Any, batch_idx: int) -> None:
        """Step only on a batch with records."""
        if len(batch[0]):
            optimizer = self.optimizers()  # type: ignore[attr-defined]  # of the LightningModule
            optimizer.zero_grad()
            self.manual_backward(super().training_step(batch, batch_idx))  # type: ignore[attr-defined]
            optimizer.step()


class BackwardAfterNoise(Configured):
    """A regularizer's backward pass runs after noise was added, and adds to the gradient."""

    engine_arguments: ClassVar = {"poisson_sampling": False}  # or Opacus refuses a second backward

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        """Clip and add noise, run backward again, then update."""
        private = self.optimizers().optimizer  # type: ignore[attr-defined]  # of the LightningModule
        private.zero_grad()
        for again in (False, True):
            self.manual_backward(super().training_step(batch, batch_idx))  # type: ignore[attr-defined]
            if not again and not private.pre_step():
                return
        private.original_optimizer.step()


class SeededNoise(Configured):
    """The noise generator is seeded when the module is created, also in a resumed training."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        generator = torch.Generator().manual_seed(5)
        self.net, self._optimizer, _ = self._private(noise_generator=generator)

    def configure_optimizers(self) -> Any:
        """Return the optimizer of make_private."""
        return self._optimizer


class PackedSequences(Training):
    """Sequences of several lengths, which `pack_padded_sequence` sorts for Opacus' `DPLSTM`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.net = _Recurrent()


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = DPLSTM(2, HIDDEN, batch_first=True)
        self.head = nn.Linear(HIDDEN, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        sequences = x.view(len(x), -1, 2)
        lengths = 1 + (100.0 * x.abs().sum(1)).long() % sequences.shape[1]
        packed = pack_padded_sequence(
            sequences, lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        _, (hidden, _) = self.lstm(packed)
        scores: torch.Tensor = self.head(hidden[-1])
        return scores
