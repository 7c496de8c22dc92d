from __future__ import annotations

from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from own_samplers import OwnPoisson, OwnSampling, OwnSizes
from torch.utils.data import DataLoader
from training_support import fit, status, trainer_for

from lightning_audit import PrivacyAudit
from lightning_audit.hooks.sampler_tap import WatchedSampler


def test_watching_a_sampler_leaves_the_training_as_it_is(tmp_path: Path) -> None:
    def weights(*callbacks: pl.Callback) -> torch.Tensor:
        torch.manual_seed(0)
        module = OwnSampling(OwnPoisson())
        trainer_for(tmp_path, *callbacks, max_steps=20).fit(module)
        return torch.cat([p.detach().flatten() for p in module.net.parameters()])

    assert torch.allclose(weights(), weights(PrivacyAudit(seed=1)), rtol=0, atol=1e-5)


def test_validation_loaders_are_not_watched(tmp_path: Path) -> None:
    class Validated(OwnSampling):
        def val_dataloader(self) -> Any:
            self.val = DataLoader(self.dataset, batch_sampler=OwnSizes())
            return self.val

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            loaders = {"train": getattr(self, "loader", None), "val": self.val}
            self.watched = {k: type(x.batch_sampler) for k, x in loaders.items() if x}

    module = Validated(OwnPoisson())
    report = fit(tmp_path, module, PrivacyAudit(seed=1), max_epochs=2)
    assert module.watched == {"train": WatchedSampler, "val": OwnSizes}
    assert status(report, "sampling.not_poisson") == "ok"
