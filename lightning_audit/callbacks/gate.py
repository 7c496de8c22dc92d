"""The audit's way to the batches: a wrapper of the strategy's ``training_step``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class BatchGate:
    """Passes each batch through the audit before the user's ``training_step`` sees it.

    The strategy calls ``training_step`` of the module, for automatic and manual optimization alike,
    behind every hook that may move or change the batch.

    Args:
        trainer: the Trainer.
        module: the user's module.
        admit: gives the batch that is trained, of the batch and the module.
        skipped: called where automatic optimization is told to take no step.
        look: called before with the batch, and with what trains on a batch; None for nothing.
    """

    _NAME = "training_step"

    def __init__(
        self,
        trainer: Any,
        module: torch.nn.Module,
        admit: Callable[[Any, torch.nn.Module], Any],
        skipped: Callable[[], None],
        look: Callable[[Any, Callable[[Any], Any]], None] | None = None,
    ) -> None:
        self._strategy = trainer.strategy
        self._before = vars(self._strategy).get(self._NAME)
        inner = getattr(self._strategy, self._NAME)

        def training_step(batch: Any, *args: Any, **kwargs: Any) -> Any:
            if look is not None:
                look(batch, lambda other: inner(other, *args, **kwargs))
            # The extra passes compute in the precision of the training.
            with trainer.precision_plugin.train_step_context():
                batch = admit(batch, module)
            output = inner(batch, *args, **kwargs)
            if output is None and module.automatic_optimization:
                skipped()
            return output

        setattr(self._strategy, self._NAME, training_step)

    def close(self) -> None:
        """Take the wrapper off."""
        if self._before is None:
            vars(self._strategy).pop(self._NAME, None)
        else:
            setattr(self._strategy, self._NAME, self._before)
