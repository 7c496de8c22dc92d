"""Trainings of two processes; each process runs this file: two_processes.py FOLDER SCENARIO..."""

import datetime
import json
import logging
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
import training_matrix
from expected_warnings import EXPECTED_WARNINGS
from opacus.data_loader import DPDataLoader
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from opacus.optimizers import DistributedDPOptimizer
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.strategies import DDPStrategy
from resume_support import StopAt, checkpoint_at, saver
from torch.nn import functional
from torch.utils.data import DataLoader
from trained import weights
from training_support import PrivateModule, random_data, replace_optimizer, trainer_for

from lightning_audit import PrivacyAudit
from lightning_audit.testing.faulty import HalfNoise

RANK = int(os.environ["LOCAL_RANK"])

#: A batch of a process may be empty.
EMPTY = ["opacus_defects"]


class HalfNoiseOfAll(HalfNoise, DistributedDPOptimizer):
    """Half the noise, in the process that adds it."""


class TwoProcesses(PrivateModule):
    """The training of one process, in two.

    It is "wrapped" in Opacus' distributed module, "bare" with hooks on Lightning's, or "naive".
    """

    def __init__(self, way: str = "wrapped", *, dealt: bool = True, **arguments: Any) -> None:
        torch.manual_seed(0)
        # Opacus leaves out empty batches of a process, which ends its epoch early: of 16 records
        # that are expected none is a batch in ten million.
        super().__init__(**{"dataset": random_data(1024), "batch_size": 32, **arguments})
        self.way, self.dealt = way, dealt
        torch.manual_seed(100 + RANK)

    def train_dataloader(self) -> DataLoader:
        return DPDataLoader.from_data_loader(self.plain_loader(), distributed=self.dealt)

    def configure_optimizers(self) -> Any:
        bare = self.way == "bare"
        module: Any = self.trainer.strategy.model if bare else self.net
        if self.way == "wrapped":
            module = DifferentiallyPrivateDistributedDataParallel(module)
        private, optimizer, _ = self.make_private(module=module, wrap_model=not bare)
        if bare:
            self.__dict__["hooks"] = private  # a module, but no part of this one
        else:
            self.net = private
        if self.optimizer_class is None:
            return optimizer
        return replace_optimizer(optimizer, self.optimizer_class)


class PerLayer(training_matrix.PerLayer, TwoProcesses):
    """A clipping norm for each tensor."""


class Ghost(training_matrix.Ghost, TwoProcesses):
    """Ghost clipping as its tutorial has it."""

    def make_private(self, **more: Any) -> Any:
        module = DifferentiallyPrivateDistributedDataParallel(self.net)
        return super().make_private(module=module, **more)


class Stepwise(TwoProcesses):
    """A training whose every step is a function of the weights and of the step's number."""

    def __init__(self) -> None:
        super().__init__("bare")

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        torch.manual_seed(2**40 + 1000 + 2 * self.global_step + RANK)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        x, y = (tensor[RANK::2] for tensor in self.dataset.tensors)
        chosen = torch.rand(len(x)) < self.batch_size / 1024
        return functional.cross_entropy(self.net(x[chosen]), y[chosen])


class Memory:
    """A record in memory, for a process that writes none."""

    def __init__(self, header: Any = None) -> None:
        self.header = header
        self.rows: list[Any] = []
        self.path = Path("memory")

    @property
    def entries(self) -> int:
        return len(self.rows)

    def append(self, seen: Any) -> None:
        self.rows.extend(seen.entry(self.header))

    def flush(self) -> None:
        """Nothing waits."""

    def close(self, *, archive: bool = True) -> None:
        """Nothing is open."""


class Probe(pl.Callback):
    """Keeps the record of a process that writes none."""

    def __init__(self, audit: PrivacyAudit) -> None:
        self.audit = audit
        self.memory = Memory()

    def on_train_start(self, trainer: pl.Trainer, *_: Any) -> None:
        if RANK:
            recorder = self.audit._run.session.recorder
            assert recorder.store is None
            recorder.store = self.memory = Memory(recorder.header)


def trainer_of_both(folder: Path, *callbacks: pl.Callback, **kwargs: Any) -> pl.Trainer:
    timeout = datetime.timedelta(seconds=60)
    strategy = DDPStrategy(process_group_backend="gloo", timeout=timeout)
    both = {"devices": 2, "strategy": strategy, "use_distributed_sampler": False}
    return trainer_for(folder, *callbacks, **both, **kwargs)


def save_weights(folder: Path, module: pl.LightningModule) -> None:
    folder.mkdir(exist_ok=True)
    np.save(folder / f"weights-{RANK}.npy", weights(module).numpy())


