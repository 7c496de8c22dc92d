"""Dask: blocks as tasks of a cluster of dask.distributed."""

from __future__ import annotations

import contextlib
import uuid
from concurrent.futures import BrokenExecutor, CancelledError, Future
from dataclasses import dataclass
from typing import Any

from lightning_audit import _validate
from lightning_audit._validate import BadArgument, shown
from lightning_audit.many.engines.engine_protocol import Engine, EngineError
from lightning_audit.many.engines.packing import (
    IMPORTS,
    installed,
    packed,
    prepare,
    run_prepared,
    settle,
)
from lightning_audit.many.game.plan import Block
from lightning_audit.many.game.user_training import Outcome, Work

#: Seconds for a worker to be restarted, and starts of a block whose worker ended before it began.
_RESTART, _NOT_BEGUN = 20, 3


@dataclass(frozen=True)
class DaskEngine:
    """Tasks of a Dask cluster (needs ``lightning-audit[dask]`` here and on each worker).

    The cluster stays open at the end. Meanwhile its scheduler has ``allowed-failures: 0``, so that
    Dask itself does not start a block again that ends its worker.

    Args:
        client: a `distributed.Client`, or the address of a scheduler, such as
            "tcp://head:8786". Workers have one thread each and a nanny, which restarts them.
        workers: number of blocks at the same time; None for the number of Dask's workers.
        imports: libraries that a worker imports before its first training.
    """

    client: Any
    workers: int | None = None
    imports: tuple[str, ...] = IMPORTS

    def start(self, work: Work) -> Engine:
        """Return a running engine.

        Raises:
            BadArgument: if Dask is not installed, or its workers have several threads.
            ValueError: if ``workers`` is no number.
            EngineError: if the scheduler does not answer, or has no workers.
            Unpicklable: if the training cannot be sent to another process.
        """
        if self.workers is not None:
            _validate.positive_int("workers", self.workers, "such as DaskEngine(client, 2)")
        distributed, data = installed("distributed", "dask"), packed(work)
        own = isinstance(self.client, str)
        client = self.client
        try:
            if own:
                client = distributed.Client(client, timeout=10, set_as_default=False)
            threads = client.nthreads()
        except Exception as error:
            raise EngineError(
                f"the Dask scheduler of client={shown(self.client)} does not answer "
                f"({type(error).__name__}); start it, and make the same call with a new client, "
                "which continues after what is stored."
            ) from error
        try:
            if not threads:
                raise EngineError("the Dask cluster has no workers; start them, and try again.")
            if max(threads.values()) > 1:
                raise BadArgument(
                    "Dask's workers have several threads, which share one random generator; start "
                    "them with `--nthreads 1`, or LocalCluster(threads_per_worker=1)."
                )
            return _Tasks(client, data, self, self.workers or len(threads), own)
        except BaseException:
            if own:
                client.close()
            raise


class _Tasks:
    def __init__(
        self, client: Any, work: bytes, settings: DaskEngine, workers: int, own: bool
    ) -> None:
        self._client, self.workers, self._own = client, workers, own
        self._key = f"audit-{uuid.uuid4().hex}"
        self._open: dict[Future[list[Outcome]], Any] = {}
        self._begun: dict[str, str] = {}
        client.register_plugin(_plugin(self._key, work, settings.imports), name=self._key)
        client.subscribe_topic(self._key, self._begins)
        self._allowed = client.run_on_scheduler(_allow_failures, 0)

    def submit(self, block: Block) -> Future[list[Outcome]]:
        future: Future[list[Outcome]] = Future()
        self._send(block, future, 1)
        return future

    def _send(self, block: Block, future: Future[list[Outcome]], attempt: int) -> None:
        name = f"{self._key}-{uuid.uuid4().hex}"
        if self._client.status != "running":
            raise BrokenExecutor("the Dask scheduler does not answer")
        task = self._client.submit(_run, self._key, name, block, key=name, pure=False, retries=0)
        self._open[future] = task
        task.add_done_callback(lambda done: self._ended(done, block, future, attempt))

    def _begins(self, event: Any) -> None:
        _, (name, worker) = event
        self._begun[name] = worker
        for future, task in list(self._open.items()):
            if task.key == name and not future.running() and not future.done():
                future.set_running_or_notify_cancel()

    def _ended(self, task: Any, block: Block, future: Future[list[Outcome]], attempt: int) -> None:
        begun = self._begun.pop(task.key, None)
        try:
            value = task.result()
        except CancelledError:
            value = BrokenExecutor("the Dask scheduler has lost the block")
        except Exception as error:
            value = error
        if type(value).__name__ == "KilledWorker":
            if begun is None and attempt < _NOT_BEGUN and not future.done():
                with contextlib.suppress(BrokenExecutor):  # another block ended its worker
                    return self._send(block, future, attempt + 1)
            value = RuntimeError("its worker ended; see Dask's logs for why")
        settle(future, value)
        self._open.pop(future, None)

    def cancel(self, future: Future[list[Outcome]]) -> None:
        settle(future, CancelledError())
        task = self._open.pop(future, None)
        if task is None:
            return
        worker = self._begun.get(task.key)
        with contextlib.suppress(Exception):  # the scheduler is gone, or the worker has ended
            task.cancel()
            if worker is not None:
                self._client.restart_workers([worker], timeout=_RESTART, raise_for_error=False)

    def close(self) -> None:
        for future in list(self._open):
            self.cancel(future)
        with contextlib.suppress(Exception):  # the scheduler is gone
            if self._client.status == "running":
                self._client.run_on_scheduler(_allow_failures, self._allowed)
                self._client.unsubscribe_topic(self._key)
                self._client.unregister_worker_plugin(self._key)
        if self._own:
            self._client.close()


def _plugin(key: str, work: bytes, imports: tuple[str, ...]) -> Any:
    """Return what prepares each worker, also one that starts later."""
    from distributed import WorkerPlugin

    class Prepared(WorkerPlugin):  # type: ignore[misc]
        def setup(self, worker: Any) -> None:
            prepare(key, work, imports)

    return Prepared()


def _run(key: str, name: str, block: Block) -> list[Outcome]:
    from distributed import get_worker
    from distributed.utils import sync

    worker = get_worker()
    # `worker.log_event` only queues the event: a worker that ends at once would not send it.
    sync(worker.loop, worker.scheduler.log_event, topic=key, msg=(name, worker.address))
    return run_prepared(key, block)


def _allow_failures(number: int, dask_scheduler: Any = None) -> int:
    """Set how often Dask starts a task again whose worker ended; return what was set."""
    before: int = dask_scheduler.allowed_failures
    dask_scheduler.allowed_failures = number
    return before
