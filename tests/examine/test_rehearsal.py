"""A pass through the training's step leaves it as it would be, whatever the step changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from hand_written_support import CLAIM, HandWritten
from torch import nn
from torch.nn import functional
from training_support import PrivateModule, digits, status, trainer_for

from lightning_audit import AuditReport, PrivacyAudit
from lightning_audit.canaries import Mislabeled

# Opacus and torch remark on loaders and hooks in every training.
pytestmark = pytest.mark.filterwarnings("default")


class Remembering(PrivateModule):
    """What a training step may change beside the weights, and what it makes of random numbers."""

    def __init__(self, **kwargs: Any) -> None:
        net = nn.Sequential(nn.Linear(64, 32), nn.Dropout(0.5), nn.ReLU(), nn.Linear(32, 10))
        super().__init__(net, **kwargs)
        self.own = torch.Generator().manual_seed(5)
        self.numpy = np.random.default_rng(5)
        self.register_buffer("running", torch.zeros(64))
        self.total = torch.zeros(())
        self.seen: dict[str, list[int]] = {"sizes": []}
        self.count = 0
        self.average = [p.detach().clone() for p in self.net.parameters()]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y = batch
        self.count += 1
        self.total += x.sum()
        self.running.mul_(0.9).add_(x.mean(0))
        self.seen["sizes"].append(len(x))
        for mean, p in zip(self.average, self.net.parameters(), strict=True):
            mean.lerp_(p.detach(), 0.1)
        x = x + torch.rand(x.shape, generator=self.own) * self.numpy.random()
        self.log("noise", torch.rand(()), on_step=True)
        return functional.cross_entropy(self.net(x), y)


class ByHand(HandWritten):
    """Manual optimization with momentum, a schedule and a counter."""

    count = 0

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)

    def training_step(self, batch: Any, batch_idx: int) -> None:
        self.count += 1
        super().training_step(batch, batch_idx)


class _Drawn(pl.Callback):
    """The state of the generator at the end of the training, before anything is shown."""

    state: torch.Tensor

    def on_train_end(self, *_: Any) -> None:
        self.state = torch.get_rng_state()


def _trained(directory: Path, module: Any, **kwargs: Any) -> tuple[Any, torch.Tensor]:
    # Both with the same canaries: what is compared is the replay alone.
    torch.manual_seed(3)
    drawn = _Drawn()
    callbacks = (PrivacyAudit(seed=1, **kwargs), drawn)
    trainer_for(directory, *callbacks, max_steps=3).fit(module)
    return module, drawn.state


@pytest.mark.parametrize("kwargs", [{}, {"canaries": [Mislabeled()]}], ids=["rows", "input"])
def test_a_replay_leaves_the_training_as_it_would_be(
    tmp_path: Path, kwargs: dict[str, Any]
) -> None:
    def made() -> Remembering:
        torch.manual_seed(2)
        return Remembering(dataset=digits())

    plain, after = _trained(tmp_path / "plain", made(), **kwargs)
    replayed, now = _trained(tmp_path / "replayed", made(), replay_neighbours=True, **kwargs)
    assert torch.equal(after, now)
    for mine, its in zip(plain.state_dict().values(), replayed.state_dict().values(), strict=True):
        assert torch.equal(mine, its)
    for mine, its in zip(plain.average, replayed.average, strict=True):
        assert torch.equal(mine, its)
    assert plain.seen == replayed.seen
    assert (plain.count, float(plain.total)) == (replayed.count, float(replayed.total))
    assert torch.equal(plain.own.get_state(), replayed.own.get_state())
    assert plain.numpy.bit_generator.state == replayed.numpy.bit_generator.state
    assert status(AuditReport.load(tmp_path / "replayed/audit/report.json"), "coupling") == "ok"


def test_a_replay_leaves_hand_written_training_as_it_would_be(tmp_path: Path) -> None:
    def made() -> ByHand:
        torch.manual_seed(2)
        return ByHand()

    plain, after = _trained(tmp_path / "plain", made(), claim=CLAIM)
    replayed, now = _trained(tmp_path / "replayed", made(), claim=CLAIM, replay_neighbours=True)
    assert torch.equal(after, now)
    assert plain.count == replayed.count
    for mine, its in zip(plain.parameters(), replayed.parameters(), strict=True):
        assert torch.equal(mine, its)
