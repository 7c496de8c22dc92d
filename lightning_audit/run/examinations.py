"""The examinations of a run: which steps are replayed, and what the replays found."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from lightning_audit.checks.check import OF_REPLAYS
from lightning_audit.checks.replay import (
    COUPLING,
    REPLAY_CHECKS,
    REPLAY_CLIPPING,
    REPLAY_RELEASE,
    Answer,
)
from lightning_audit.checks.replay_findings import Reason
from lightning_audit.checks.replayed_noise import REPLAY_NOISE
from lightning_audit.config import AuditConfig
from lightning_audit.dpsgd.protocol import StepClaim
from lightning_audit.replay.examiner import COSTS, Schedule, examine_step, state_before
from lightning_audit.replay.fork import may_fork
from lightning_audit.replay.noise import SuccessiveSteps
from lightning_audit.replay.order import Before, Order, UserStep
from lightning_audit.replay.taken_step import StepWatch, TakenStep
from lightning_audit.replay.training_state import TrainingState
from lightning_audit.results.report_details import ExaminationTold
from lightning_audit.run.facts import RunCourse
from lightning_audit.run.optimizers import AuditedOptimizers
from lightning_audit.session.planner import Ranks
from lightning_audit.session.step import AuditSession

#: Steps until the schedule is checked again for time for an examination.
_WAIT = 16
#: How often a change of the noise, or a batch without a step, makes a question due at once.
_HASTENED = 3


class Examinations:
    """Examiner of a run's steps, between two batches.

    Args:
        config: holds the number of examinations.
        optimizers: of the run.
        ranks: the processes that train together.
        course: keeps the answers and the notes.
    """

    def __init__(
        self,
        config: AuditConfig,
        optimizers: AuditedOptimizers,
        ranks: Ranks,
        course: RunCourse,
    ) -> None:
        self._config, self._optimizers = config, optimizers
        self._log, self._coupling, self._notes = course.examined, course.coupling, course.notes
        self._examinations, self._fence = course.examinations, course.fence
        self._user: UserStep | None = None
        #: Collects the batches of the next step to be examined.
        self.watch: StepWatch | None = None
        #: The batch before, whose constants are those of the next.
        self.earlier: Any = None
        wanted = 0 if ranks.several else config.examinations
        if not wanted:
            self._log.off = Reason.RANKS if ranks.several else Reason.OFF
        #: The training before that step; None if it was not kept.
        self._before: TrainingState | None = None
        #: Chooses the next step.
        self.schedule = Schedule(wanted, _seed(config.coin_seed, 0), COSTS)
        self._names: list[str] = []
        #: How often `look_at_schedule` made a question due at once, and the step of the next such.
        self._hastened = self._hastened_at = 0
        #: Whether post-processing of releases could not be followed.
        self._unfollowed = False
        #: Whether the last examined step was replayed whole; see `UserStep.whole`.
        self.whole = True
        #: Keeps the noise of the steps after an examination.
        self.behind: SuccessiveSteps | None = None

    def open_to(self, user: UserStep) -> None:
        """Examine the steps of this training."""
        self._user = user

    # ------------------------------------------------------------------ between the batches

    def start_batch(self, batch: Any, steps: int) -> None:
        """Watch a batch that is about to be trained, if an examination is due.

        Args:
            batch: as the user's hooks left it.
            steps: number of steps taken so far.
        """
        session = self._session()
        if self.watch is None and session is not None:
            now = time.perf_counter()
            self._names = [] if self._cannot() else self.schedule.next_questions(now)
            if not self._names:
                self.schedule.postpone(steps + _WAIT)
                return
            if self._before is None:
                self.keep_before(steps)
            self.watch = StepWatch(session.step, keeps=not self._user.sure)  # type: ignore[union-attr]
        if self.watch is not None:
            self.watch.start_batch(batch, self.earlier)

    def keep_before(self, steps: int) -> None:
        """Keep the state of the training before a batch that will be examined.

        In the training's own process only of the first one, for a copy takes memory, unless the
        replays must first repeat the step.

        Args:
            steps: number of steps taken so far.
        """
        user = self._user
        if user is None or self.watch is not None or steps + 1 < self.schedule.due:
            return
        self._before = None
        if self.schedule.next_questions(time.perf_counter()) and user.begin():
            first = not (self._log.steps and user.sure) or may_fork(user.module.parameters())
            self._before = state_before(user) if first else None

    def _cannot(self) -> bool:
        """Return whether the user's step cannot be run again, and note why."""
        obstacle = self._user.obstacle() if self._user is not None else ""
        if obstacle and not self._answered:
            self._log.off = obstacle
        return bool(obstacle)

    @property
    def _answered(self) -> bool:
        """Whether a question was answered."""
        return any(self._log.asked(name) for name in REPLAY_CHECKS)

    def end_batch(self, steps: int, *, stepped: bool = True) -> None:
        """Examine the step that a batch ended, if an examination is due.

        Args:
            steps: number of steps taken so far.
            stepped: whether one of them was on this batch.
        """
        self.look_behind(steps)
        taken = self.watch.end_batch() if self.watch is not None and stepped else None
        if taken is None:
            return
        self._unwatch()
        state, self._before = self._before, None
        session = self._session()
        if session is None or self._log.found(self._config.significance):
            self.schedule.end()
            return
        self._examine(session, taken, steps, state)

    def _examine(
        self, session: AuditSession, taken: TakenStep, steps: int, state: TrainingState | None
    ) -> None:
        self.look_behind(steps, now=True)
        user, names = self._user, self._names
        assert user is not None  # no step is taken before the training starts
        config = self._config
        number = len(self._log.steps) + 1
        accumulated = 1 if any(taken.skips) else len(taken.batches)
        by_design = config.claim.noise_coefficients if config.claim else None

        def claimed() -> StepClaim:
            claim = session.planner.claim(accumulated)
            sigma = claim.noise_multiplier
            if by_design:  # a step's own draw is the first term of its noise
                sigma *= abs(by_design[0])
            return replace(claim, noise_multiplier=sigma, fixed_size=config.shuffled)

        # A compiled step would be compiled again, which writes files: a fork may not.
        with self._optimizers.paused(), torch.compiler.set_stance("force_eager"):
            order = Order(
                *(user, session.step, claimed(), taken, _seed(config.coin_seed, steps), names),
                replaced=config.adjacency == "replace_one",
                trials=self.schedule.trials,
                earlier_trials=self._log.asked(REPLAY_CLIPPING.name),
                budget=self.schedule.budget(time.perf_counter()),
                before=None if state is None else Before(state, claimed),
                level=OF_REPLAYS * config.significance / (number * (number + 1)),
            )
            found = examine_step(order)
        answers = found.answers
        if found.one_number:
            answers = dict.fromkeys(answers, Answer(reason=Reason.ONE_NUMBER))
            self._log.one_number = True
        if found.waits:
            self._log.off = next((answer.reason for answer in answers.values()), "")
            # While another thread computes, twice as many steps each time.
            self.schedule.postpone(steps + max(found.waits - 1, steps * (found.waits > 1)))
            return
        self._log.off, self.whole = "", found.whole
        same = {(answer.reason, answer.repeated) for answer in answers.values()}
        if len(same) == 1 and not self._answered and (why := same.pop())[0]:
            answers = dict.fromkeys(answers, Answer(reason=user.doubt(*why)))
        self.schedule.note(
            steps,
            names,
            found.seconds,
            time.perf_counter(),
            replayed=found.steps,
            late=found.late,
            unanswered=found.worth_another,
            costs={name: answer.seconds for name, answer in found.answers.items()},
        )
        for note in found.notes:
            self._notes.add(note)
        if found.ends:
            self.schedule.end()
        before = self._log.noise.found(config.significance)
        self._log.take(steps - 1, answers)
        noisy = self._log.noise.found(config.significance) and not before
        self._tell(steps - 1, answers, found.seconds, [REPLAY_NOISE.name] if noisy else [])
        if found.step_times > 0.0:
            self._log.spend(found.seconds, found.step_times)
        if (answer := answers.get(REPLAY_NOISE.name)) is not None and answer.kept is not None:
            self._let_go()
            if not by_design:
                self.behind = SuccessiveSteps(session.step, answer.kept)
        if (answer := answers.get(COUPLING.name)) is not None:
            self._coupling.take(steps - 1, answer)
        self._fence.add_logged(found.logged)

    def _tell(
        self, step: int, answers: Mapping[str, Answer], seconds: float, findings: Collection[str]
    ) -> None:
        """Keep names for the report: counts of replays and records depend on the data."""
        asked = tuple(name for name, answer in answers.items() if not answer.reason)
        found = tuple(n for n in asked if answers[n].findings or n in findings)
        self._examinations.append(ExaminationTold(step, asked, found, seconds))

    def look_at_processing(self) -> None:
        """Make `replay.release` due if post-processing of releases can no longer be followed."""
        self._session()
        followed = all(s.recorder.is_followed(self._log.alone) for s in self._optimizers.sessions)
        if not followed and not self._unfollowed:
            self.schedule.hasten(REPLAY_RELEASE.name)
        self._unfollowed |= not followed

    def look_at_schedule(self, steps: int, name: str = REPLAY_RELEASE.name) -> None:
        """Make a question due a few times: a batch was left out, or its noise or sum changed.

        Args:
            steps: number of steps taken so far.
            name: of the question.
        """
        if self._hastened < _HASTENED and steps >= self._hastened_at:
            self._hastened, self._hastened_at = self._hastened + 1, 2 * steps
            self.schedule.hasten(name)

    def _session(self) -> AuditSession | None:
        """Return the session of the only private optimizer; None if there are several or none."""
        sessions = self._optimizers.sessions
        if len(sessions) > 1:
            self._log.off = self._log.off or Reason.SEVERAL
            self.schedule.end()
        return sessions[0] if len(sessions) == 1 else None

    def look_behind(self, steps: int, *, now: bool = False) -> None:
        """Test the noise of the steps after an examination, and release it.

        Args:
            steps: number of steps taken so far.
            now: whether to test it even if fewer steps than planned were kept.
        """
        if self.behind is None or not (self.behind.full or now):
            return
        if (look := self.behind.look()) is not None:
            self._log.noise.take(max(steps - 1, 0), look)
        self._let_go()

    def _let_go(self) -> None:
        if self.behind is not None:
            self.behind.remove()
        self.behind = None

    def _unwatch(self) -> None:
        if self.watch is not None:
            self.watch.remove()
        self.watch = None

    def detach(self) -> None:
        """Remove all hooks."""
        self._unwatch()
        self._let_go()
        self._before = None


def _seed(seed: int, number: int) -> int:
    """Return the seed for the examination of step ``number``, or of the schedule (0)."""
    return int(np.random.SeedSequence([seed, number]).generate_state(1)[0])
