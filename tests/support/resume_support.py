"""A training that stops and goes on: a module, a way to stop it, its checkpoints."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from opacus import GradSampleModule
from pytorch_lightning.callbacks import ModelCheckpoint
from torch.nn import functional
from training_support import PrivateModule, trainer_for

from lightning_audit import AuditReport, PrivacyAudit
from lightning_audit.checks.check import REGISTRY

# What Lightning says of checkpoint callbacks that differ between the two parts of a run.
RESUMING = pytest.mark.filterwarnings(
    "ignore:The dirpath has changed",
    "ignore:Be aware that when using `ckpt_path`",
    "ignore:Checkpoint directory .* exists and is not empty",
    "ignore:You're resuming from a checkpoint that ended before the epoch ended",
)

STEPS_PER_EPOCH = 32
EPOCHS = 3


class StepwiseModule(PrivateModule):
    """A training whose every step is a function of the weights and of the step's number."""

    def __init__(self, **kwargs: Any) -> None:
        torch.manual_seed(0)
        super().__init__(**kwargs)
        # Wrapped before Lightning loads a checkpoint: the names of the weights are the same.
        self.net = GradSampleModule(self.net)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        torch.manual_seed(2**40 + 1000 + self.global_step)  # no small seed

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y = self.dataset.tensors
        chosen = torch.rand(len(x)) < self.batch_size / len(x)
        return functional.cross_entropy(self.net(x[chosen]), y[chosen])


class StopAt(pl.Callback):
    """Breaks the training off before a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        if trainer.global_step == self.step:
            raise RuntimeError("power cut")


def train(
    directory: Path,
    audit: PrivacyAudit,
    *callbacks: pl.Callback,
    ckpt: Path | None = None,
    module: type[StepwiseModule] = StepwiseModule,
    **kwargs: Any,
) -> StepwiseModule:
    made = module(**kwargs)
    trainer = trainer_for(
        directory, audit, *callbacks, max_epochs=EPOCHS, enable_checkpointing=True
    )
    trainer.fit(made, ckpt_path=ckpt, weights_only=True if ckpt else None)
    return made


def saver(directory: Path, *, epoch_end: bool) -> ModelCheckpoint:
    if epoch_end:
        return ModelCheckpoint(directory, save_top_k=-1, every_n_epochs=1)
    return ModelCheckpoint(directory, save_top_k=-1, every_n_train_steps=10)


def checkpoint_at(directory: Path, step: int) -> Path:
    (found,) = directory.glob(f"*step={step}.ckpt")
    return found


#: Checks of numbers that no checkpoint holds: they restart at a resume.
RESTARTING = {name for name, check in REGISTRY.items() if check.private}


def numbers(report: AuditReport) -> dict[str, Any]:
    """A report without what differs between any two runs."""
    fields = dataclasses.asdict(report)
    fields["checks"] = [
        # A check that restarts keeps its verdict.
        {"name": c["name"], "status": c["status"]} if c["name"] in RESTARTING else c
        for c in fields["checks"]
        if c["name"] != "reuse.resume"  # made of a resumed run only
    ]
    # Its e-value is that of the checks that restart, too.
    fields["epochs"] = [{k: v for k, v in r.items() if k != "e_value"} for r in fields["epochs"]]
    resumed = ("the training was resumed", "an earlier training had this report directory")
    fields["notes"] = [note for note in fields["notes"] if not note.startswith(resumed)]
    fields["tests"] = {k: v for k, v in fields["tests"].items() if k not in RESTARTING}
    others = ("created", "environment", "audit_cost", "examination_cost")
    others += ("run", "settings_given", "examinations")  # a resumed run is examined again
    return {k: v for k, v in fields.items() if k not in others}
