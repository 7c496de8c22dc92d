"""What Opacus keeps of a step when it is done holds no canary, for code that looks at it then."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from stages import staged
from torch.nn import functional
from training_matrix import (
    AdaClip,
    AdaptiveGhost,
    Ghost,
    ManualGhost,
    NotWrapped,
    PerLayer,
    Physical,
    wide,
)
from training_support import PrivateModule, mlp, random_data, trainer_for

from lightning_audit import PrivacyAudit
from lightning_audit.canaries import Mislabeled
from lightning_audit.dpsgd.opacus import private_optimizer
from lightning_audit.testing.faulty import NoNoise

STEPS = 12
# Opacus and torch remark on loaders and hooks in every training.
pytestmark = pytest.mark.filterwarnings("default")


class Keeps(pl.Callback):
    """The clipped sums when a step is done, as a plot of their norms would read them."""

    def __init__(self) -> None:
        self.sums: list[torch.Tensor] = []

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        optimizer = private_optimizer(trainer.optimizers[0])
        if not optimizer._is_last_step_skipped:
            self.sums.append(torch.cat([p.summed_grad.flatten() for p in optimizer.params]))


def sums_of(
    directory: Path, make: Callable[[], pl.LightningModule], *callbacks: pl.Callback
) -> torch.Tensor:
    torch.manual_seed(1)
    keeps = Keeps()
    trainer_for(directory, *callbacks, keeps, max_steps=STEPS).fit(make())
    return torch.stack(keeps.sums)


def own_cross_entropy(module: PrivateModule, batch: Any) -> torch.Tensor:
    return functional.cross_entropy(module.net(batch[0]), batch[1])


@pytest.mark.parametrize(
    "make",
    staged(
        [PrivateModule, lambda: wide(PerLayer, batch_size=2), lambda: wide(Ghost)],
        [
            lambda: wide(mode="functorch"),
            lambda: wide(NotWrapped),
            lambda: wide(AdaClip),
            lambda: wide(ManualGhost),
            lambda: wide(AdaptiveGhost, batch_size=64),
            lambda: wide(Physical, batch_size=16),
            lambda: wide(optimizer_class=NoNoise),
        ],
    ),
)
@pytest.mark.one_in(3)
def test_the_clipped_sums_of_a_step_that_is_done_are_those_of_a_training_without_the_audit(
    tmp_path: Path, make: Callable[[], pl.LightningModule]
) -> None:
    plain = sums_of(tmp_path / "plain", make)
    # A fault is only warned of: what is compared is the whole training.
    audited = sums_of(tmp_path / "audited", make, PrivacyAudit(seed=1, on_violation="warn"))
    assert plain.shape == audited.shape
    assert len(plain) >= STEPS // 4
    torch.testing.assert_close(audited, plain, rtol=1e-4, atol=2e-5)


def test_an_input_canary_is_not_left_in_the_clipped_sums(tmp_path: Path) -> None:
    def make() -> PrivateModule:
        return PrivateModule(mlp(), dataset=random_data())

    canary = Mislabeled(amplitude=100.0, loss=own_cross_entropy, num_classes=10)
    plain = sums_of(tmp_path / "plain", make)
    audited = sums_of(tmp_path / "audited", make, PrivacyAudit(seed=1, canaries=[canary]))
    torch.testing.assert_close(audited, plain, rtol=1e-4, atol=2e-5)
