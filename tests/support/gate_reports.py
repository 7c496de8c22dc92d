"""Reports of real trainings of every kind, as they lie on disk for the gate."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from hand_written_support import CLAIM, HandWritten
from training_support import ManualTraining, PrivateModule, digits, mlp, trainer_for
from two_nets import TwoNets

from lightning_audit import PrivacyAudit
from lightning_audit.canaries import Mislabeled
from lightning_audit.testing.faulty import HalfNoise, NoiseWithAMean


class Forward(ManualTraining, pl.LightningModule):
    """Of a module that has a ``forward``, which an input canary asks for."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)


class BreaksOff(PrivateModule):
    """Ends with an error of the user's own."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        if self.global_step == 40:
            raise RuntimeError("an error of the user's own")
        return super().training_step(batch, batch_idx)


class NotPoisson(PrivateModule):
    """Trains on a loader that goes through the data in order."""

    def __init__(self) -> None:
        super().__init__(poisson=False)


class HalfByHand(HandWritten):
    def noise(self, p: torch.Tensor) -> torch.Tensor:
        return 0.5 * super().noise(p)


def _half() -> PrivateModule:
    return PrivateModule(mlp(64), dataset=digits(), optimizer_class=HalfNoise)


#: For each kind of training the module, the audit's arguments, and the Trainer's.
TRAININGS: dict[str, tuple[Callable[[], Any], dict[str, Any], dict[str, Any]]] = {
    "correct": (PrivateModule, {}, {"max_epochs": 3}),
    "claimed": (PrivateModule, {"claimed_epsilon": 50.0}, {"max_steps": 60}),
    "by hand": (HandWritten, {"claim": CLAIM}, {"max_steps": 60}),
    "input canary": (Forward, {"canaries": [Mislabeled(amplitude=100.0)]}, {"max_steps": 250}),
    "two optimizers": (TwoNets, {}, {"max_steps": 160}),
    "replayed": (PrivateModule, {"examinations": 1}, {"max_steps": 60}),
    "warned": (lambda: PrivateModule(optimizer_class=NoiseWithAMean), {}, {"max_steps": 60}),
    "allowed": (NotPoisson, {"allow": ["sampling.not_poisson"]}, {"max_steps": 60}),
    "short": (PrivateModule, {}, {"max_steps": 6}),
    "broken off": (BreaksOff, {}, {"max_steps": 60}),
    "half noise": (_half, {}, {"max_epochs": 3}),
    "half noise by hand": (HalfByHand, {"claim": CLAIM}, {"max_steps": 60}),
    "half noise in one of two": (lambda: TwoNets(faults=(None, HalfNoise)), {}, {"max_steps": 160}),
    "above the claim": (PrivateModule, {"claimed_epsilon": 0.1}, {"max_steps": 60}),
    "not Poisson": (NotPoisson, {}, {"max_steps": 60}),
}
#: What each of them ends with.
OUTCOMES = {
    **dict.fromkeys(list(TRAININGS)[:8], "PASS"),
    **dict.fromkeys(list(TRAININGS)[8:10], "INCONCLUSIVE"),
    **dict.fromkeys(list(TRAININGS)[10:], "VIOLATION"),
}


def train(name: str, directory: Path) -> Path:
    """Train, and return the path of the report."""
    module, audit, trainer = TRAININGS[name]
    torch.manual_seed(0)
    callback = PrivacyAudit(seed=1, on_violation="warn", **audit)
    with contextlib.suppress(RuntimeError):
        trainer_for(directory, callback, **trainer).fit(module())
    return directory / "audit" / "report.json"
