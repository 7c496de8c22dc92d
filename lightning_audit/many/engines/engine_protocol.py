"""What an engine is: it runs blocks of trainings somewhere, and the driver does all the rest."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Protocol

from lightning_audit.many.game.plan import Block
from lightning_audit.many.game.user_training import Outcome, Work


class EngineError(RuntimeError):
    """The engine ends before it gives a result; the message says what to do."""


class Engine(Protocol):
    """Runs blocks somewhere; the driver does all the rest.

    Attributes:
        workers: number of blocks that it runs at the same time.
    """

    workers: int

    def submit(self, block: Block) -> Future[list[Outcome]]:
        """Start a block, and return its future."""

    def cancel(self, future: Future[list[Outcome]]) -> None:
        """End a block that takes too long; its process too, if the engine can."""

    def close(self) -> None:
        """End everything that the engine started."""


class EngineSettings(Protocol):
    """Settings from which an engine is started, also a second time if it breaks."""

    def start(self, work: Work) -> Engine:
        """Return a running engine."""
