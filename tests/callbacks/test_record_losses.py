from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import pytorch_lightning
import pytorch_lightning.cli
import torch
from epsilon_star_support import (
    StandaloneTraining,
)
from torch.utils.data import DataLoader, Subset, TensorDataset
from training_support import digits, trainer_for

from lightning_audit.callbacks.epsilon_star import EpsilonStar

DIGITS = digits(700)


TRAIN, POPULATION = (TensorDataset(*DIGITS[part]) for part in (slice(0, 300), slice(300, 700)))


def test_parts_of_a_model_keep_their_modes(tmp_path):
    class Looks(pytorch_lightning.Callback):
        seen: Any = None

        def on_train_epoch_start(self, trainer, pl_module):
            pl_module.net[1].eval()

        def on_train_epoch_end(self, trainer, pl_module):
            self.seen = [m.training for m in pl_module.net], pl_module.training

    modes = []
    for callbacks in ([Looks()], [EpsilonStar(delta=1e-3), Looks()]):
        torch.manual_seed(0)
        trainer_for(tmp_path, *callbacks, max_epochs=1).fit(StandaloneTraining())
        modes.append(callbacks[-1].seen)
    assert modes[0] == modes[1] == ([True, False, True, True, True], True)


def test_at_most_so_many_records_are_taken_evenly(tmp_path):
    class Ordered(StandaloneTraining):
        read: list[float]

        def losses_per_record(self, batch: Any) -> torch.Tensor:
            self.read += batch[0][:, 0].tolist()
            return batch[0][:, 0] + 0.0

    numbers = torch.arange(300.0)[:, None].expand(300, 64)
    module = Ordered()
    module.read, module.train_data = [], TensorDataset(numbers / 300, TRAIN[:][1])
    star = EpsilonStar(delta=1e-3, max_records=4)
    trainer_for(tmp_path, star, max_epochs=1).fit(module)
    assert np.array(module.read[:4]) * 300 == pytest.approx([0, 100, 199, 299], abs=1e-3)
    assert (star.history[0].n_train, star.history[0].n_population) == (4, 4)


def test_the_records_are_those_that_the_trainer_has_now(tmp_path):
    class Growing(StandaloneTraining):
        def train_dataloader(self):
            records = 100 * (1 + self.trainer.current_epoch)
            return DataLoader(Subset(TRAIN, range(records)), batch_size=32, shuffle=True)

    star = EpsilonStar(delta=1e-3)
    trainer = trainer_for(tmp_path, star, max_epochs=3, reload_dataloaders_every_n_epochs=1)
    trainer.fit(Growing())
    assert [found.n_train for found in star.history] == [100, 200, 300]
