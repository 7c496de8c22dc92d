"""Trains rows of the selftest in separate processes, with one thread each.

A worker begins with this module alone; its first row loads what trains.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import sys
import tempfile
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from lightning_audit.results.audit_report import AuditReport, CheckResult, Outcome
    from lightning_audit.testing.fault import Fault

# --- A training of the selftest.

Group = Literal["fault", "configuration", "published", "healthy"]


@dataclass(frozen=True)
class Row:
    """A training of the selftest.

    Args:
        group: why it is trained.
        fault: what is trained, and for how many steps; if healthy, without a faulty optimizer and
            without an expected finding.
        configuration: the kind of training, as text.
    """

    group: Group
    fault: Fault
    configuration: str

    @property
    def healthy(self) -> bool:
        """Whether the training is correct, so that nothing may be found."""
        return self.group == "healthy"

    @property
    def seed(self) -> int:
        """The seed of the training: 0 for faults as in the registry, else made from the title."""
        return 0 if self.group == "fault" else zlib.crc32(self.title.encode()) % 10_000

    @property
    def title(self) -> str:
        """Fault and configuration, as text."""
        return f"{'healthy' if self.healthy else self.fault.name}, {self.configuration}"


# --- The result of a training of the selftest.

Status = Literal[
    "found",  # and named as the registry says
    "warned",
    "not accused",
    "named otherwise",
    "not found",
    "accused",
    "crashed",
]
#: The statuses that fail the selftest.
FAILURES: tuple[Status, ...] = ("named otherwise", "not found", "accused", "crashed")


@dataclass(frozen=True)
class Result:
    """A row of the table.

    Args:
        group: why it was trained.
        fault: name of the fault; "healthy" for none.
        configuration: the way to train.
        status: the answer.
        steps: number of steps of the training.
        seconds: duration of the training.
        outcome: of the audit; None if there is no report.
        finding: the check that found the fault, see `finding_of`.
        named: whether the fault was named as the registry says; None if it states no name.
        sentence: the likely fault as text, or the warning.
        flagged_at: number of steps after which the finding was made; None if only at the end.
        error: why the training failed.
    """

    group: Group
    fault: str
    configuration: str
    status: Status
    steps: int
    seconds: float = 0.0
    outcome: Outcome | None = None
    finding: str = ""
    named: bool | None = None
    sentence: str = ""
    flagged_at: int | None = None
    error: str = ""

    @property
    def failed(self) -> bool:
        """Whether this result fails the selftest."""
        return self.status in FAILURES


def result_of(row: Row, status: Status, steps: int, seconds: float, **seen: Any) -> Result:
    """Return the result of a training."""
    return Result(row.group, row.fault.name, row.configuration, status, steps, seconds, **seen)


def crashed(row: Row, error: str, seconds: float = 0.0) -> Result:
    """Return the result of a training without a report."""
    return result_of(row, "crashed", row.fault.steps, seconds, error=error)


def finding_of(row: Row, report: AuditReport) -> CheckResult | None:
    """Return the check that found the fault: that of the verdict's first fault, or one that warns.

    Of several that warn it is the expected one, if that is among them.
    """
    root = report.verdict.root
    wanted = root.finding if root else row.fault.check
    found = [c for status in ("violated", "warned") for c in report.checks if c.status == status]
    return next((check for check in found if check.name == wanted), next(iter(found), None))


def status_of(row: Row, report: AuditReport) -> tuple[Status, bool | None]:
    """Return the status, and whether the fault was named as the registry says."""
    fault, accused = row.fault, report.verdict.outcome == "VIOLATION"
    if row.healthy or (fault.warn_only and accused):
        return ("accused" if accused else "not accused"), None
    if fault.warn_only:
        found = [c for c in report.checks if c.name == fault.check]
        if not fault.remarked:
            found = [c for c in found if c.status == "warned"]
        named = fault.sentence in report.notes or any(_shows(fault, check) for check in found)
        otherwise = bool(found) and not fault.remarked
        return ("warned" if named else "named otherwise" if otherwise else "not found"), named
    root = report.verdict.root
    if not accused or root is None:
        return "not found", False
    named = root.name in (fault.likely, fault.otherwise)
    return ("found" if named else "named otherwise"), named


def _shows(fault: Fault, check: CheckResult) -> bool:
    """Return whether the result of its check shows a fault that loses no privacy."""
    said = fault.sentence in ("", check.message)
    return said and (not fault.shows or bool(check.evidence.get(fault.shows)))


# --- The worker process, which trains one row after the other.


class Broken(NamedTuple):
    """Answer of a training that failed.

    Args:
        error: why it failed.
        seconds: duration until then.
    """

    error: str
    seconds: float


def serve(tasks: Connection, log: str) -> None:
    """Answer tasks until the parent process ends, even during a training.

    Args:
        tasks: receives pickled pairs of a function and a row, and sends the function's results.
        log: file for the trainings' output.
    """
    if hasattr(os, "setsid"):  # only the parent gets Ctrl-C, and then ends this process
        os.setsid()
    with open(log, "wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    threading.Thread(target=_follow, daemon=True).start()
    while True:
        tasks.send(_answer(tasks.recv_bytes()))


def _follow() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _answer(task: bytes) -> Any:
    started = time.perf_counter()
    try:
        train, row = pickle.loads(task)  # loads torch
        return train(row)
    except (Exception, SystemExit) as error:  # reported in the row; the other rows continue
        print(f"selftest: {type(error).__name__}: {error}", file=sys.stderr)
        message = f"{type(error).__name__}: {error}".splitlines()[0]
        return Broken(message, time.perf_counter() - started)


# --- Train rows in separate processes, with one thread each.

#: Time limit of a training, in seconds.
LIMIT = 300.0
#: Characters of a worker's log that a crashed row shows.
_SHOWN = 200

_SPAWN = multiprocessing.get_context("spawn")
Train = Callable[["Row"], Result]


class _Worker:
    """A process that trains one row after the other, and ends when this process ends."""

    def __init__(self, scratch: Path, number: int) -> None:
        from lightning_audit.many.engines import environment

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
    train: Train,
    told: Callable[[Result], None] = lambda result: None,
    limit: float = LIMIT,
) -> tuple[Result, ...]:
    """Train all rows.

    Args:
        rows: to train.
        jobs: number of simultaneous trainings, at least 1.
        train: returns the result of a row; a module-level function, called in another process.
        told: called with each result as soon as it is known.
        limit: time limit of a training, in seconds.

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
