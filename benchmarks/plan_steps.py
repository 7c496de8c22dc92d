"""Steps to a PASS: what `plan` says, and the first step at which the training had the power.

A tabular net and five nets whose first gradients are large: pixels from 0 to 255, weights six times
as large as usual, a class of 2 %, pixels from 0 to 16 into a conv net, and targets that clipped
steps never reach, of which the plan must say that it cannot estimate.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Sequence
from typing import Any

import pytorch_lightning as pl
import torch
from opacus import PrivacyEngine
from opacus.data_loader import DPDataLoader
from sklearn.datasets import load_digits
from support import quiet, trainer
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from lightning_audit import PrivacyAudit
from lightning_audit.callbacks.preview import preview
from lightning_audit.verdict.judge import PowerModel

_RNG = torch.Generator().manual_seed(0)
_ROWS = 3500


def _digits(scale: float, *shape: int) -> TensorDataset:
    images, labels = load_digits(return_X_y=True)
    pixels = torch.tensor(images, dtype=torch.float32) * scale
    return TensorDataset(pixels.view(-1, *shape), torch.tensor(labels))


def _table(kind: str) -> TensorDataset:
    inputs = torch.randn(_ROWS, 4, generator=_RNG)
    jobs = torch.randint(6, (_ROWS,), generator=_RNG)
    noise = torch.randn(_ROWS, generator=_RNG)
    targets = {
        "tabular": (inputs[:, 0] + inputs[:, 2] + 2 * (jobs == 2) + noise > 0.5).float(),
        "rare": (torch.rand(_ROWS, generator=_RNG) < 0.02).float(),
        "far": 100 + 10 * inputs[:, 0] + 3 * noise,
    }
    return TensorDataset(torch.cat([inputs, functional.one_hot(jobs)], 1), targets[kind])


def _mlp(inputs: int, outputs: int, size: float = 1.0) -> nn.Module:
    net = nn.Sequential(nn.Linear(inputs, 32), nn.ReLU(), nn.Linear(32, outputs))
    for param in net.parameters():
        param.data.mul_(size)
    return net


def _conv() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10))


#: Data, net, loss, learning rate, momentum, batch size, steps.
KINDS: dict[str, tuple[Any, ...]] = {
    "tabular": (lambda: _table("tabular"), lambda: _mlp(10, 1), "binary", 0.5, 0.9, 128, 224),
    "raw pixels": (lambda: _digits(16.0, 64), lambda: nn.Linear(64, 10), "", 0.01, 0.0, 128, 256),
    "large weights": (lambda: _digits(1 / 16, 64), lambda: _mlp(64, 10, 6), "", 0.1, 0.0, 128, 256),
    "rare class": (lambda: _table("rare"), lambda: _mlp(10, 1), "binary", 0.5, 0.9, 128, 256),
    "conv net": (lambda: _digits(1.0, 1, 8, 8), _conv, "", 0.2, 0.9, 256, 256),
    "far targets": (lambda: _table("far"), lambda: _mlp(10, 1), "square", 0.5, 0.0, 128, 256),
}
_LOSSES = {
    "": functional.cross_entropy,
    "binary": lambda out, y: functional.binary_cross_entropy_with_logits(out.squeeze(1), y),
    "square": lambda out, y: functional.mse_loss(out.squeeze(1), y),
}


class _Module(pl.LightningModule):
    def __init__(self, kind: str) -> None:
        super().__init__()
        data, net, self.loss, self.rate, self.momentum, size, _ = KINDS[kind]
        self.net, self.loader = net(), DataLoader(data(), size)

    def train_dataloader(self) -> Any:
        return DPDataLoader.from_data_loader(self.loader)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=self.rate, momentum=self.momentum)
        _, private, _ = PrivacyEngine().make_private(
            module=self,
            optimizer=optimizer,
            data_loader=self.loader,
            noise_multiplier=0.8,
            max_grad_norm=1.0,
        )
        return private

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        return _LOSSES[self.loss](self.net(batch[0]), batch[1])


class _First(pl.Callback):
    """Finds the first step whose readings, with those before, have the power of a PASS."""

    def __init__(self, audit: PrivacyAudit) -> None:
        self.audit, self.step = audit, 0

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        steps = trainer.global_step
        if self.step or steps < 12 or steps % 4:
            return
        for session in self.audit._run.sessions:
            model = PowerModel(session.monitor, session.inserter.oversize)
            powers = model.at(self.audit.config.resolution).values()
            if max(power.steps_needed for power in powers) <= steps:
                self.step = steps


def run(seeds: int = 10, kinds: Sequence[str] = tuple(KINDS)) -> dict[str, object]:
    """Return, of each kind, the ratios of what is said to the first step; what is not said."""
    quiet()
    results: dict[str, object] = {}
    for kind in kinds:
        ratios, untold, never = [], 0, 0
        for seed in range(seeds):
            with tempfile.TemporaryDirectory() as folder:
                pl.seed_everything(seed, verbose=False)
                module, steps = _Module(kind), KINDS[kind][-1]
                own = trainer(steps, PrivacyAudit(seed=seed))
                said = preview(own, copy.deepcopy(module)).steps_needed
                audit = PrivacyAudit(report_dir=folder, on_violation="warn", seed=seed)
                first = _First(audit)
                trainer(steps, audit, first).fit(module)
            untold += said is None
            never += not first.step
            if said is not None and first.step:
                ratios.append(max(said) / first.step)
        within = sum(0.5 <= ratio <= 2.0 for ratio in ratios)
        results[f"{kind}: within a factor of 2"] = f"{within} of {len(ratios)}"
        results[f"{kind}: smallest and largest ratio"] = [
            min(ratios, default=0),
            max(ratios, default=0),
        ]
        results[f"{kind}: not said, no such step"] = [untold, never]
    return results
