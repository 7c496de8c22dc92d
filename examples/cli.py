"""An audited training that is configured entirely in YAML, with LightningCLI.

    python examples/cli.py fit --config examples/audit.yaml

The command ends with an error if the audit finds the privacy claim false. `lightning.pytorch`
instead of `pytorch_lightning` works the same way.
"""

from __future__ import annotations

import pytorch_lightning as pl
import torch
from opacus import PrivacyEngine
from opacus.data_loader import DPDataLoader
from opacus.optimizers import DPOptimizer
from pytorch_lightning.cli import LightningCLI
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset


class Digits(pl.LightningModule):
    """A small net on scikit-learn's digits, trained with DP-SGD.

    Args:
        batch_size: expected size of a batch.
        noise_multiplier: standard deviation of the noise over ``max_grad_norm``.
        max_grad_norm: norm at which a sample's gradient is clipped.
    """

    def __init__(
        self, batch_size: int = 64, noise_multiplier: float = 1.0, max_grad_norm: float = 1.0
    ) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net: nn.Module = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def training_step(self, batch, _):
        pixels, labels = batch
        return functional.cross_entropy(self.net(pixels), labels)

    def _loader(self) -> DataLoader:
        digits = load_digits()
        pixels = torch.tensor(digits.data / 16, dtype=torch.float32)
        dataset = TensorDataset(pixels, torch.tensor(digits.target))
        return DataLoader(dataset, self.hparams.batch_size)

    def train_dataloader(self) -> DPDataLoader:
        return DPDataLoader.from_data_loader(self._loader())

    def configure_optimizers(self) -> DPOptimizer:
        self.net, optimizer, _ = PrivacyEngine().make_private(
            module=self.net,
            optimizer=torch.optim.SGD(self.net.parameters(), lr=0.5),
            data_loader=self._loader(),
            noise_multiplier=self.hparams.noise_multiplier,
            max_grad_norm=self.hparams.max_grad_norm,
        )
        return optimizer


if __name__ == "__main__":
    LightningCLI(Digits, save_config_kwargs={"overwrite": True})
