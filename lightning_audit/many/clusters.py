"""Engines for clusters: Dask and Ray."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor, CancelledError, Future
from dataclasses import dataclass
from typing import Any

from lightning_audit import _validate
from lightning_audit._validate import BadArgument, shown
from lightning_audit.many.engines import (
    IMPORTS,
    Engine,
    EngineError,
    environment,
    installed,
    packed,
    prepare,
    run_prepared,
    settle,
)
from lightning_audit.many.store import Block, Outcome
from lightning_audit.many.worlds import Work

#: Seconds in which a cluster must answer.
_ANSWERS = 10


@contextlib.contextmanager
def _answering(cluster: str, address: Any) -> Iterator[None]:
    """Reach for a cluster at an address; one that does not answer is one sentence."""
    try:
        host, _, port = str(address).rpartition("://")[2].rpartition(":")
        if isinstance(address, str) and port.isdigit():  # Ray would try for a minute, and may exit
            socket.create_connection((host, int(port)), _ANSWERS).close()
        yield
    except Exception as error:
        raise EngineError(
            f"the {cluster} at {shown(address)} does not answer ({type(error).__name__}); start "
            "it, then make the same call, which continues after what is stored."
        ) from error


# --- Dask: blocks as tasks of a cluster of dask.distributed.

#: Seconds for a worker to be restarted, and starts of a block whose worker ended before it began.
_RESTART, _NOT_BEGUN = 20, 3


@dataclass(frozen=True)
class DaskEngine:
    """Tasks of a Dask cluster (needs the extra ``dask`` here and on each worker).

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
        client, own = self.client, isinstance(self.client, str)
        with _answering("Dask scheduler", client):
            if own:
                client = distributed.Client(client, timeout=_ANSWERS, set_as_default=False)
            threads = client.nthreads()
        try:
            if not threads:
                raise EngineError("the Dask cluster has no workers; start them, and try again.")
            if max(threads.values()) > 1:
                raise BadArgument(
                    "Dask's workers have several threads, which share one random generator; start "
                    "them with `--nthreads 1`, or LocalCluster(threads_per_worker=1)."
                )
            return _DaskTasks(client, data, self, self.workers or len(threads), own)
        except BaseException:
            if own:
                client.close()
            raise


class _DaskTasks:
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
        task = self._client.submit(
            _run_on_dask, self._key, name, block, key=name, pure=False, retries=0
        )
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


def _run_on_dask(key: str, name: str, block: Block) -> list[Outcome]:
    from distributed import get_worker
    from distributed.utils import sync

    worker = get_worker()
    # `worker.log_event` only queues the event: a worker that ends at once would not send it.
    sync(worker.loop, worker.scheduler.log_event, topic=key, msg=(name, worker.address))
    return [*run_prepared(key, block)]


def _allow_failures(number: int, dask_scheduler: Any = None) -> int:
    """Set how often Dask starts a task again whose worker ended; return what was set."""
    before: int = dask_scheduler.allowed_failures
    dask_scheduler.allowed_failures = number
    return before


# --- Ray: blocks as tasks of a Ray cluster, or of a local one that the audit starts.


