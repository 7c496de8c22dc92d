"""The user's step as Lightning runs it, for replays during the training."""

from __future__ import annotations

import contextlib
import io
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

from lightning_audit.taps.boundary import undoing

#: Callbacks that only display or save, by class name in either Lightning package.
_SHOW_OR_SAVE = {"Checkpoint", "ProgressBar", "ModelSummary", "Timer"}


class LightningStep:
    """A training step, run as Lightning's loop runs it, between two batches.

    Args:
        trainer: in `fit`.
        module: the user's module.
        own: the audit's callback, which is not called.
    """

    def __init__(self, trainer: Any, module: Any, own: Any) -> None:
        self._trainer, self._module = trainer, module
        self._silent = [
            c
            for c in trainer.callbacks
            if c is own or _SHOW_OR_SAVE & {kind.__name__ for kind in type(c).__mro__}
        ]
        #: Names of what ``training_step`` logs.
        self.logged: dict[str, None] = {}

    @property
    def module(self) -> Any:
        """The user's module."""
        return self._module

    @property
    def optimizers(self) -> Sequence[Any]:
        """The optimizers of the training."""
        optimizers: Sequence[Any] = self._trainer.optimizers
        return optimizers

    @property
    def precision(self) -> str:
        """The precision of the training."""
        return str(self._trainer.precision)

    @property
    def aside(self) -> Sequence[object]:
        """Objects whose state is neither saved nor restored."""
        return [self._trainer, *self._silent]

    def roots(self) -> list[object]:
        """Return the objects that a step may change, for `TrainingState`."""
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
            trainer.precision_plugin,
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
        loop.batch_progress.current.ready = index + 1  # the loop accumulates gradients by this
        for callback in trainer.callbacks:
            callback.on_train_batch_start(trainer, module, batch, index)
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
        """Disable callbacks that display or save, and all logging, within this context."""
        trainer, module = self._trainer, self._module
        callbacks, loggers, stops = trainer.callbacks, trainer.loggers, trainer.should_stop
        logs = {name: vars(module)[name] for name in ("log", "log_dict") if name in vars(module)}

        def put_back() -> None:
            trainer.callbacks, trainer.loggers, trainer.should_stop = callbacks, loggers, stops
            for name in ("log", "log_dict"):
                vars(module).pop(name, None)
            vars(module).update(logs)

        with undoing(put_back), contextlib.redirect_stdout(io.StringIO()):
            trainer.callbacks = [c for c in callbacks if c not in self._silent]
            trainer.loggers = [silent_logger(trainer) for _ in loggers]
            vars(module).update(log=self._drop, log_dict=self._drop)
            yield

    def _drop(self, logged: Any, *_: Any, **__: Any) -> None:
        """Keep the names of logged values, and log nothing."""
        self.logged |= dict.fromkeys(logged if isinstance(logged, dict) else [logged])


def silent_logger(trainer: Any) -> Any:
    """Return a logger of the Trainer's package that discards everything."""
    package = type(trainer).__module__.partition(".trainer")[0]
    return import_module(f"{package}.loggers.logger").DummyLogger()
