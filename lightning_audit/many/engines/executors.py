"""This process itself, and executors that the user brings."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from lightning_audit import _validate
from lightning_audit._validate import BadArgument, shown
from lightning_audit.many.engines.engine_protocol import Engine, EngineSettings
from lightning_audit.many.engines.local_processes import LocalProcesses, cores
from lightning_audit.many.engines.packing import packed, run_packed
from lightning_audit.many.game.plan import Block
from lightning_audit.many.game.user_training import Outcome, Work


@dataclass(frozen=True)
class ThisProcess:
    """This process itself, without any other: to debug a training function."""

    def start(self, work: Work) -> Engine:
        """Return an engine that trains when a block is submitted."""
        return _Here(work)


@dataclass(frozen=True)
class FromExecutor:
    """Any object with ``submit(function, *arguments)`` that returns a future.

    The executor stays open at the end. The training is sent with each block, and must be importable
    or picklable by cloudpickle where the blocks run.

    Args:
        executor: such as a `concurrent.futures.ProcessPoolExecutor`.
        workers: number of blocks that it runs at the same time; None for what it says.
    """

    executor: Any
    workers: int | None = None

    def start(self, work: Work) -> Engine:
        """Return an engine that submits to the executor.

        Raises:
            BadArgument: if the executor runs threads, or its number of workers is unknown.
            Unpicklable: if the training cannot be sent to another process.
        """
        if isinstance(self.executor, ThreadPoolExecutor):
            raise BadArgument(
                f"engine={shown(self.executor)} runs threads, which share one random generator; "
                "give LocalProcesses(), or an executor of processes."
            )
        count = self.workers or getattr(self.executor, "_max_workers", None) or cores()
        return _Submitted(self.executor, packed(work), _validate.positive_int("workers", count))


def settings_of(engine: Any) -> EngineSettings:
    """Return what the user gave as an engine's settings.

    Raises:
        BadArgument: if it is nothing that can run a block.
    """
    if engine is None:
        return LocalProcesses()
    if hasattr(engine, "start") and not hasattr(engine, "submit"):
        return engine  # type: ignore[no-any-return]
    if hasattr(engine, "submit"):
        return FromExecutor(engine)
    raise BadArgument(
        f"engine={shown(engine)} must be LocalProcesses(workers), or an object with "
        "submit(function, *arguments) that returns a future."
    )


class _Here:
    workers = 1

    def __init__(self, work: Work) -> None:
        self._work = work

    def submit(self, block: Block) -> Future[list[Outcome]]:
        future: Future[list[Outcome]] = Future()
        future.set_running_or_notify_cancel()
        future.set_result(self._work.run(block))
        return future

    def cancel(self, future: Future[list[Outcome]]) -> None:
        future.cancel()

    def close(self) -> None:
        pass


class _Submitted:
    def __init__(self, executor: Any, work: bytes, workers: int) -> None:
        self._executor, self._work, self.workers = executor, work, workers

    def submit(self, block: Block) -> Future[list[Outcome]]:
        future: Future[list[Outcome]] = self._executor.submit(run_packed, self._work, block)
        return future

    def cancel(self, future: Future[list[Outcome]]) -> None:
        future.cancel()

    def close(self) -> None:
        pass
