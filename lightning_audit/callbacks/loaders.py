"""Sees the training loaders between their making and the first batch that is drawn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class LoaderWatcher:
    """Looks at each training loader that the Trainer's strategy hands over.

    No hook of Lightning's lies between `train_dataloader` and the loader's first iteration, in
    which samplers draw and workers begin.
    """

    def __init__(self) -> None:
        self._strategy: Any = None

    def attach(self, trainer: Any, look: Callable[[Any], None]) -> None:
        """Call ``look`` with every training loader from now on.

        Args:
            trainer: the Trainer, before it asks for loaders.
            look: takes the loader as it is iterated.
        """
        self.detach()
        self._strategy = trainer.strategy
        process = trainer.strategy.process_dataloader

        def watched(dataloader: Any) -> Any:
            loader = process(dataloader)
            if trainer.training:  # not those of a validation
                look(loader)
            return loader

        trainer.strategy.process_dataloader = watched

    def detach(self) -> None:
        """Leave the strategy as it was."""
        strategy, self._strategy = self._strategy, None
        if strategy is not None:
            vars(strategy).pop("process_dataloader", None)