@dataclass(frozen=True)
class RayEngine:
    """Tasks of a Ray cluster (needs the extra ``ray`` here and on each node).

    A session that your script has started with ``ray.init`` is used, and stays open at the end.

    Args:
        address: of the cluster, such as "auto" on one of its nodes; None for the session of this
            process, or for a local one that ends with the audit.
        workers: number of blocks at the same time; None for as many as the cluster has room for.
        num_cpus: cores that Ray reserves for a block.
        num_gpus: GPUs that Ray reserves for a block, such as 0.25 for four blocks a GPU.
        imports: libraries that a worker imports before its first training.
    """

    address: str | None = None
    workers: int | None = None
    num_cpus: float = 1
    num_gpus: float = 0
    imports: tuple[str, ...] = IMPORTS

    def start(self, work: Work) -> Engine:
        """Return a running engine.

        Raises:
            BadArgument: if Ray is not installed, or the address is of Ray Client.
            ValueError: if ``workers`` is no number, or no resource is asked for.
            EngineError: if the cluster does not answer, or has no room for a block.
            Unpicklable: if the training cannot be sent to another process.
        """
        if self.workers is not None:
            _validate.positive_int("workers", self.workers, "such as RayEngine(workers=2)")
        _validate.non_negative("num_cpus", self.num_cpus)
        _validate.non_negative("num_gpus", self.num_gpus)
        if not self.num_cpus and not self.num_gpus:
            raise BadArgument(
                "num_cpus=0 and num_gpus=0 ask for nothing, and so all blocks would run at the "
                "same time; give RayEngine(num_cpus=1)."
            )
        if str(self.address).startswith("ray://"):
            raise BadArgument(
                f"address={shown(self.address)} is of Ray Client, which cannot show whether a "
                "block runs; start the script on a node of the cluster with address='auto'."
            )
        ray, data = installed("ray", "ray"), packed(work)
        own = not ray.is_initialized()
        if own:
            self._connect(ray)
        try:
            return _RayTasks(ray, data, self, own)
        except BaseException:
            if own:
                ray.shutdown()
            raise

    def _connect(self, ray: Any) -> None:
        settings: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if self.address is None:  # "local": RAY_ADDRESS is not read
            settings |= {"address": "local", "include_dashboard": False}
            if self.workers is not None:
                settings["num_cpus"] = max(1, round(self.workers * self.num_cpus))
        else:
            settings["address"] = self.address
        with (
            _answering("Ray cluster", self.address),
            environment({"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}),
        ):
            ray.init(**settings)


class _RayTasks:
    def __init__(self, ray: Any, work: bytes, settings: RayEngine, own: bool) -> None:
        self._ray, self._own, self._imports = ray, own, settings.imports
        room = ray.cluster_resources()
        needs = {"CPU": settings.num_cpus, "GPU": settings.num_gpus}
        fits = min(int(room.get(name, 0) / most) for name, most in needs.items() if most)
        if not fits:
            raise EngineError(
                f"the Ray cluster has no room for a block of num_cpus={settings.num_cpus} and "
                f"num_gpus={settings.num_gpus}; add nodes, or ask for less."
            )
        self.workers = settings.workers or fits
        self._key = uuid.uuid4().hex
        self._work = ray.put(work)
        self._task = ray.remote(
            max_retries=0,
            num_returns="streaming",
            num_cpus=settings.num_cpus,
            num_gpus=settings.num_gpus,
        )(_run_on_ray)
        #: The results of each block, and what of them has come.
        self._open: dict[Future[list[Outcome]], tuple[Any, list[Outcome]]] = {}

    def submit(self, block: Block) -> Future[list[Outcome]]:
        future: Future[list[Outcome]] = Future()
        try:
            results = self._task.remote(self._key, [self._work], self._imports, block)
        except Exception as error:
            raise BrokenExecutor(f"Ray takes no block: {_line(error)}") from error
        self._open[future] = results, []
        threading.Thread(target=self._follow, args=(future,), daemon=True).start()
        return future

    def _follow(self, future: Future[list[Outcome]]) -> None:
        """Wait until the worker is ready, then for each training of the block."""
        results, come = self._open[future]
        value: Any = come
        try:
            self._ray.get(next(results))
            future.set_running_or_notify_cancel()
            come.extend(map(self._ray.get, results))
        except self._ray.exceptions.RayTaskError as error:
            value = error.cause
        except self._ray.exceptions.WorkerCrashedError:
            value = RuntimeError("its worker ended; see Ray's logs for why")
        except self._ray.exceptions.RaySystemError as error:
            value = BrokenExecutor(_line(error))
        except Exception as error:
            value = RuntimeError(f"{type(error).__name__}: {_line(error)}")
        else:
            del self._open[future]
        settle(future, value)

    def ended(self, future: Future[list[Outcome]]) -> list[Outcome]:
        return [*self._open[future][1]] if future in self._open else []

    def cancel(self, future: Future[list[Outcome]]) -> None:
        settle(future, CancelledError())
        with contextlib.suppress(Exception):  # it has ended
            self._ray.cancel(self._open[future][0], force=True)

    def close(self) -> None:
        for future in list(self._open):
            if not future.done():
                self.cancel(future)
        if self._own:
            self._ray.shutdown()


def _run_on_ray(key: str, held: list[Any], imports: tuple[str, ...], block: Block) -> Iterator[Any]:
    """Yield None when the worker is ready, then what each training of the block gave."""
    import ray

    prepare(key, ray.get(held[0]), imports)
    yield None
    yield from run_prepared(key, block)


def _line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
