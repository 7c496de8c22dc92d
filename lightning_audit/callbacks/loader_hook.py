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
        self._before: Any = None
        self._own: Any = None

    def attach(self, trainer: Any, look: Callable[[Any], None]) -> None:
        """Call ``look`` with every training loader from now on.

        Args:
            trainer: the Trainer, before it asks for loaders.
            look: takes the loader as it is iterated.
        """
        self.detach()
        self._strategy = trainer.strategy
        self._before = vars(trainer.strategy).get("process_dataloader")
        process = trainer.strategy.process_dataloader

        def watched(dataloader: Any) -> Any:
            loader = process(dataloader)
            if trainer.training:  # not those of a validation
                look(loader)
            return loader

        self._own = trainer.strategy.process_dataloader = watched

    def detach(self) -> None:
        """Leave the strategy as it was, unless somebody has put something over this."""
        strategy, before, own = self._strategy, self._before, self._own
        # Nothing of the training is kept: a callback that has fitted can be copied and pickled.
        self._strategy = self._before = self._own = None
        if strategy is None or vars(strategy).get("process_dataloader") is not own:
            return
        del strategy.process_dataloader
        if before is not None:
            strategy.process_dataloader = before
