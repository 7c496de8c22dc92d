"""Runs the trainings of a plan on an engine, and stores what has ended.

A training that raises an exception, exceeds its limit or has no score has failed at once: a second
attempt would be a second release. Only a training that the engine lost, with its process or its
node, is started again, once; lost twice, it has failed. The order of ends changes nothing: looks
read the prefix of the plan.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Future, wait
from dataclasses import dataclass, field
from typing import Literal

from lightning_audit.many.engines import NO_GUARD, Engine, EngineError, EngineSettings
from lightning_audit.many.store import Block, Outcome, Prefix, TrainingStore, duration
from lightning_audit.many.worlds import Work

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
    running_since: float | None = None
    over_limit: bool = False


@dataclass
class Driver:
    """One run over the plan of a store.

    Args:
        work: what each training does.
        settings: starts the engine.
        store: gets each training that has ended.
        look: called with the prefix of the plan each time it has grown; returns whether to stop.
        on_failure: "count" for a failed training as a wrong guess, or "raise" to end once it is
            stored.
        limit: seconds that a training may take; None for ten times the median, at least 60.
        line: gets a line about the progress every ten seconds.
    """

    work: Work
    settings: EngineSettings
    store: TrainingStore
    look: Look = lambda prefix: False
    on_failure: OnFailure = "count"
    limit: float | None = None
    line: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True)
    _open: dict[Future[list[Outcome]], _Task] = field(default_factory=dict)
    _again: deque[_Task] = field(default_factory=deque)
    _seconds: deque[float] = field(default_factory=lambda: deque(maxlen=1000))
    _held: dict[int, Outcome] = field(default_factory=dict)
    _starts: int = 0
    _broken: str = ""

    def run(self) -> None:
        """Run all trainings that are not stored, until the end of the plan or a look stops them.

        Raises:
            TrainingError: each training would fail, or one did and ``on_failure`` is "raise".
            EngineError: the engine breaks three times without a result in between.
            StoreError: nothing more can be stored.
            KeyboardInterrupt: the user interrupted. What has ended is stored in each case.
        """
        self._begun = self._spoke = self._moved = time.monotonic()
        self._before, self._seen = self.store.finished, 0
        self._succeeded = any(row.scores is not None for row in self.store.rows())
        self._blocks = self._missing()
        first = next(self._blocks, None)
        if first is None or self._looked():
            return
        self._again.append(first)
        self._engine = self._started()
        try:
            while self._fill():
                done, _ = wait(self._open, _POLL, FIRST_COMPLETED)
                self._end_all(done)
                if done and self._looked():
                    break
                self._watch()
            if self._held:
                self._refuse_failures()
        except KeyboardInterrupt:
            self.line(
                f"privacy audit: interrupted; {self.store.finished:,} of "
                f"{self.store.plan.trainings:,} trainings are stored in {self.store.folder}, and "
                "the same call continues after them"
            )
            raise
        finally:
            self._engine.close()

    def _missing(self) -> Iterator[_Task]:
        """Yield the blocks that are not stored; whole ones if trainings of a block run at once."""
        for block in self.store.plan.blocks():
            missing = tuple(one for one in block if not self.store.has(one.number))
            if missing:
                yield _Task(block if self.work.at_once else missing)

    def _started(self) -> Engine:
        self._starts += 1
        self._broken = ""
        self._moved = time.monotonic()
        return self.settings.start(self.work)

    def _fill(self) -> bool:
        """Keep one block more than workers open; return whether any is."""
        while len(self._open) <= self._engine.workers:
            task = self._again.popleft() if self._again else next(self._blocks, None)
            if task is None:
                break
            task.running_since, task.over_limit = None, False
            if not (self.work.at_once or hasattr(self._engine, "ended")):
                # Else, if one of them hangs, nothing says which.
                self._again.extendleft(_Task((one,)) for one in task.block[:0:-1])
                task.block = task.block[:1]
            try:
                self._open[self._engine.submit(task.block)] = task
            except (BrokenExecutor, RuntimeError) as error:  # pebble and Python's executors
                self._broken = str(error) or type(error).__name__
                self._again.appendleft(task)
                break
        return bool(self._open) or bool(self._broken)

    def _end_all(self, done: set[Future[list[Outcome]]]) -> None:
        """Store what these blocks gave, also if one of them ends the audit."""
        error = None
        for future in [each for each in self._open if each in done]:
            try:
                self._ended(future, self._open.pop(future))
            except TrainingError as found:
                error = error or found
        if error is not None:
            raise error

    def _ended(self, future: Future[list[Outcome]], task: _Task) -> None:
        """Store what a block gave, or what of it had ended before it was lost."""
        self._moved = time.monotonic()
        error = CancelledError() if future.cancelled() else future.exception()
        if error is None:
            self._starts = 0
            self._keep(future.result())
        elif isinstance(error, CancelledError):
            self._hung(future, task)
        elif isinstance(error, BrokenExecutor):
            self._broken = str(error) or type(error).__name__
            self._lost(future, task, self._broken)
        else:  # the process ended, or could not load the training
            self._lost(future, task, f"{type(error).__name__}: {error}")

    def _hung(self, future: Future[list[Outcome]], task: _Task) -> None:
        self._lost(
            future, task, f"TimeLimit: did not end within {self._limit_of(1):.0f} s", hung=True
        )

    def _lost(
        self, future: Future[list[Outcome]], task: _Task, why: str, *, hung: bool = False
    ) -> None:
        """Start again what a block has not given; what ran has failed if it hung or was lost twice.

        A block that was not seen to begin before its engine broke is not counted as lost.
        """
        outcomes = self._engine.ended(future) if hasattr(self._engine, "ended") else []
        ended = {outcome.number for outcome in outcomes}
        left = tuple(one for one in task.block if one.number not in ended)
        ran = left if self.work.at_once else left[:1]
        if self._broken and task.running_since is None and not outcomes:
            ran = ()
        failed = {one.number for one in ran if hung or self.store.losses[one.number]}
        again = [one for one in ran if one.number not in failed]
        for one in again:
            self.store.lost(one.number, why)
        if self.work.at_once:
            self._again.extend([_Task(task.block)] if again or not ran else [])
        else:
            parts = (*zip(again), left[len(ran) :])
            self._again.extend(_Task(part) for part in parts if part)
        self._keep([*outcomes, *(Outcome(number, None, None, why) for number in sorted(failed))])

    def _keep(self, outcomes: list[Outcome]) -> None:
        """Store what trainings gave; hold failures back until one has succeeded.

        Raises:
            TrainingError: each training would fail, all did so far, or ``on_failure`` is "raise".
        """
        new = {one.number: one for one in outcomes if not self.store.has(one.number)}
        failed = [one for one in new.values() if one.scores is None]
        self._seconds.extend(one.seconds or 0.0 for one in new.values() if one.scores is not None)
        self._succeeded |= len(failed) < len(new)
        self._held.update(new)
        if self._succeeded and self._held:
            self.store.add([*self._held.values()])
            self._held = {}
        for one in failed:
            if one.fatal:
                raise TrainingError(one.error)
            if self.on_failure == "raise":
                raise TrainingError(f"training {one.number} failed: {one.error}")
        if len(self._held) >= ALL_FAILED:
            self._refuse_failures()
        self._tell()

    def _refuse_failures(self) -> None:
        first = next(iter(self._held.values()))
        raise TrainingError(
            f"all of the first {len(self._held)} trainings failed; training {first.number}: "
            f"{first.error}"
        )

    def _looked(self) -> bool:
        """Look at the prefix if it has grown; return whether to stop."""
        if self.store.ready <= _GROWN * self._seen:
            return False
        self._seen = self.store.ready
        return self.look(self.store.prefix())

    def _limit_of(self, trainings: int) -> float:
        """Return the seconds that some trainings may run; infinite before any has ended."""
        if self.limit is not None:
            return self.limit * trainings
        if not self._seconds:
            return float("inf")
        return max(LEAST_LIMIT, LIMIT_FACTOR * statistics.median(self._seconds) * trainings)

    def _watch(self) -> None:
        """Cancel blocks over their limit, and start the engine again if it broke."""
        now = time.monotonic()
        for future, task in list(self._open.items()):
            if task.running_since is None and future.running():
                task.running_since = self._moved = now
            since = task.running_since
            if since is None or task.over_limit or now - since <= self._limit_of(len(task.block)):
                continue
            task.over_limit = True
            self._engine.cancel(future)
            if not future.done():  # the engine cannot end it
                del self._open[future]
                self._hung(future, task)
        idle = all(task.running_since is None for task in self._open.values())
        if self._open and idle and now - self._moved > STALLED:
            self._broken = f"no block began within {STALLED:.0f} s"
        if self._broken:
            self._replace_engine()

    def _replace_engine(self) -> None:
        """Start the engine that broke again, with the blocks that it had."""
        while self._open:
            future, task = self._open.popitem()
            if future.done():
                self._ended(future, task)
            else:
                self._lost(future, task, self._broken)
        self._engine.close()
        if self._starts >= MOST_STARTS:
            raise EngineError(
                f"the engine ended {MOST_STARTS} times before a training ({self._broken}); "
                f"{NO_GUARD}, and see what the workers wrote above."
            )
        self._engine = self._started()

    def _tell(self) -> None:
        """Give a line about the progress, every ten seconds and at the end."""
        now, ended = time.monotonic(), self.store.finished + len(self._held)
        planned = self.store.plan.trainings
        if now - self._spoke < _BETWEEN_LINES and ended < planned:
            return
        self._spoke = now
        if os.environ.get("CI") and ended < planned:
            return
        left = (planned - ended) * (now - self._begun) / max(1, ended - self._before)
        time_left = f"; about {duration(left)} left" if ended < planned else ""
        self.line(f"privacy audit: {ended:,} of {planned:,} trainings have ended{time_left}")
