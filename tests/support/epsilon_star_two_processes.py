"""A training of two processes with Epsilon*; each runs this file: FILE FOLDER."""

import json
import os
import sys
import warnings
from pathlib import Path

import pytorch_lightning as pl
import torch
from pytorch_lightning.strategies import DDPStrategy
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Subset
from training_support import digits, trainer_for

from lightning_audit.callbacks.epsilon_star import EpsilonStar

DIGITS = digits(500)


class Shared(pl.LightningModule):
    def __init__(self) -> None:
        torch.manual_seed(0)
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 10))

    def losses_per_record(self, batch):
        return functional.cross_entropy(self.net(batch[0]), batch[1], reduction="none")

    def training_step(self, batch, batch_idx):
        return self.losses_per_record(batch).mean()

    def validation_step(self, batch, batch_idx):
        return None

    def train_dataloader(self):
        return DataLoader(Subset(DIGITS, range(201)), batch_size=20, shuffle=True)

    def val_dataloader(self):
        return DataLoader(Subset(DIGITS, range(201, 500)), batch_size=100)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.2)


def main() -> None:
    # Warnings are errors but for those of Lightning about loaders, workers and the group's end.
    warnings.filterwarnings("error", message=".*sync_dist.*")
    torch.set_num_threads(1)
    told = {}
    for name, callbacks in (("plain", []), ("watched", [EpsilonStar(delta=1e-3)])):
        pl.seed_everything(1, verbose=False)
        module = Shared()
        trainer = trainer_for(
            Path(sys.argv[1]),
            *callbacks,
            devices=2,
            strategy=DDPStrategy(process_group_backend="gloo"),
            max_epochs=2,
        )
        trainer.fit(module)
        told[name] = float(sum(p.double().sum() for p in module.parameters()))
        if callbacks:
            (star,) = callbacks
            last = star.history[-1]
            told |= {
                "value": last.star.value,
                "sizes": [last.n_train, last.n_population],
                "logged": float(trainer.callback_metrics["epsilon_star/value"]),
            }
    rank = os.environ["LOCAL_RANK"]
    (Path(sys.argv[1]) / f"told-{rank}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main()
