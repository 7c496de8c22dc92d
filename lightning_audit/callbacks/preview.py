"""Dry run of an audit: estimate its cost and the steps to a PASS from a few steps on a copy."""

from __future__ import annotations

import contextlib
import copy
import gc
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import CellType, FunctionType
from typing import TYPE_CHECKING, Any

import torch
from opacus.accountants.accountant import IAccountant

from lightning_audit.callbacks._namespaces import Callback, MisconfigurationException, isolate_rng
from lightning_audit.callbacks.trainer import planned_steps, silent_logger
from lightning_audit.hooks.boundary import OWN_TIME
from lightning_audit.run.earlier_fits import fits_put_back
from lightning_audit.run.preview import (
    LAST_STEP,
    STEPS,
    Preview,
    StepsToPass,
    preview_of,
    silence,
)
from lightning_audit.session.step import AuditSession

if TYPE_CHECKING:
    from lightning_audit.callbacks.privacy_audit import PrivacyAudit

#: Callbacks that only display, save or stop, by class name in either Lightning package.
_LEFT_OUT = {"Checkpoint", "ProgressBar", "ModelSummary", "Timer", "EarlyStopping", "PrivacyAudit"}


class Watch(Callback):
    """Timer of a copy's steps, which also ends the copy's training."""

    def __init__(self, steps: int, on_batch: Callable[[], None]) -> None:
        self.steps, self.counted, self.on_batch = steps, StepsToPass(steps), on_batch
        self.planned: int | None = None
        #: Times of each batch: the total and the audit's own, in seconds.
        self.times: list[tuple[float, float]] = []
        self.sessions: list[AuditSession] = []
        self.audit: PrivacyAudit | None = None
        #: The audit's warning about planned steps or epochs that exceed the claim, or empty.
        self.warned = ""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Read the number of planned steps, and limit the training to a few more at most."""
        self.planned = planned_steps(trainer)
        most = max(self.steps, min(self.planned or LAST_STEP, LAST_STEP))
        trainer.fit_loop.epoch_loop.max_steps = most

    def on_train_batch_start(self, *_: Any) -> None:
        """Start the time of a batch."""
        self._began = time.perf_counter(), OWN_TIME.seconds

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        """Record the time of a batch, and stop if no more are needed, or after many."""
        began, own = self._began
        self.times.append((time.perf_counter() - began, OWN_TIME.seconds - own))
        self.on_batch()
        run = self.audit._run if self.audit is not None else None
        if self.counted.shown(run.sessions if run is not None else ()):
            trainer.should_stop = True
            trainer.fit_loop.min_epochs = trainer.fit_loop.epoch_loop.min_steps = None

    def on_train_end(self, *_: Any) -> None:
        """Keep the audit's sessions and its warning."""
        if self.audit is not None and self.audit._run is not None:
            self.sessions = list(self.audit._run.sessions)
            self.warned = self.audit._stopping.warned


def preview(
    audit: PrivacyAudit,
    trainer: Any,
    model: Any,
    *data: Any,
    steps: int = STEPS,
    on_batch: Callable[[], None] = lambda: None,
    **named: Any,
) -> Preview:
    """Train a copy for a few steps, and predict the audit of the training.

    Trainer and model do not change. Nothing is written, logged or saved, and random numbers are
    restored. The Trainer's callbacks are copied, except those that display, save or stop.

    Args:
        audit: the callback; a copy of it is used.
        trainer: a Trainer that has not fitted the model yet.
        model: the user's module.
        steps: number of steps for which the copy is trained at least; it continues until they show
            how many a PASS takes, for at most 256 or the planned ones.
        data: more arguments of ``fit``, as it takes them: a loader or a data module.
        on_batch: called after each batch.
        named: the same by name: ``train_dataloaders`` or ``datamodule``.

    Raises:
        ValueError: trainer or model cannot be copied.
    """
    watch = Watch(steps, on_batch)
    with isolate_rng(), tempfile.TemporaryDirectory() as folder, silence():
        try:
            trial, model, (data, named) = _copied(trainer, model, (data, named))
            _prepare(trial, audit, watch, folder)
        except Exception as error:  # a generator, a lock, an open file
            raise ValueError(
                f"trainer or model cannot be copied ({type(error).__name__}: {error}); "
                "Trainer(fast_dev_run=True) shows the same for a training of one step"
            ) from error
        try:
            with fits_put_back(), _accountants_put_back():
                trial.fit(model, *data, **named)
        except MisconfigurationException as error:
            return Preview(str(error))
        assert watch.audit is not None
        report = watch.audit.report
        stops = audit.on_violation != "warn"
        given = (watch.sessions, watch.planned, watch.times, watch.warned, watch.counted)
        return preview_of(report, *given, stops=stops)


@contextlib.contextmanager
def _accountants_put_back() -> Iterator[None]:
    """Restore the accountants that are there already, such as that of an engine of the script."""
    there = (one for one in gc.get_objects() if issubclass(type(one), IAccountant))
    held = [(one, list(one.history)) for one in there]
    try:
        yield
    finally:
        for accountant, history in held:
            accountant.history = history


def _copied(trainer: Any, model: Any, data: Any) -> tuple[Any, Any, Any]:
    """Return connected copies, without callbacks that display or save and without loggers."""
    if trainer.optimizers:
        raise ValueError("it has fitted a model; take a new one")
    callbacks, loggers = trainer.callbacks, trainer.loggers
    trainer.callbacks = [
        c for c in callbacks if not _LEFT_OUT & {kind.__name__ for kind in type(c).__mro__}
    ]
    trainer.loggers = []
    torch.optim.Optimizer.__deepcopy__ = _copy_optimizer  # type: ignore[attr-defined]
    try:
        copies: tuple[Any, Any, Any] = copy.deepcopy((trainer, model, data))
    finally:
        del torch.optim.Optimizer.__deepcopy__  # type: ignore[attr-defined]
        trainer.callbacks, trainer.loggers = callbacks, loggers
    # torch does not copy attributes of parameters, such as Opacus' `_forward_counter`.
    for param, made in zip(model.parameters(), copies[1].parameters(), strict=True):
        vars(made).update(copy.deepcopy(vars(param)))
    return copies


def _copy_optimizer(optimizer: Any, memo: dict[int, Any]) -> Any:
    """Copy all attributes of an optimizer, and the accountant that its step hook calls."""
    memo[id(optimizer)] = made = object.__new__(type(optimizer))
    vars(made).update(copy.deepcopy(vars(optimizer), memo))
    hook = getattr(made, "step_hook", None)
    if isinstance(hook, FunctionType) and hook.__closure__:
        held = (CellType(copy.deepcopy(cell.cell_contents, memo)) for cell in hook.__closure__)
        own = (hook.__code__, hook.__globals__, hook.__name__, hook.__defaults__, tuple(held))
        made.step_hook = FunctionType(*own)
    return made


def _prepare(trial: Any, audit: PrivacyAudit, watch: Watch, folder: str) -> None:
    """Add a copy of the audit to a copy of a Trainer, which displays, logs and saves nothing."""
    own = copy.deepcopy(audit)
    own.config = replace(
        audit.config, on_violation="warn", on_inconclusive="warn", on_budget="stop"
    )
    own.report_dir = Path(folder)
    trial.callbacks, watch.audit = [*trial.callbacks, own, watch], own
    trial.loggers = [silent_logger(trial)]
    # A learning rate schedule may monitor a validation metric.
    trial.limit_val_batches, trial.num_sanity_val_steps = min(1, trial.limit_val_batches), 0
