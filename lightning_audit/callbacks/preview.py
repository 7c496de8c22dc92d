"""`lightning-audit plan` of a Trainer: what a few of its steps show of its audit."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from lightning_audit.callbacks._namespaces import Callback, MisconfigurationException
from lightning_audit.callbacks.privacy_audit import PrivacyAudit
from lightning_audit.callbacks.trainer import planned_steps, silent_logger
from lightning_audit.hooks.boundary import OWN_TIME
from lightning_audit.run.preview import (
    LAST_STEP,
    STEPS,
    Preview,
    StepsToPass,
    preview_of,
    silence,
)
from lightning_audit.session.step import AuditSession

#: Callbacks that only display, save or stop, by class name in either Lightning package.
_LEFT_OUT = {"Checkpoint", "ProgressBar", "ModelSummary", "Timer", "EarlyStopping", "PrivacyAudit"}


class Watch(Callback):
    """Timer of the steps of a trial, which also ends its training."""

    def __init__(self, audit: PrivacyAudit, on_batch: Callable[[], None]) -> None:
        self.audit, self.counted, self.on_batch = audit, StepsToPass(), on_batch
        self.planned: int | None = None
        #: Times of each batch: the total and the audit's own, in seconds.
        self.times: list[tuple[float, float]] = []
        self.sessions: list[AuditSession] = []
        #: The audit's warning about planned steps or epochs that exceed the claim, or empty.
        self.warned = ""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Read the number of planned steps, and limit the training to a few more at most."""
        self.planned = planned_steps(trainer)
        most = max(STEPS, min(self.planned or LAST_STEP, LAST_STEP))
        trainer.fit_loop.epoch_loop.max_steps = most

    def on_train_batch_start(self, *_: Any) -> None:
        """Start the time of a batch."""
        self._began = time.perf_counter(), OWN_TIME.seconds

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        """Record the time of a batch, and stop if no more are needed, or after many."""
        began, own = self._began
        self.times.append((time.perf_counter() - began, OWN_TIME.seconds - own))
        self.on_batch()
        run = self.audit._run
        if self.counted.shown(run.sessions if run is not None else ()):
            trainer.should_stop = True
            trainer.fit_loop.min_epochs = trainer.fit_loop.epoch_loop.min_steps = None

    def on_train_end(self, *_: Any) -> None:
        """Keep the audit's sessions and its warning."""
        if self.audit._run is not None:
            self.sessions = list(self.audit._run.sessions)
            self.warned = self.audit._stopping.warned


def preview(
    trainer: Any, model: Any, *data: Any, on_batch: Callable[[], None] = lambda: None, **named: Any
) -> Preview:
    """Train for a few steps, and predict the audit of the training.

    Nothing is written, logged or saved. Trainer and model are trained by these steps, at least 16
    and at most 256 or the planned ones, until they show how many a PASS takes: pass ones that are
    made for this call.

    Args:
        trainer: a Trainer that has not fitted the model yet. Its audit is used; without one, that
            of `PrivacyAudit()`.
        model: the user's module.
        data: more arguments of ``fit``, as it takes them: a loader or a data module.
        on_batch: called after each batch.
        named: the same by name: ``train_dataloaders`` or ``datamodule``.

    Raises:
        ValueError: the trainer has fitted a model.
    """
    if trainer.optimizers:
        raise ValueError("the Trainer has fitted a model; return a new one")
    audit = next((each for each in trainer.callbacks if isinstance(each, PrivacyAudit)), None)
    audit = audit or PrivacyAudit()
    stops = audit.on_violation != "warn"
    watch = Watch(audit, on_batch)
    with tempfile.TemporaryDirectory() as folder, silence():
        _prepare(trainer, audit, watch, folder)
        try:
            trainer.fit(model, *data, **named)
        except MisconfigurationException as error:
            return Preview(str(error))
    given = (watch.sessions, watch.planned, watch.times, watch.warned, watch.counted)
    return preview_of(audit.report, *given, stops=stops)


def _prepare(trainer: Any, audit: PrivacyAudit, watch: Watch, folder: str) -> None:
    """Let a Trainer display, log and save nothing, and add the audit, which only warns."""
    audit.config = replace(
        audit.config, on_violation="warn", on_inconclusive="warn", on_budget="stop"
    )
    audit.report_dir = Path(folder)
    kept = [c for c in trainer.callbacks if not _LEFT_OUT & {k.__name__ for k in type(c).__mro__}]
    trainer.callbacks, trainer.loggers = [*kept, audit, watch], [silent_logger(trainer)]
    # A learning rate schedule may monitor a validation metric.
    trainer.limit_val_batches, trainer.num_sanity_val_steps = min(1, trainer.limit_val_batches), 0
