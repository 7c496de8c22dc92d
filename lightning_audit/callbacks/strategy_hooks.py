"""Stands in for methods of the Trainer's strategy, where Lightning has no hook of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from lightning_audit.callbacks._namespaces import refused_as_lightning_does

if TYPE_CHECKING:
    from lightning_audit.run.audit_run import AuditRun

_Method = Callable[..., Any]


class StrategyHook:
    """Stands in for one method of a strategy until it is removed.

    Args:
        strategy: the Trainer's.
        name: of the method.
        around: gives what is called instead of the method, which it is given.
    """

    def __init__(self, strategy: Any, name: str, around: Callable[[_Method], _Method]) -> None:
        self._strategy, self._name = strategy, name
        self._before = vars(strategy).get(name)
        self._armed = True
        inner = getattr(strategy, name)
        own = around(inner)

        def called(*args: Any, **kwargs: Any) -> Any:
            # Somebody may have wrapped it, and keep it beyond the audit.
            return (own if self._armed else inner)(*args, **kwargs)

        self._called = called
        setattr(strategy, name, called)

    def remove(self) -> None:
        """Leave the strategy as it was; where somebody put a method over this, it does nothing."""
        self._armed = False
        if vars(self._strategy).get(self._name) is not self._called:
            return
        delattr(self._strategy, self._name)
        if self._before is not None:
            setattr(self._strategy, self._name, self._before)


def watch_loaders(trainer: Any, look: Callable[[Any], None]) -> StrategyHook:
    """Look at each training loader that the strategy hands over from now on.

    No hook of Lightning's lies between `train_dataloader` and the loader's first iteration, in
    which samplers draw and workers begin.

    Args:
        trainer: the Trainer, before it asks for loaders.
        look: takes the loader as it is iterated.
    """

    def around(process: _Method) -> _Method:
        def watched(dataloader: Any) -> Any:
            loader = process(dataloader)
            if trainer.training:  # not those of a validation
                look(loader)
            return loader

        return watched

    return StrategyHook(trainer.strategy, "process_dataloader", around)


def show_batches(trainer: Any, module: torch.nn.Module, run: AuditRun) -> StrategyHook:
    """Pass each batch through the audit before the user's ``training_step`` sees it.

    The strategy calls ``training_step`` of the module, for automatic and manual optimization alike,
    behind every hook that may move or change the batch.

    Args:
        trainer: the Trainer.
        module: the user's module.
        run: the audit, which looks at each batch.
    """
    admit = refused_as_lightning_does(run.admit)

    def around(inner: _Method) -> _Method:
        def training_step(batch: Any, *args: Any, **kwargs: Any) -> Any:
            # The extra passes compute in the precision of the training.
            with trainer.precision_plugin.train_step_context():
                batch = admit(batch, module)
            output = inner(batch, *args, **kwargs)
            if output is None and module.automatic_optimization:
                run.skipped()
            return output

        return training_step

    return StrategyHook(trainer.strategy, "training_step", around)
