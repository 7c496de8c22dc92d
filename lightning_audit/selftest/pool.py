"""Trains rows in processes of their own, one thread each."""

from __future__ import annotations

import base64
import json
import os
import pickle
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from typing import Any

from lightning_audit.selftest.result import Result, crashed
from lightning_audit.selftest.rows import Row

#: Seconds after which a training is given up.
LIMIT = 300.0
_MODULE = "lightning_audit.selftest.worker"
#: Of a worker's log, for a row that says why it broke off.
_SHOWN = 200


class _Worker:
    """A process that trains one row after the other; it ends when this process does."""

    def __init__(self, scratch: str) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the process
        try:
            self.process = self._started(scratch)
        except OSError:
            self._log.close()
            raise

    def _started(self, scratch: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", _MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TMPDIR": scratch},
            # Ctrl-C is for the parent alone, which stops the workers.
            start_new_session=True,
        )

    def train(self, row: Row, limit: float) -> Result:
        """The result of a row; the process may be dead after that."""
        assert self.process.stdin
        assert self.process.stdout
        late = threading.Event()

        def give_up() -> None:
            late.set()
            self.process.kill()

        timer = threading.Timer(limit, give_up)
        timer.start()
        try:
            self.process.stdin.write(base64.b64encode(pickle.dumps(row)) + b"\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except OSError:  # the process is gone
            line = b""
        finally:
            timer.cancel()
        if line.endswith(b"\n"):
            return _result(row, json.loads(line))
        code = self.process.wait()
        reason = f"given up after {limit:g} s" if late.is_set() else self._last_words(code)
        return crashed(row, reason)

    def _last_words(self, code: int) -> str:
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        last = f": {lines[-1][:_SHOWN]}" if lines else ""
        return f"the process ended with exit code {code}{last}"

    @property
    def alive(self) -> bool:
        """Whether it can train another row."""
        return self.process.poll() is None

    def stop(self) -> None:
        """End the process now."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self._log):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:  # what was written to a process that is gone
                    continue


class _Pool:
    """Rows that wait, and the workers that take them."""

    def __init__(
        self, rows: Sequence[Row], told: Callable[[Result], None], limit: float, scratch: str
    ) -> None:
        self.results: list[Result | None] = [None] * len(rows)
        self._waiting: queue.SimpleQueue[tuple[int, Row]] = queue.SimpleQueue()
        for pair in enumerate(rows):
            self._waiting.put(pair)
        self._told, self._limit, self._scratch = told, limit, scratch
        self._lock = threading.Lock()
        self._workers: list[_Worker] = []
        self._stopped = False
        self.failure: BaseException | None = None

    def serve(self) -> None:
        """Take rows until none is left; the body of a thread."""
        worker: _Worker | None = None
        try:
            while not self._stopped:
                index, row = self._waiting.get_nowait()
                if worker is None or not worker.alive:
                    worker = self._started()
                result = worker.train(row, self._limit)
                if not self._stopped:
                    self.results[index] = result
                    with self._lock:
                        self._told(result)
        except queue.Empty:
            pass
        except BaseException as error:
            self.failure = error
            self._stopped = True

    def _started(self) -> _Worker:
        with self._lock:
            if self._stopped:
                raise queue.Empty
            worker = _Worker(self._scratch)
            self._workers.append(worker)
        return worker

    def stop(self) -> None:
        """End all processes."""
        with self._lock:
            self._stopped = True
            workers = list(self._workers)
        for worker in workers:
            worker.stop()


def run_all(
    rows: Sequence[Row],
    jobs: int,
    told: Callable[[Result], None] = lambda result: None,
    limit: float = LIMIT,
) -> tuple[Result, ...]:
    """Train all rows.

    Args:
        rows: what to train.
        jobs: trainings at a time, at least 1.
        told: called with each result as it comes.
        limit: seconds after which a training is given up.

    Returns:
        The results in the order of the rows.

    Raises:
        KeyboardInterrupt: the user stopped it; no process is left.
    """
    # Reports of trainings that are killed lie here, too.
    with tempfile.TemporaryDirectory(
        prefix="lightning-audit-selftest-", ignore_cleanup_errors=True
    ) as scratch:
        pool = _Pool(rows, told, limit, scratch)
        _serve(pool, min(jobs, len(rows)))
    if pool.failure is not None:
        raise pool.failure
    missing = [crashed(row, "was not trained") for row in rows]
    return tuple(r or m for r, m in zip(pool.results, missing, strict=True))


def _serve(pool: _Pool, jobs: int) -> None:
    threads = [threading.Thread(target=pool.serve, daemon=True) for _ in range(jobs)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        pool.stop()


def _result(row: Row, fields: dict[str, Any]) -> Result:
    if fields.get("error"):
        return crashed(row, fields["error"], fields["seconds"])
    return Result(**fields)
