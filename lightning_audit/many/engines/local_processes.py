"""Processes of this machine, which end with the process that started them."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass

from lightning_audit import _validate
from lightning_audit.many.engines.engine_protocol import Engine
from lightning_audit.many.engines.packing import (
    IMPORTS,
    installed,
    packed,
    prepare,
    run_prepared,
)
from lightning_audit.many.game.plan import Block
from lightning_audit.many.game.user_training import Outcome, Work

_PR_SET_PDEATHSIG = 1
#: A process has one training.
_KEY = ""
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True)
class LocalProcesses:
    """Processes of this machine, each with one thread (needs ``lightning-audit[many]``).

    A process that is killed, hangs or fails costs the training that it runs, and is replaced. If
    the driver ends for any reason, its processes end with it.

    Args:
        workers: number of processes; None for the number of cores.
        imports: libraries that a process imports before its first training.
    """

    workers: int | None = None
    imports: tuple[str, ...] = IMPORTS

    def start(self, work: Work) -> Engine:
        """Return a running pool of processes.

        Raises:
            BadArgument: if pebble and cloudpickle are not installed, or ``workers`` is no number.
            Unpicklable: if the training cannot be sent to another process.
        """
        refuse_inside_a_worker()
        count = cores() if self.workers is None else self.workers
        count = _validate.positive_int("workers", count, "such as LocalProcesses(2)")
        return _Processes(packed(work), count, self.imports)


class _Processes:
    """A pool of pebble, whose processes have the training from their start."""

    def __init__(self, work: bytes, workers: int, imports: tuple[str, ...]) -> None:
        pebble = installed("pebble")
        self.workers = workers
        arguments = (os.getpid(), work, imports)
        self._threads = environment(dict.fromkeys(_THREADS, "1"))
        self._threads.__enter__()
        self._pool = pebble.ProcessPool(
            max_workers=workers,
            context=multiprocessing.get_context("spawn"),
            initializer=_prepare,
            initargs=arguments,
        )

    def submit(self, block: Block) -> Future[list[Outcome]]:
        future: Future[list[Outcome]] = self._pool.schedule(_run, args=(block,))
        return future

    def cancel(self, future: Future[list[Outcome]]) -> None:
        future.cancel()  # pebble ends the process

    def close(self) -> None:
        self._pool.stop()
        self._pool.join()
        self._threads.__exit__(None, None, None)


def _prepare(driver: int, work: bytes, imports: tuple[str, ...]) -> None:
    """Tie a new process to its driver, and load the training before any limit runs."""
    end_with(driver)
    prepare(_KEY, work, imports)


def _run(block: Block) -> list[Outcome]:
    return run_prepared(_KEY, block)


def end_with(driver: int) -> None:
    """End this process when the process that started it ends, even by SIGKILL.

    Args:
        driver: process id of that process.
    """
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != driver:  # it ended before this call
            os._exit(1)
        return
    parent = multiprocessing.parent_process()
    if parent is not None:

        def follow() -> None:
            parent.join()
            os._exit(1)

        threading.Thread(target=follow, daemon=True).start()


def refuse_inside_a_worker() -> None:
    """End a worker whose import of the user's script starts the audit again."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        sys.stderr.write(f"{NO_GUARD}\n")
        sys.stderr.flush()
        os._exit(1)


#: What to do if workers end before their first training.
NO_GUARD = (
    "each worker imports your script: put the call of audit_training under "
    "`if __name__ == '__main__':`"
)


def cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextlib.contextmanager
def environment(changes: dict[str, str]) -> Iterator[None]:
    """Set environment variables for processes that start meanwhile."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
