"""Engines run blocks of trainings: in this process, in processes of this machine, by executors."""

from __future__ import annotations

import contextlib
import functools
import importlib
import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from lightning_audit import _validate
from lightning_audit._validate import BadArgument, shown
from lightning_audit.files import with_extra
from lightning_audit.many.store import Block, Outcome
from lightning_audit.many.worlds import Work

# --- What an engine is: it runs blocks of trainings somewhere, and the driver does all the rest.


class EngineError(RuntimeError):
    """The engine ends before it gives a result; the message says what to do."""


class Engine(Protocol):
    """Runs blocks somewhere; the driver does all the rest.

    A block's future runs once a worker has begun it. It raises `BrokenExecutor` if the engine can
    run no more blocks, `CancelledError` after `cancel`, and anything else if its worker was lost.
    An engine may have ``ended(future)``: the outcomes of the trainings of a block that had ended
    before it was lost. One without it gets the trainings one by one, since nothing says which of a
    block hangs.

    Attributes:
        workers: number of blocks that it runs at the same time.
    """

    workers: int

    def submit(self, block: Block) -> Future[list[Outcome]]:
        """Start a block, and return its future."""

    def cancel(self, future: Future[list[Outcome]]) -> None:
        """End a block that takes too long; its process too, if the engine can."""
        future.cancel()

    def close(self) -> None:
        """End everything that the engine started; nothing by default."""
        return


class EngineSettings(Protocol):
    """Settings from which an engine is started, also a second time if it breaks."""

    def start(self, work: Work) -> Engine:
        """Return a running engine."""


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


# --- Sends a training to other processes, and runs it there.

#: Libraries that a worker imports before its first training, so that no limit counts them.
IMPORTS = ("torch", "opacus")
#: Trainings that this process has loaded, by what they were sent as.
_works: dict[Any, Work] = {}


class Unpicklable(BadArgument):
    """A function, data set or score that cannot be sent to another process."""


def packed(work: Work) -> bytes:
    """Return the training as bytes, functions of the user's script by value.

    Raises:
        BadArgument: if cloudpickle is not installed.
        Unpicklable: if a part cannot be pickled; the message names it.
    """
    dumps = installed("cloudpickle").dumps
    try:
        return bytes(dumps(work))
    except Exception as error:
        parts = {"train": work.train, "dataset": work.worlds, "score": work.score}
        names = [name for name, part in parts.items() if not _picklable(dumps, part)]
        raise Unpicklable(
            f"{' and '.join(names) or 'the training'} cannot be sent to another process "
            f"({type(error).__name__}: {shown(str(error))}); open files, connections and "
            "generators inside train, or give engine=ThisProcess()."
        ) from error


def _picklable(dumps: Callable[[Any], bytes], part: Any) -> bool:
    try:
        dumps(part)
    except Exception:
        return False
    return True


def prepare(key: Any, work: bytes, imports: tuple[str, ...] = ()) -> None:
    """Load the training in a worker once, with one thread, before any limit counts."""
    if key in _works:
        return
    for name in imports:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    _works[key] = pickle.loads(work)


def run_prepared(key: Any, block: Block) -> Iterator[Outcome]:
    """Run a block of the training that `prepare` loaded under this key."""
    return _works[key].run(block)


@functools.lru_cache(maxsize=1)
def _loaded(work: bytes) -> Work:
    loaded: Work = pickle.loads(work)
    return loaded


def run_packed(work: bytes, block: Block) -> list[Outcome]:
    """Run a block in a process of an executor, which nothing has prepared."""
    return [*_loaded(work).run(block)]


def settle(future: Future[Any], value: Any) -> None:
    """Give a future its result or exception, unless it has one."""
    with contextlib.suppress(InvalidStateError):
        if isinstance(value, BaseException):
            future.set_exception(value)
        else:
            future.set_result(value)


