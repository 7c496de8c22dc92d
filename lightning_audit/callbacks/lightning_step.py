"""The user's step as Lightning takes it, to be run again beside the training."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any


class LightningStep:
    """Takes a step of a training as its loop does, between two batches.

    Args:
        trainer: in `fit`.
        module: the user's module.
        silent: callbacks that are not called: the audit's own, and those that only show or save.
    """

    def __init__(self, trainer: Any, module: Any, silent: Sequence[Any]) -> None:
        self._trainer, self._module = trainer, module
        self._silent = silent

    def roots(self) -> list[object]:
        """What a step may change, for `TrainingState`."""
        trainer, loop = self._trainer, self._trainer.fit_loop.epoch_loop
        progress = (
            loop.automatic_optimization.optim_progress,
            loop.manual_optimization.optim_step_progress,
            loop.scheduler_progress,
            loop.batch_progress,
        )
        schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
        wrapped = self._module.optimizers()
        wrappers = wrapped if isinstance(wrapped, list) else [wrapped]
        return [
            self._module,
            *trainer.optimizers,
            *wrappers,
            *schedulers,
            *(c for c in trainer.callbacks if c not in self._silent),
            *progress,
        ]

    def take(self, batches: Sequence[Any]) -> None:
        """Train on the physical batches of one logical step."""
        with self._quiet():
            last = self._trainer.fit_loop.epoch_loop.batch_idx
            for index, batch in enumerate(batches, start=last + 1 - len(batches)):
                self._train_on(batch, max(index, 0))

    def _train_on(self, batch: Any, index: int) -> None:
        trainer, module = self._trainer, self._module
        loop = trainer.fit_loop.epoch_loop
        loop.batch_progress.current.ready = index + 1  # by it the loop knows what it adds up
        module.on_train_batch_start(batch, index)
        arguments = loop._build_kwargs(OrderedDict(), batch, index)
        if module.automatic_optimization:
            output = loop.automatic_optimization.run(trainer.optimizers[0], index, arguments)
        else:
            output = loop.manual_optimization.run(arguments)
        loop.update_lr_schedulers("step", update_plateau_schedulers=False)
        for callback in trainer.callbacks:
            callback.on_train_batch_end(trainer, module, output, batch, index)
        module.on_train_batch_end(output, batch, index)

    @contextlib.contextmanager
    def _quiet(self) -> Iterator[None]:
        """Call no callback that shows or saves, and log nothing."""
        trainer, module = self._trainer, self._module
        callbacks, loggers = trainer.callbacks, trainer.loggers
        trainer.callbacks = [c for c in callbacks if c not in self._silent]
        trainer.loggers = []
        logs = {name: vars(module)[name] for name in ("log", "log_dict") if name in vars(module)}
        vars(module).update(log=_drop, log_dict=_drop)
        try:
            yield
        finally:
            trainer.callbacks, trainer.loggers = callbacks, loggers
            for name in ("log", "log_dict"):
                del vars(module)[name]
            vars(module).update(logs)


def _drop(*_: Any, **__: Any) -> None:
    """Log nothing."""
