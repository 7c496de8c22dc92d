"""Shows each batch to the audit: a wrapper of the strategy's ``training_step``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from lightning_audit.callbacks._namespaces import refused_as_lightning_does

if TYPE_CHECKING:
    from lightning_audit.run.audit_run import BatchAccess


class TrainingStepHook:
    """Passes each batch through the audit before the user's ``training_step`` sees it.

    The strategy calls ``training_step`` of the module, for automatic and manual optimization alike,
    behind every hook that may move or change the batch.

    Args:
        trainer: the Trainer.
        module: the user's module.
        audit: what the audit does with a batch.
    """

    _NAME = "training_step"

    def __init__(self, trainer: Any, module: torch.nn.Module, audit: BatchAccess) -> None:
        self._strategy = trainer.strategy
        self._before = vars(self._strategy).get(self._NAME)
        inner = getattr(self._strategy, self._NAME)
        look, admit = audit.look, refused_as_lightning_does(audit.admit)

        def training_step(batch: Any, *args: Any, **kwargs: Any) -> Any:
            if look is not None:
                refused_as_lightning_does(look)(batch, lambda other: inner(other, *args, **kwargs))
            # The extra passes compute in the precision of the training.
            with trainer.precision_plugin.train_step_context():
                batch = admit(batch, module)
            output = inner(batch, *args, **kwargs)
            if output is None and module.automatic_optimization:
                audit.skipped()
            return output

        setattr(self._strategy, self._NAME, training_step)

    def remove(self) -> None:
        """Take the wrapper off."""
        if self._before is None:
            vars(self._strategy).pop(self._NAME, None)
        else:
            setattr(self._strategy, self._NAME, self._before)
