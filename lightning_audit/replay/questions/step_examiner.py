"""Examine one step of a training, without changing the training."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import torch

from lightning_audit.checks.replay.replay_answers import Answer
from lightning_audit.checks.replay.unanswered import NONE_LEFT
from lightning_audit.dpsgd.protocol import DPSGDStep, StepClaim
from lightning_audit.replay.forked import ForkFailed, in_a_fork, may_fork
from lightning_audit.replay.other_threads import training_thread
from lightning_audit.replay.own_reach import CannotSeparate
from lightning_audit.replay.questions.clipping import TRIALS
from lightning_audit.replay.questions.question_list import (
    NOT_REPEATED,
    QUESTIONS,
    TOO_SMALL,
    Asked,
    ask,
)
from lightning_audit.replay.replay import ANOTHER_DREW
from lightning_audit.replay.step_replay import StepReplay
from lightning_audit.replay.step_watch import TakenStep
from lightning_audit.replay.training_state import CannotKeep, TrainingState, room_for
from lightning_audit.taps.boundary import raised_in_audit, undoing

_log = logging.getLogger(__name__)
_FULL_PRECISION = ("32-true", "64-true")
#: Time limit of the replays: seconds, plus a multiple of the step's single-threaded seconds.
_PATIENCE, _SLOWER = 60.0, 20.0
#: Steps to wait while another thread may train.
_WAIT = 16
#: An examination sets generators that all threads share.
_ONE_AT_A_TIME = threading.Lock()
_ANOTHER = "another examination is under way in this process"
_THREAD = "thread {thread!r} of this process may train or draw random numbers at the same time"
_MOVED = (
    "a step was replayed and gave other bits: state that a replay cannot restore may have changed, "
    "and the training with it"
)


class UserStep(Protocol):
    """The user's step, which can be run again for a replay."""

    @property
    def module(self) -> torch.nn.Module:
        """The user's module."""

    @property
    def optimizers(self) -> Sequence[Any]:
        """The optimizers of the training."""

    @property
    def precision(self) -> str:
        """The precision of the training, by Lightning's name."""

    @property
    def logged(self) -> Collection[str]:
        """Names of the values that the step logged when it was replayed."""

    @property
    def aside(self) -> Sequence[object]:
        """Objects whose state is neither saved nor restored."""

    def roots(self) -> list[object]:
        """Return the objects that a step may change."""

    def take(self, batches: Sequence[Any]) -> None:
        """Train on the physical batches of one logical step."""


@dataclass(frozen=True)
class Examined:
    """Result of an examination.

    Args:
        answers: to the questions, by the names of their checks.
        seconds: duration of the examination.
        steps: number of replayed steps.
        step_times: the examination's CPU time over that of the fastest replayed step.
        late: names of the questions for which no replays were left.
        waits: number of steps until the next try; 0 if this step was examined.
        ends: whether no other step may be replayed.
        logged: names of the values that ``training_step`` logs.
        notes: for the report.
    """

    answers: Mapping[str, Answer]
    seconds: float = 0.0
    steps: int = 0
    step_times: float = 0.0
    late: tuple[str, ...] = ()
    waits: int = 0
    ends: bool = False
    logged: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def unanswered(self) -> tuple[str, ...]:
        """Names of the questions that were not tested, for any reason."""
        return tuple(name for name, answer in self.answers.items() if answer.reason)


@dataclass(frozen=True)
class _Order:
    """Arguments of an examination; see `examine_step`."""

    user: UserStep
    step: DPSGDStep
    claim: StepClaim
    taken: TakenStep
    seed: int
    names: Collection[str]
    replaced: bool
    trials: int
    earlier_trials: int
    budget: int | None