def train(
    folder: Path,
    module: pl.LightningModule,
    audit: PrivacyAudit | None,
    *callbacks: pl.Callback,
    ckpt: Path | None = None,
    **kwargs: Any,
) -> None:
    """Train, and write what this process has of the audit and of the weights."""
    probes = [] if audit is None else [audit, Probe(audit)]
    saves = any(isinstance(c, ModelCheckpoint) for c in callbacks)
    trainer = trainer_of_both(folder, *probes, *callbacks, enable_checkpointing=saves, **kwargs)
    try:
        trainer.fit(module, ckpt_path=ckpt, weights_only=True if ckpt else None)
    finally:
        save_weights(folder, module)
        if audit is not None:
            told = json.loads(audit.report.to_json()) if audit.report else None
            (folder / f"report-{RANK}.json").write_text(json.dumps(told))
            if RANK and probes[1].memory.rows:
                np.save(folder / f"entries-{RANK}.npy", np.array(probes[1].memory.rows))


def healthy(folder: Path) -> None:
    data = random_data(8192)
    # Each process is given a seed of its own: the first one's counts.
    audit = PrivacyAudit(seed=RANK, allow=EMPTY)
    train(folder / "audited", TwoProcesses(dataset=data), audit, max_steps=256)
    train(folder / "audited-unaudited", TwoProcesses(dataset=data), None, max_steps=256)


def clipping(folder: Path) -> None:
    data = random_data(8192)
    for name, kind in (("per_layer", PerLayer), ("ghost", Ghost)):
        audit = PrivacyAudit(seed=1, allow=EMPTY)
        train(folder / name, kind(dataset=data), audit, max_steps=200)
        train(folder / f"{name}-unaudited", kind(dataset=data), None, max_steps=200)


def resumed(folder: Path) -> None:
    train(folder / "whole", Stepwise(), PrivacyAudit(seed=3, allow=EMPTY), max_epochs=2)
    broken, saves = folder / "broken", saver(folder / "saved", epoch_end=False)
    audit = PrivacyAudit(seed=3, allow=EMPTY)
    with pytest.raises(RuntimeError, match="power cut"):
        train(broken, Stepwise(), audit, StopAt(37), saves, max_epochs=2)
    ckpt = checkpoint_at(folder / "saved", 30)
    train(broken, Stepwise(), PrivacyAudit(seed=4, allow=EMPTY), ckpt=ckpt, max_epochs=2)


class Obstacle(pl.Callback):
    """In one process rows must be copied, at every third step."""

    def __init__(self, audit: PrivacyAudit) -> None:
        self.audit = audit

    def on_train_batch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        if RANK and trainer.global_step % 3 == 0:
            self.audit._run.session.step.obstacle = lambda _: "something is in the way"
        elif RANK:
            vars(self.audit._run.session.step).pop("obstacle", None)


def mixed(folder: Path) -> None:
    audit = PrivacyAudit(seed=0)
    train(folder / "mixed", TwoProcesses(), audit, Obstacle(audit), max_epochs=1)


class LostInOne(TwoProcesses):
    """All records of the second process have gradients that are not finite, at one step."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = super().training_step(batch, batch_idx)
        return loss * torch.nan if RANK and batch_idx == 2 else loss


def one_breaks_off(folder: Path) -> None:
    module, stop = TwoProcesses(), StopAt(20 if RANK else -1)
    train(folder / "one_breaks_off", module, PrivacyAudit(seed=0), stop, max_epochs=2)


def no_room(folder: Path) -> None:
    """A file lies where the report is to go, which the first process alone looks at."""
    (folder / "taken").write_text("mine")
    audit = PrivacyAudit(seed=0, report_dir=folder / "taken")
    train(folder / "no_room", TwoProcesses(), audit, max_epochs=1)


SAID_ON_RESUMING = (
    "Be aware that when using `ckpt_path`",
    "You're resuming from a checkpoint that ended before the epoch ended",
)
#: One training alone, with the audit's arguments and the Trainer's.
ALONE: dict[str, tuple[Callable[[], TwoProcesses], dict[str, Any], dict[str, Any]]] = {
    "naive": (lambda: TwoProcesses("naive"), {"on_violation": "warn"}, {"max_epochs": 1}),
    "repeated": (lambda: TwoProcesses(dealt=False), {"on_violation": "warn"}, {"max_epochs": 1}),
    "not_finite": (LostInOne, {"on_violation": "warn"}, {"max_steps": 4}),
    "half_noise": (lambda: TwoProcesses(optimizer_class=HalfNoiseOfAll), {}, {"max_epochs": 2}),
    # The report's directory belongs to another training.
    "taken": (TwoProcesses, {}, {"max_epochs": 1}),
}
SCENARIOS = (healthy, clipping, resumed, mixed, one_breaks_off, no_room)


def start() -> None:
    """One thread, and all warnings errors but the expected ones."""
    torch.set_num_threads(1)
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    warnings.simplefilter("error")
    for message in (*EXPECTED_WARNINGS, *SAID_ON_RESUMING):
        warnings.filterwarnings("ignore", message)


if __name__ == "__main__":
    start()
    for scenario in SCENARIOS:
        if scenario.__name__ in sys.argv[2:]:
            scenario(Path(sys.argv[1]))
    for name, (module, given, length) in ALONE.items():
        if name in sys.argv[2:]:
            train(Path(sys.argv[1]) / name, module(), PrivacyAudit(seed=0, **given), **length)
