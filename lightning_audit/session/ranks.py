"""The processes of one training: which of them adds a step's canaries, and what all must share.

All processes flip the same coins and read the same gradient, the sum over all of them; only one
adds rows to its per-sample gradients, each in its turn. The first one writes and decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch

from lightning_audit.results.refusal import UnauditableTraining

if TYPE_CHECKING:
    import pytorch_lightning as pl

_Value = TypeVar("_Value")


class Ranks:
    """This process among those that train together.

    A method that talks to the others must be called by all of them, at the same place of the run.

    Args:
        rank: number of this process over all nodes.
        count: number of processes.
        strategy: Lightning's strategy, by which they talk; None if this process is to be alone.
    """

    def __init__(self, rank: int = 0, count: int = 1, strategy: Any = None) -> None:
        self.rank = rank
        self.count = count
        #: Whether more than one process trains, and whether this one is the one that writes.
        self.several, self.is_first = count > 1, rank == 0
        self._strategy = strategy if count > 1 else None

    @classmethod
    def of(cls, trainer: pl.Trainer) -> Ranks:
        """The processes of a Trainer."""
        return cls(trainer.global_rank, trainer.world_size, trainer.strategy)

    @property
    def talk(self) -> bool:
        """Whether the processes can still reach each other."""
        return self._strategy is not None

    def adds(self, step: int) -> bool:
        """Whether it is this process's turn to add the canaries of a step."""
        return step % self.count == self.rank

    def coins(self, key: int, step: int) -> np.random.Generator:
        """A generator that is the same in every process.

        It is made of the step's number: a process that had to plan a step twice stays with the
        others.
        """
        return np.random.default_rng((key, step))

    def part(self) -> None:
        """Talk to the others no more: they may be waiting elsewhere, or be gone."""
        self._strategy = None

    # ------------------------------------------------------------------ called by all

    def shared(self, value: _Value) -> _Value:
        """The first process's value."""
        if self._strategy is None:
            return value
        received: _Value = self._strategy.broadcast(value)
        return received

    def from_first(self, compute: Callable[[], _Value]) -> _Value:
        """What the first process computes, known to all of them when it is done.

        Raises:
            UnauditableTraining: it refused the training, in all processes.
            RuntimeError: the first process failed otherwise; there, its own exception.
        """
        if self._strategy is None:
            return compute()
        value: Any = None
        failure: Exception | None = None
        if self.is_first:
            try:
                value = compute()
            except Exception as error:  # the others must not wait for a value that never comes
                failure = error
        refused = isinstance(failure, UnauditableTraining)
        told = str(failure) if refused else repr(failure) if failure else ""
        value, told, refused = self.shared((value, told, refused))
        if failure is not None:
            raise failure
        if refused:
            raise UnauditableTraining(told)
        if told:
            raise RuntimeError(f"the audit failed in the process of rank 0: {told}")
        result: _Value = value
        return result

    def gathered(self, numbers: Sequence[int]) -> list[list[int]]:
        """The numbers of every process, by rank."""
        if self._strategy is None:
            return [list(numbers)]
        own = torch.tensor(list(numbers), dtype=torch.int64, device=self._strategy.root_device)
        rows = [torch.empty_like(own) for _ in range(self.count)]
        torch.distributed.all_gather(rows, own)
        return [row.tolist() for row in rows]
