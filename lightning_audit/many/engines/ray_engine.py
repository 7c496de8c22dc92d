"""Ray: blocks as tasks of a Ray cluster, or of a local one that the audit starts."""

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
from lightning_audit.many.engines.engine_protocol import Engine, EngineError
from lightning_audit.many.engines.local_processes import environment
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

#: Seconds in which a cluster must answer.
_ANSWERS = 10


@dataclass(frozen=True)
class RayEngine:
    """Tasks of a Ray cluster (needs ``lightning-audit[ray]`` here and on each node).

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
            return _Tasks(ray, data, self, own)
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
        host, _, port = str(self.address).rpartition(":")
        try:
            if port.isdigit():  # Ray itself tries for a minute, and may then end this process
                socket.create_connection((host, int(port)), _ANSWERS).close()
            with environment({"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}):
                ray.init(**settings)
        except Exception as error:
            raise EngineError(
                f"the Ray cluster at address={shown(self.address)} does not answer "
                f"({type(error).__name__}); see `ray status` on its head node, then make the same "
                "call, which continues after what is stored."
            ) from error


class _Tasks:
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
        )(_run)
        self._open: dict[Future[list[Outcome]], Any] = {}

    def submit(self, block: Block) -> Future[list[Outcome]]:
        future: Future[list[Outcome]] = Future()
        try:
            results = self._task.remote(self._key, [self._work], self._imports, block)
        except Exception as error:
            raise BrokenExecutor(f"Ray takes no block: {_line(error)}") from error
        self._open[future] = results
        threading.Thread(target=self._follow, args=(results, future), daemon=True).start()
        return future

    def _follow(self, results: Any, future: Future[list[Outcome]]) -> None:
        """Wait until the worker is ready, then until the block has ended."""
        try:
            self._ray.get(next(results))
            future.set_running_or_notify_cancel()
            settle(future, self._ray.get(next(results)))
        except self._ray.exceptions.RayTaskError as error:
            settle(future, error.cause)
        except self._ray.exceptions.WorkerCrashedError:
            settle(future, RuntimeError("its worker ended; see Ray's logs for why"))
        except self._ray.exceptions.RaySystemError as error:
            settle(future, BrokenExecutor(_line(error)))
        except Exception as error:
            settle(future, RuntimeError(f"{type(error).__name__}: {_line(error)}"))
        self._open.pop(future, None)

    def cancel(self, future: Future[list[Outcome]]) -> None:
        results = self._open.get(future)
        settle(future, CancelledError())
        if results is not None:
            with contextlib.suppress(Exception):  # it has ended
                self._ray.cancel(results, force=True)

    def close(self) -> None:
        for future in list(self._open):
            self.cancel(future)
        if self._own:
            self._ray.shutdown()


def _run(key: str, held: list[Any], imports: tuple[str, ...], block: Block) -> Iterator[Any]:
    """Yield None when the worker is ready, then the outcomes of the block."""
    import ray

    prepare(key, ray.get(held[0]), imports)
    yield None
    yield run_prepared(key, block)


def _line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