def installed(name: str, extra: str = "many") -> Any:
    """Return a package that only some engines need.

    Raises:
        BadArgument: if it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise BadArgument(
            f"{name} is not installed, and trainings in other processes need it; "
            f"{with_extra(extra)}, or give engine=ThisProcess()."
        ) from error


# --- Processes of this machine, which end with the process that started them.

_PR_SET_PDEATHSIG = 1
#: A process has one training.
_KEY = ""
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True)
class LocalProcesses:
    """Processes of this machine, each with one thread (needs the extra ``many``).

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


class _Processes(Engine):
    """A pool of pebble, whose processes have the training from their start.

    To cancel a block ends its process. A process writes each outcome of a block to a file at once,
    so that those are known that had ended when it was lost.
    """

    def __init__(self, work: bytes, workers: int, imports: tuple[str, ...]) -> None:
        pebble = installed("pebble")
        self.workers = workers
        self._files: dict[Future[list[Outcome]], Path] = {}
        self._open = contextlib.ExitStack()
        self._folder = Path(self._open.enter_context(tempfile.TemporaryDirectory()))
        self._open.enter_context(environment(dict.fromkeys(_THREADS, "1")))
        self._pool = pebble.ProcessPool(
            max_workers=workers,
            context=multiprocessing.get_context("spawn"),
            initializer=_begin_process,
            initargs=(os.getpid(), work, imports),
        )

    def submit(self, block: Block) -> Future[list[Outcome]]:
        path = self._folder / str(block[0].number)
        path.unlink(missing_ok=True)
        future: Future[list[Outcome]] = self._pool.schedule(_run_in_process, args=(block, path))
        self._files[future] = path
        return future

    def ended(self, future: Future[list[Outcome]]) -> list[Outcome]:
        found = []
        ends = contextlib.suppress(OSError, EOFError, pickle.UnpicklingError)
        with ends, open(self._files[future], "rb") as file:
            while True:
                found.append(pickle.load(file))
        return found

    def close(self) -> None:
        self._pool.stop()
        self._pool.join()
        self._open.close()


def _begin_process(driver: int, work: bytes, imports: tuple[str, ...]) -> None:
    """Tie a new process to its driver, and load the training before any limit runs."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's
    end_with(driver)
    prepare(_KEY, work, imports)


def _run_in_process(block: Block, path: Path) -> list[Outcome]:
    outcomes = []
    with open(path, "wb", buffering=0) as file:
        for outcome in run_prepared(_KEY, block):
            outcomes.append(outcome)
            file.write(pickle.dumps(outcome))
    return outcomes


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
    before = {name: os.environ[name] for name in changes if name in os.environ}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name in changes:
            os.environ.pop(name, None)
        os.environ.update(before)


# --- This process itself, and executors that the user brings.


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


class _Here(Engine):
    workers = 1

    def __init__(self, work: Work) -> None:
        self._work = work

    def submit(self, block: Block) -> Future[list[Outcome]]:
        future: Future[list[Outcome]] = Future()
        with _interrupts() as interrupted:
            outcomes = []
            for outcome in self._work.run(block):
                if interrupted:
                    raise KeyboardInterrupt
                outcomes.append(outcome)
        future.set_result(outcomes)
        return future

    def ended(self, future: Future[list[Outcome]]) -> list[Outcome]:
        return []  # no block of this process is lost without it


@contextlib.contextmanager
def _interrupts() -> Iterator[list[int]]:
    """Yield the interrupts that came meanwhile: a training may raise KeyboardInterrupt itself."""
    came: list[int] = []
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield came
        return

    def handle(number: int, frame: Any) -> None:
        came.append(number)
        before(number, frame)

    signal.signal(signal.SIGINT, handle)
    try:
        yield came
    finally:
        signal.signal(signal.SIGINT, before)


class _Submitted(Engine):
    def __init__(self, executor: Any, work: bytes, workers: int) -> None:
        self._executor, self._work, self.workers = executor, work, workers

    def submit(self, block: Block) -> Future[list[Outcome]]:
        future: Future[list[Outcome]] = self._executor.submit(run_packed, self._work, block)
        return future
