"""Small audited trainings in a line: a new one for a test, or one that many tests read."""

import contextlib
import functools
import inspect
import io
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning.pytorch
import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from opacus.optimizers import DPOptimizer
from resume_support import STEPS_PER_EPOCH, StopAt, checkpoint_at, saver, train
from training_support import (
    PrivateModule,
    PrivateTraining,
    digits,
    fit,
    mlp,
    report_in,
    trainer_for,
)
from training_support import violation as fit_violation

from lightning_audit import AuditReport, PrivacyAudit, PrivacyViolation
from lightning_audit.record.store import RECORD_NAME, RecordHeader, read_observations

_OF_AUDIT = inspect.signature(PrivacyAudit).parameters


def split(given: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arguments of `PrivacyAudit`, by default with seed 1, and of a Trainer, of 64 steps."""
    audit = {"seed": 1} | {name: value for name, value in given.items() if name in _OF_AUDIT}
    trainer = {name: value for name, value in given.items() if name not in _OF_AUDIT}
    steps = trainer.pop("steps", None if trainer.keys() & {"max_epochs", "max_steps"} else 64)
    return audit, trainer if steps is None else {**trainer, "max_steps": steps}


class Audited:
    """Trains modules in a folder by `fit`, or by `violation` where they must end with one."""

    def __init__(self, directory: Path, train: Callable[..., AuditReport]) -> None:
        self._root, self._train = directory, train
        #: Where the report and the record are.
        self.directory = directory / "audit"

    def __call__(self, module: Any, *callbacks: Any, folder: str = "", **given: Any) -> AuditReport:
        """Train a module and return its report.

        Arguments are those of `PrivacyAudit`, by default with seed 1, and of the Trainer, by
        default for 64 steps (``steps`` for ``max_steps``); ``folder`` is one within the folder.
        """
        audit, trainer = split(given)
        root = self._root / folder
        return self._train(root, module, PrivacyAudit(**audit), *callbacks, **trainer)

    def record(self) -> tuple[RecordHeader, np.ndarray]:
        return read_observations(self.directory / RECORD_NAME)

    @property
    def entries(self) -> np.ndarray:
        return self.record()[1]


@pytest.fixture
def audited(tmp_path):
    return Audited(tmp_path, fit)


@pytest.fixture
def accused(tmp_path):
    return Audited(tmp_path, fit_violation)


@dataclass(frozen=True)
class Trained:
    """A training that has ended, to be read only."""

    report: AuditReport
    directory: Path
    module: pl.LightningModule
    #: What it printed, and the lines of the audit in the log.
    shown: str
    logged: tuple[str, ...]
    raised: PrivacyViolation | None


Trains = Callable[..., Trained]


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """Train a module that ``make`` makes, once in a process for the same arguments.

    By default for 64 steps without examinations and bounds of the literature, whatever the test
    that asks first. A violation that is raised is left in the report.
    """
    kept: dict[tuple[Any, ...], Trained] = {}

    def train(make: Callable[[], Any] = PrivateModule, **given: Any) -> Trained:
        given = {"examinations": 0, "bounds": (), **given}
        key = (make, *((name, repr(value)) for name, value in sorted(given.items())))
        if key not in kept:
            kept[key] = _train(tmp_path_factory.mktemp("trained"), make, given)
        return kept[key]

    return train


def _train(
    directory: Path, make: Callable[[], pl.LightningModule], given: dict[str, Any]
) -> Trained:
    audit, trainer = split(given)
    lines, shown, logger = _Lines(), io.StringIO(), logging.getLogger("lightning_audit")
    torch.manual_seed(0)
    module = make()
    raised: PrivacyViolation | None = None
    logger.addHandler(lines)
    try:
        with contextlib.redirect_stdout(shown):
            trainer_for(directory, PrivacyAudit(**audit), **trainer).fit(module)
    except PrivacyViolation as error:
        raised = error
    finally:
        logger.removeHandler(lines)
    report, logged = report_in(directory), tuple(lines.lines)
    return Trained(report, directory / "audit", module, shown.getvalue(), logged, raised)


def cut(
    directory: Path,
    audit: PrivacyAudit,
    stop: int,
    at: int,
    *,
    saved: Path | None = None,
    **module: Any,
) -> Path:
    """Train until a power cut before a step; the checkpoint of an earlier step.

    Checkpoints are kept at the ends of epochs, or each ten steps if ``at`` is none of them.
    """
    folder = saved or directory / "saved"
    saves = saver(folder, epoch_end=at % STEPS_PER_EPOCH == 0)
    with pytest.raises(RuntimeError, match="power cut"):
        train(directory, audit, saves, StopAt(stop), **module)
    return checkpoint_at(folder, at)


# ------------------------------------------------------------------ modules and reports


class Validated(pl.LightningModule):
    """To be mixed into a training: it has data to validate on, and does nothing with them."""

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        pass

    def val_dataloader(self) -> Any:
        return self.plain_loader()


class ValidatedModule(Validated, PrivateModule):
    """The same, which logs its loss on them."""

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.training_step(batch, batch_idx))


class Forwarding(PrivateModule):
    """Has the forward pass that an input canary needs."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)


class UnifiedModule(PrivateTraining, lightning.pytorch.LightningModule):
    """A training of `lightning.pytorch`."""


@functools.cache
def private(
    optimizer_class: type[DPOptimizer] | None = None,
    *,
    on_digits: bool = False,
    kind: type[PrivateModule] = PrivateModule,
    **settings: Any,
) -> Callable[[], PrivateModule]:
    """Makes modules; the same callable for the same arguments, as `trained` asks for."""

    def make() -> PrivateModule:
        data = {"net": mlp(64), "dataset": digits()} if on_digits else {}
        return kind(**data, optimizer_class=optimizer_class, **settings)

    return make


def on_digits(optimizer_class: type[DPOptimizer] | None = None, **settings: Any) -> Any:
    """A training on digits."""
    return private(optimizer_class, on_digits=True, **settings)()


def with_optimizer(
    change: Callable[[Any], Any], kind: type[pl.LightningModule] = PrivateModule
) -> type[pl.LightningModule]:
    """Modules whose private optimizers are changed before they are given to the Trainer."""

    class Changed(kind):
        def configure_optimizers(self) -> Any:
            made = super().configure_optimizers()
            change(made)
            return made

    return Changed


def failing(error: BaseException) -> Callable[..., Any]:
    """A function that raises."""

    def fails(*_: Any, **__: Any) -> None:
        raise error

    return fails


def weights(module: torch.nn.Module) -> torch.Tensor:
    """All parameters of a module, flat."""
    return torch.cat([p.detach().flatten() for p in module.parameters()])


def check(report: AuditReport, name: str) -> Any:
    return next(check for check in report.checks if check.name == name)


def violated(report: AuditReport) -> list[str]:
    """Names of the checks that are violated."""
    return [check.name for check in report.checks if check.status == "violated"]