def examine_step(
    user: UserStep,
    step: DPSGDStep,
    claim: StepClaim,
    taken: TakenStep,
    *,
    seed: int,
    names: Collection[str] = tuple(QUESTIONS),
    replaced: bool = False,
    trials: int = TRIALS,
    earlier_trials: int = 0,
    budget: int | None = None,
) -> Examined:
    """Test questions on a step that was taken; failures are answers, not exceptions.

    The step is replayed in a fork of the process if the fork can train, else in this process, whose
    state is then restored. If another thread may train, the step is not replayed.

    Args:
        user: runs the step again.
        step: the adapter of the private optimizer.
        claim: what is claimed of the step.
        taken: the step's batches.
        seed: of the replays.
        names: of the questions.
        replaced: whether neighbors differ by a replaced record, not by an added or removed one.
        trials: largest number of crafted gradients.
        earlier_trials: number of crafted gradients in earlier examinations.
        budget: largest number of replayed steps; None for no limit.
    """
    order = _Order(user, step, claim, taken, seed, names, replaced, trials, earlier_trials, budget)
    begun = time.perf_counter()
    if not _ONE_AT_A_TIME.acquire(blocking=False):
        return replace(_none(names, _ANOTHER), waits=_WAIT)
    try:
        if thread := training_thread():
            return replace(_none(names, _THREAD.format(thread=thread)), waits=_WAIT)
        found = _examined(order, user.module.parameters())
    finally:
        _ONE_AT_A_TIME.release()
    return replace(found, seconds=time.perf_counter() - begun)


def _examined(order: _Order, params: Iterable[torch.Tensor]) -> Examined:
    if not may_fork(params):
        return _here(order)
    patience = _PATIENCE + _SLOWER * torch.get_num_threads() * order.taken.seconds
    try:
        return in_a_fork(partial(_in_the_fork, order), patience)
    except CannotSeparate as error:
        _log.info("the step is replayed in the training's own process: %s", error)
        return _here(order)
    except ForkFailed as error:
        return replace(_none(order.names, f"the step was not replayed: {error}"), ends=True)


def _here(order: _Order) -> Examined:
    """Examine the step in the training's own process."""
    found = _in_the_fork(order)
    if any(answer.reason == NOT_REPEATED for answer in found.answers.values()):
        found = replace(found, notes=(*found.notes, _MOVED), ends=True)
    for note in found.notes:
        _log.warning(note)
    return found


def _in_the_fork(order: _Order, beat: Callable[[], None] = lambda: None) -> Examined:
    """Examine the step, and restore all state."""
    work, user, names = time.thread_time(), order.user, order.names
    try:
        state = TrainingState(
            user.roots(), user.aside, room_for(user.module.parameters(), user.optimizers)
        )
    except CannotKeep as error:
        return _none(names, str(error))
    except Exception as error:  # raised by a user's object
        if raised_in_audit(error):
            raise
        return _none(names, type(error).__name__)
    taken = order.taken
    replay = StepReplay(
        user.take, user.module, order.step, order.claim, state, taken.skips, order.budget, beat
    )
    low = user.precision not in _FULL_PRECISION
    asked = Asked(
        *(replay, taken.batches, order.seed, low),
        *(order.replaced, order.trials, order.earlier_trials),
    )
    with undoing(state.put_back):
        answers = ask(asked, names)
    notes = [f"the training is not as it was before the examination: {lost}" for lost in state.lost]
    notes += [f"{ANOTHER_DREW}: they were not restored"] * bool(replay.stopped)
    return Examined(
        answers,
        steps=replay.steps,
        step_times=(time.thread_time() - work) / max(replay.step_seconds, 1e-9),
        late=tuple(name for name, answer in answers.items() if answer.reason == NONE_LEFT),
        waits=int(all(answer.reason == TOO_SMALL for answer in answers.values())),
        ends=bool(replay.stopped),
        logged=tuple(user.logged),
        notes=tuple(notes),
    )


def _none(names: Collection[str], reason: str) -> Examined:
    return Examined({name: Answer(reason=reason) for name in names})
