from __future__ import annotations

from pathlib import Path

import torch
from training_support import (
    PrivateModule,
    fit,
)

from lightning_audit import PrivacyAudit


def test_optimizer_made_anew_each_epoch_is_followed(tmp_path: Path) -> None:
    class Renewing(PrivateModule):
        def on_train_epoch_start(self) -> None:
            old = self.trainer.optimizers[0]
            new = type(old)(
                torch.optim.SGD(self.trainable(), lr=0.05),
                noise_multiplier=old.noise_multiplier,
                max_grad_norm=old.max_grad_norm,
                expected_batch_size=old.expected_batch_size,
            )
            new.attach_step_hook(old.step_hook)
            self.trainer.optimizers = [new]

    module = Renewing()
    report = fit(tmp_path, module, PrivacyAudit(seed=1), max_epochs=2)
    assert report.verdict.outcome == "PASS"
    assert report.steps == 64
    assert report.observations == 64 * 8
