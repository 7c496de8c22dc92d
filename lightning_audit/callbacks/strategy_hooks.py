"""Hooks on methods of the Trainer's strategy, for events without a Lightning hook."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from lightning_audit.callbacks._namespaces import refused_as_lightning_does
from lightning_audit.taps.method_hook import MethodHook

if TYPE_CHECKING:
    from lightning_audit.run.audit_run import AuditRun


def watch_loaders(trainer: Any, look: Callable[[Any], None]) -> MethodHook:
    """Call ``look`` with each training loader that the strategy processes from now on.

    Lightning has no hook between `train_dataloader` and the loader's first iteration, in which
    samplers draw and workers start.

    Args:
        trainer: the Trainer, before it requests its loaders.
        look: called with the loader that will be iterated.
    """

    def handed(loader: Any, *_: Any, **__: Any) -> None:
        if trainer.training:  # no validation loaders
            look(loader)

    return MethodHook(trainer.strategy, "process_dataloader", after=handed, shown=True)


def show_batches(trainer: Any, module: torch.nn.Module, run: AuditRun) -> MethodHook:
    """Pass each batch through the audit before the user's ``training_step`` sees it.

    The strategy calls the module's ``training_step``, for automatic and for manual optimization,
    after every hook that may move or change the batch.

    Args:
        trainer: the Trainer.
        module: the user's module.
        run: the audit, which may add a canary to the batch.
    """
    admit = refused_as_lightning_does(run.admit)

    def given(batch: Any, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        # Extra passes run in the training's precision.
        with trainer.precision_plugin.train_step_context():
            return (admit(batch, module), *args)

    def done(output: Any, *_: Any, **__: Any) -> None:
        if output is None and module.automatic_optimization:
            run.skipped()

    return MethodHook(trainer.strategy, "training_step", given, done, done, shown=True)
