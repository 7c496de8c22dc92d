"""Hooks on methods of the Trainer's strategy, where Lightning has no hook of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from lightning_audit.callbacks._namespaces import refused_as_lightning_does
from lightning_audit.taps.method_hook import MethodHook

if TYPE_CHECKING:
    from lightning_audit.run.audit_run import AuditRun


def watch_loaders(trainer: Any, look: Callable[[Any], None]) -> MethodHook:
    """Look at each training loader that the strategy hands over from now on.

    No hook of Lightning's lies between `train_dataloader` and the loader's first iteration, in
    which samplers draw and workers begin.

    Args:
        trainer: the Trainer, before it asks for loaders.
        look: takes the loader as it is iterated.
    """

    def handed(loader: Any, *_: Any, **__: Any) -> None:
        if trainer.training:  # not those of a validation
            look(loader)

    return MethodHook(trainer.strategy, "process_dataloader", after=handed, shown=True)


def show_batches(trainer: Any, module: torch.nn.Module, run: AuditRun) -> MethodHook:
    """Pass each batch through the audit before the user's ``training_step`` sees it.

    The strategy calls ``training_step`` of the module, for automatic and manual optimization alike,
    behind every hook that may move or change the batch.

    Args:
        trainer: the Trainer.
        module: the user's module.
        run: the audit, which looks at each batch.
    """
    admit = refused_as_lightning_does(run.admit)

    def given(batch: Any, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        # The extra passes compute in the precision of the training.
        with trainer.precision_plugin.train_step_context():
            return (admit(batch, module), *args)

    def done(output: Any, *_: Any, **__: Any) -> None:
        if output is None and module.automatic_optimization:
            run.skipped()

    return MethodHook(trainer.strategy, "training_step", given, done, done, shown=True)
