"""Examines one step of a training, and leaves the training as it was."""

from __future__ import annotations

import inspect
import logging
import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from lightning_audit.dpsgd.protocol import DPSGDStep, StepClaim
from lightning_audit.examine.clipping import TRIALS
from lightning_audit.examine.questions import QUESTIONS, Asked, ask
from lightning_audit.replay.step_replay import StepReplay
from lightning_audit.replay.step_watch import TakenStep
from lightning_audit.replay.training_state import CannotKeep, TrainingState, room_for
from lightning_audit.run_checks.replay_answers import Answer
from lightning_audit.taps.boundary import raised_in_audit, undoing

_log = logging.getLogger(__name__)
_FULL_PRECISION = ("32-true", "64-true")
#: Packages whose code is not the user's.
_LIBRARIES = ("torch", "opacus", "pytorch_lightning", "lightning", "lightning_fabric")


class UserStep(Protocol):
    """The user's step, to be taken again beside the training."""

    @property
    def module(self) -> torch.nn.Module:
        """The user's module."""

    @property
    def optimizers(self) -> Sequence[Any]:
        """The optimizers of the training."""

    @property
    def precision(self) -> str:
        """In which the training computes, by Lightning's names."""

    @property
    def aside(self) -> Sequence[object]:
        """Objects of which nothing is kept."""

    def roots(self) -> list[object]:
        """What a step may change."""

    def take(self, batches: Sequence[Any]) -> None:
        """Train on the physical batches of one logical step."""


@dataclass(frozen=True)
class Examined:
    """What came of an examination.

    Args:
        answers: to the questions, by the names of their checks.
        seconds: that it took.
        step_times: the same in times of the shortest replayed step, by the processor's time.
        step_seconds: of that step; 0 if none was replayed.
        late: names of the questions for which no time was left.
    """

    answers: Mapping[str, Answer]
    seconds: float
    step_times: float
    step_seconds: float = 0.0
    late: tuple[str, ...] = ()


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
    step_times: float | None = None,
) -> Examined:
    """Ask questions of a step that was taken; nothing that goes wrong is raised.

    Args:
        user: takes the step again.
        step: the adapter of the private optimizer.
        claim: what is claimed of the step.
        taken: its batches.
        seed: of the replays.
        names: of the questions.
        replaced: whether neighbours have a record replaced, and none more or less.
        trials: crafted gradients to put in at the most.
        earlier_trials: those that earlier examinations put in.
        step_times: what it may take, in times of one step; None for as long as it needs.
    """
    begun, work = time.perf_counter(), time.thread_time()
    try:
        state = TrainingState(
            user.roots(), user.aside, room_for(user.module.parameters(), user.optimizers)
        )
    except CannotKeep as error:
        return _none(names, str(error), begun)
    except Exception as error:  # of an object of the user's
        if raised_in_audit(error):
            raise
        _log.exception("the state of the training could not be kept")
        return _none(names, f"{type(error).__name__}: {error}", begun)
    replay = StepReplay(user.take, user.module, step, claim, state, taken.skips, step_times, work)
    low = user.precision not in _FULL_PRECISION
    asked = Asked(replay, taken.batches, seed, low, replaced, trials, earlier_trials)
    with undoing(state.put_back):
        answers = ask(asked, names)
    for lost in state.lost:
        _log.warning("the training is not as it was before the examination: %s", lost)
    times = (time.thread_time() - work) / max(replay.step_seconds, 1e-9)
    late = tuple(name for name, answer in answers.items() if answer.reason == replay.no_time)
    step_seconds = replay.step_seconds if math.isfinite(replay.step_seconds) else 0.0
    return Examined(answers, time.perf_counter() - begun, times, step_seconds, late)


def _none(names: Collection[str], reason: str, begun: float) -> Examined:
    answers = {name: Answer(reason=reason) for name in names}
    return Examined(answers, time.perf_counter() - begun, 0.0)


def source_of_step(optimizer: Any, module: torch.nn.Module) -> str:
    """Where the user's own code of a step is: the optimizer's class, or ``training_step``."""
    kinds = [type(optimizer), *(type(o) for o in _wrapped(optimizer))]
    own = [kind for kind in kinds if kind.__module__.partition(".")[0] not in _LIBRARIES]
    for name, code in (*((kind.__name__, kind) for kind in own), *_training_step(module)):
        try:
            line = inspect.getsourcelines(code)[1]
            return f"{name} in {inspect.getsourcefile(code)}:{line}"
        except (OSError, TypeError):  # typed into an interpreter
            continue
    return ""


def _training_step(module: torch.nn.Module) -> list[tuple[str, Any]]:
    method = getattr(type(module), "training_step", None)
    return [] if method is None else [(f"{type(module).__name__}.training_step", method)]


def _wrapped(optimizer: Any) -> list[Any]:
    found = []
    while (optimizer := getattr(optimizer, "original_optimizer", None)) is not None:
        found.append(optimizer)
    return found
