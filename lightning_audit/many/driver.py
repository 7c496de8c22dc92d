"""Runs the trainings of a plan on an engine, and stores what has ended.

A training that raises an exception, is killed or exceeds its limit is started once more, alone,
and then counts as failed. The order of ends changes nothing: looks read the prefix of the plan.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Future, wait
from dataclasses import dataclass, field
from typing import Literal

from lightning_audit.many.engines import NO_GUARD, Engine, EngineError, EngineSettings
from lightning_audit.many.store import Block, Plan, Prefix, Row, TrainingStore, duration
from lightning_audit.many.worlds import Outcome, Work

#: Times that a training is started before it counts as failed.
ATTEMPTS = 2
#: A block may take this many times the median so far, and at least this many seconds.
LIMIT_FACTOR, LEAST_LIMIT = 10.0, 60.0
#: Number of failed trainings, none having succeeded, at which the audit ends.
ALL_FAILED = 10
#: Starts of an engine that ends before it gives a result.
MOST_STARTS = 3
#: Seconds without any running block after which an engine is started again.
STALLED = 300.0
_POLL, _BETWEEN_LINES = 0.5, 10.0
#: A look takes place when the prefix has grown by this factor.
_GROWN = 1.01

OnFailure = Literal["count", "raise"]
Look = Callable[[Prefix], bool]


class TrainingError(RuntimeError):
    """The trainings cannot give a result; the message says why, and what is stored is kept."""


@dataclass
class _Task:
    """A block that runs or waits."""

    block: Block
    attempt: int = 1
    running_since: float | None = None
    over_limit: bool = False


@dataclass
class Driver:
    """One run over the plan of an audit.

    Args:
        plan: which trainings.
        work: what each of them does.
        settings: starts the engine.
        store: gets each training that has ended.
        look: called with the prefix of the plan each time it has grown; returns whether to stop.
        on_failure: "count" for a failed training as a wrong guess, or "raise".
        limit: seconds that a training may take; None for ten times the median, at least 60.
        line: gets a line about the progress every ten seconds.
    """

    plan: Plan
    work: Work
    settings: EngineSettings
    store: TrainingStore
    look: Look = lambda prefix: False
    on_failure: OnFailure = "count"
    limit: float | None = None
    line: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True)
    _open: dict[Future[list[Outcome]], _Task] = field(default_factory=dict)
    _again: deque[_Task] = field(default_factory=deque)
    _seconds: list[float] = field(default_factory=list)
    _held: list[Row] = field(default_factory=list)
    _starts: int = 0
    _broken: BrokenExecutor | None = None

    def run(self) -> None:
        """Run all trainings that are not stored, until the end of the plan or a look stops them.

        Raises:
            TrainingError: each training would fail, or one did and ``on_failure`` is "raise".
            EngineError: the engine breaks three times without a result in between.
            StoreError: nothing more can be stored.
            KeyboardInterrupt: the user interrupted. What has ended is stored in each case.
        """
        self._blocks = self._missing()
        self._begun = self._spoke = self._moved = time.monotonic()
        self._done_now, self._seen = 0, 0
        self._succeeded = any(row.scores is not None for row in self.store.rows())
        first = next(self._blocks, None)
        if first is None or self._looked():
            return
        self._again.append(first)
        engine = self._started()
        try:
            while self._fill(engine):
                done, _ = wait(self._open, _POLL, FIRST_COMPLETED)
                for future in [each for each in self._open if each in done]:
                    self._ended(future, self._open.pop(future))
                if done and self._looked():
                    break
                engine = self._watched(engine)
            self._release_held()
        except KeyboardInterrupt:
            self.line(
                f"privacy audit: interrupted; {self.store.finished:,} of "
                f"{self.plan.trainings:,} trainings are stored in {self.store.folder}, and the "
                "same call continues after them"
            )
            raise
        finally:
            engine.close()

    def _missing(self) -> Iterator[_Task]:
        """Yield the blocks that are not stored; whole ones if trainings of a block run at once."""
        for block in self.plan.blocks():
            missing = tuple(one for one in block if not self.store.has(one.number))
            if missing:
                yield _Task(block if hasattr(self.work.train, "many") else missing)

    def _started(self) -> Engine:
        self._starts += 1
        self._moved = time.monotonic()
        return self.settings.start(self.work)

    def _fill(self, engine: Engine) -> bool:
        """Keep one block more than workers open; return whether any is."""
        while len(self._open) <= engine.workers:
            task = self._again.popleft() if self._again else next(self._blocks, None)
            if task is None:
                break
            task.running_since, task.over_limit = None, False
            try:
                self._open[engine.submit(task.block)] = task
            except (BrokenExecutor, RuntimeError) as error:  # pebble and Python's executors
                failed: Future[list[Outcome]] = Future()
                failed.set_exception(BrokenExecutor(str(error)))
                self._open[failed] = task
                break
        return bool(self._open)

    def _ended(self, future: Future[list[Outcome]], task: _Task) -> None:
        """Store what a block gave, and queue again what it did not give."""
        try:
            outcomes = future.result()
        except BrokenExecutor as error:
            self._broken = error
            self._again.append(task)
            return
        except CancelledError:
            self._lost(task, f"did not end within {self._limit_of(task):.0f} s")
            return
        except Exception as error:  # the process ended, or could not load the training
            self._lost(task, f"{type(error).__name__}: {error}")
            return
        self._starts, self._moved = 0, time.monotonic()
        rows = []
        planned = {training.number: training for training in task.block}
        for outcome in outcomes:
            training = planned[outcome.number]
            if outcome.scores is None and not outcome.fatal and task.attempt < ATTEMPTS:
                self.store.lost([outcome.number], outcome.error)
                self._again.append(_Task((training,), task.attempt + 1))
                continue
            rows.append(Row(training, outcome.scores, outcome.seconds, outcome.error, task.attempt))
            if outcome.scores is not None:
                self._seconds.append(outcome.seconds)
        fatal = next((outcome.error for outcome in outcomes if outcome.fatal), None)
        if fatal is not None:  # before ten failures end the audit with another text
            self._keep([row for row in rows if row.scores is not None])
            raise TrainingError(fatal)
        self._keep(rows)

    def _lost(self, task: _Task, error: str) -> None:
        """Start each training of a lost block alone, or store it as failed."""
        self._moved = time.monotonic()
        if task.attempt < ATTEMPTS:
            self.store.lost([training.number for training in task.block], error)
            self._again.extend(_Task((one,), task.attempt + 1) for one in task.block)
        else:
            self._keep([Row(one, None, None, error, task.attempt) for one in task.block])

    def _keep(self, rows: list[Row]) -> None:
        """Store rows; hold failures back until a training has succeeded."""
        rows = [row for row in rows if not self.store.has(row.training.number)]
        failed = [row for row in rows if row.scores is None]
        if failed and self.on_failure == "raise":
            self.store.add([row for row in rows if row.scores is not None])
            raise TrainingError(f"training {failed[0].training.number} failed: {failed[0].error}")
        self._done_now += len(rows)
        self._succeeded |= len(failed) < len(rows)
        if self._succeeded:
            self.store.add([*self._held, *rows])
            self._held = []
        else:
            self._held += rows
            if len(self._held) >= ALL_FAILED:
                self._refuse_failures()
        self._tell()

    def _release_held(self) -> None:
        if self._held:
            self._refuse_failures()

    def _refuse_failures(self) -> None:
        raise TrainingError(
            f"all of the first {len(self._held)} trainings failed; training "
            f"{self._held[0].training.number}: {self._held[0].error}"
        )

    def _looked(self) -> bool:
        """Look at the prefix if it has grown; return whether to stop."""
        prefix = self.store.prefix()
        ended = len(prefix.failed)
        if ended <= _GROWN * self._seen:
            return False
        self._seen = ended
        return self.look(prefix)

    def _limit_of(self, task: _Task) -> float:
        """Return the seconds that a block may run; infinite before any training has ended."""
        if self.limit is not None:
            return self.limit * len(task.block)
        if not self._seconds:
            return float("inf")
        usual = statistics.median(self._seconds[-1000:]) * len(task.block)
        return max(LEAST_LIMIT, LIMIT_FACTOR * usual)

    def _watched(self, engine: Engine) -> Engine:
        """Cancel blocks over their limit; return the engine, or a new one if it broke."""
        now = time.monotonic()
        for future, task in list(self._open.items()):
            if task.running_since is None and future.running():
                task.running_since = self._moved = now
            since = task.running_since
            if since is not None and now - since > self._limit_of(task) and not task.over_limit:
                task.over_limit = True
                engine.cancel(future)
                if not future.done():  # the engine cannot end it
                    del self._open[future]
                    self._lost(task, f"did not end within {self._limit_of(task):.0f} s")
        idle = all(task.running_since is None for task in self._open.values())
        stalled = bool(self._open) and idle and now - self._moved > STALLED
        if self._broken is None and not stalled:
            return engine
        return self._replaced(engine, self._broken or f"no block began within {STALLED:.0f} s")

    def _replaced(self, engine: Engine, why: object) -> Engine:
        """Close an engine that broke, and start it again with the blocks that it had."""
        engine.close()
        if self._starts >= MOST_STARTS:
            raise EngineError(
                f"the engine ended {MOST_STARTS} times before a training ({why}); {NO_GUARD}, and "
                "see what the workers wrote above."
            )
        self._again.extend(self._open.values())
        self._open.clear()
        self._broken = None
        return self._started()

    def _tell(self) -> None:
        """Give a line about the progress, every ten seconds and at the end."""
        now, ended = time.monotonic(), self.store.finished + len(self._held)
        if now - self._spoke < _BETWEEN_LINES and ended < self.plan.trainings:
            return
        self._spoke = now
        left = (self.plan.trainings - ended) * (now - self._begun) / max(1, self._done_now)
        time_left = f"; about {duration(left)} left" if ended < self.plan.trainings else ""
        self.line(
            f"privacy audit: {ended:,} of {self.plan.trainings:,} trainings have ended{time_left}"
        )
