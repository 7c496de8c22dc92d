"""Train rows in separate processes, with one thread each."""

from __future__ import annotations

import contextlib
import multiprocessing
import pickle
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from pathlib import Path

from lightning_audit.many.engines.local_processes import environment
from lightning_audit.selftest.result import Result, crashed
from lightning_audit.selftest.rows import Row
from lightning_audit.selftest.training import run_row
from lightning_audit.selftest.worker import Broken, serve

#: Time limit of a training, in seconds.
LIMIT = 300.0
#: Characters of a worker's log that a crashed row shows.
_SHOWN = 200

_SPAWN = multiprocessing.get_context("spawn")
Train = Callable[[Row], Result]


class _Worker:
    """A process that trains one row after the other, and ends when this process ends."""

    def __init__(self, scratch: Path, number: int) -> None:
        self._log = scratch / f"worker-{number}.log"
        self.answers, theirs = _SPAWN.Pipe()
        self._process = _SPAWN.Process(target=serve, args=(theirs, str(self._log)))
        own = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
        with theirs, environment({**own, "TMPDIR": str(scratch)}):
            self._process.start()

    def give(self, index: int, row: Row, train: Train, limit: float) -> None:
        """Send a row to train; `answers` is ready when it is done or the process has ended."""
        self.index, self._row, self._limit = index, row, limit
        self._late_at = time.monotonic() + limit
        with contextlib.suppress(OSError):  # the process has ended, which `result` reports
            self.answers.send_bytes(pickle.dumps((train, row)))

    @property
    def left(self) -> float:
        """Seconds until the time limit of the training."""
        return max(0.0, self._late_at - time.monotonic())

    def result(self) -> Result:
        """Return the result of the row; stop the process if it ended or exceeds its time limit."""
        if not self.answers.poll():
            self.stop()
            return crashed(self._row, f"stopped after {self._limit:g} s")
        try:
            answer = self.answers.recv()
        except (EOFError, OSError):
            self.stop()
            return crashed(self._row, self._last_words())
        return crashed(self._row, *answer) if isinstance(answer, Broken) else answer

    def _last_words(self) -> str:
        log = self._log.read_text(errors="replace") if self._log.exists() else ""
        last = "".join(f": {line[:_SHOWN]}" for line in log.strip().splitlines()[-1:])
        return f"the process ended with exit code {self._process.exitcode}{last}"

    @property
    def alive(self) -> bool:
        """Whether the process can train another row."""
        return self._process.is_alive()

    def stop(self) -> None:
        """End the process now."""
        self._process.kill()
        self._process.join()
        self.answers.close()


def run_all(
    rows: Sequence[Row],
    jobs: int,
    told: Callable[[Result], None] = lambda result: None,
    limit: float = LIMIT,
    train: Train = run_row,
) -> tuple[Result, ...]:
    """Train all rows.

    Args:
        rows: to train.
        jobs: number of simultaneous trainings, at least 1.
        told: called with each result as soon as it is known.
        limit: time limit of a training, in seconds.
        train: returns the result of a row; a module-level function, called in another process.

    Returns:
        The results in the order of the rows.

    Raises:
        OSError: no process can be started.
        KeyboardInterrupt: the user interrupted; no process is left running.
    """
    found: dict[int, Result] = {}
    waiting = deque(enumerate(rows))
    idle: list[_Worker] = []
    busy: list[_Worker] = []
    # Also holds the reports of trainings that are killed.
    with tempfile.TemporaryDirectory(
        prefix="lightning-audit-selftest-", ignore_cleanup_errors=True
    ) as scratch:
        try:
            while len(found) < len(rows):
                while waiting and len(busy) < jobs:
                    busy.append(idle.pop() if idle else _Worker(Path(scratch), len(waiting)))
                    busy[-1].give(*waiting.popleft(), train, limit)
                wait([w.answers for w in busy], min(w.left for w in busy))
                for worker in [w for w in busy if w.answers.poll() or not w.left]:
                    result = found[worker.index] = worker.result()
                    told(result)
                    busy.remove(worker)
                    idle += [worker] if worker.alive else []
        finally:
            for worker in (*busy, *idle):
                worker.stop()
    return tuple(found[index] for index in range(len(rows)))
