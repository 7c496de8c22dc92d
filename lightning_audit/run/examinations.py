"""The examinations of a run: which steps are replayed, what came of them, what a pass says."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np

from lightning_audit.config.audit_config import AuditConfig
from lightning_audit.examine.clipping import TRIALS
from lightning_audit.examine.examination_schedule import Schedule
from lightning_audit.examine.questions import USUAL
from lightning_audit.examine.step_examiner import UserStep, examine_step
from lightning_audit.examine.successive_steps import SuccessiveSteps
from lightning_audit.replay.step_watch import StepWatch, TakenStep
from lightning_audit.run.audited_optimizers import AuditedOptimizers
from lightning_audit.run.run_facts import RunCourse
from lightning_audit.session.audit_session import AuditSession
from lightning_audit.session.ranks import Ranks

#: Steps after which it is asked again whether there is time for an examination.
_WAIT = 16
#: How often a change of the noise, or a batch without a step, brings the next question forward.
_HASTENED = 3
_OFF = "examinations=0"
_RANKS = "several processes train, and a step is replayed in one only"
_BY_TRAINING = "training_step logs {names}, computed of records without noise: whoever reads them "
_SEES = "sees more than the releases, and no epsilon covers that"


class Examinations:
    """Examines steps of a run between two batches.

    Args:
        config: how many are asked for.
        optimizers: of the run.
        ranks: the processes that train together.
        course: keeps what came of the questions, and takes remarks.
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
        self._user: UserStep | None = None
        #: Collects the batches of the step that is examined next.
        self.watch: StepWatch | None = None
        wanted = 0 if ranks.several else config.examinations
        if not wanted:
            self._log.off = _RANKS if ranks.several else _OFF
        #: Tells which step is the next.
        self.schedule = Schedule(wanted, _seed(config.coin_seed, 0), USUAL)
        self._names: list[str] = []
        #: Epochs between which weights were seen to change, and whether they did within one.
        self._between, self._moves = 0, False
        #: How often a question was hastened by the schedule of steps, and from when on it may be.
        self._hastened = self._hastened_at = 0
        #: Whether what is done to releases was seen not to be followed.
        self._lost = False
        #: Keeps the noise of the steps behind an examination.
        self.behind: SuccessiveSteps | None = None

    def open_to(self, user: UserStep) -> None:
        """Take steps of this training."""
        self._user = user

    # ------------------------------------------------------------------ between the batches

    def start_batch(self, batch: Any, steps: int) -> None:
        """A batch is about to be trained.

        Args:
            batch: as the user's hooks left it.
            steps: that were taken.
        """
        session = self._session()
        if self.watch is None and session is not None:
            self._names = self.schedule.next_questions(time.perf_counter())
            if not self._names:
                self.schedule.postpone(steps + _WAIT)
                return
            self.watch = StepWatch(session.step)
        if self.watch is not None:
            self.watch.start_batch(batch)

    def end_batch(self, steps: int, *, stepped: bool = True) -> None:
        """A batch was trained: examine the step that it ended, if that is due.

        Args:
            steps: that were taken.
            stepped: whether one of them was on this batch.
        """
        self.look_behind(steps)
        taken = self.watch.end_batch() if self.watch is not None and stepped else None
        if taken is None:
            return
        self._unwatch()
        session = self._session()
        if session is None or self._log.found(self._config.significance):
            self.schedule.end()
            return
        self._examine(session, taken, steps)

    def _examine(self, session: AuditSession, taken: TakenStep, steps: int) -> None:
        self.look_behind(steps, now=True)
        user, names = self._user, self._names
        assert user is not None  # before the training starts no step is taken
        config = self._config
        accumulated = 1 if any(taken.skips) else len(taken.batches)
        claim = session.planner.claim(accumulated)
        by_design = config.claim.noise_coefficients if config.claim else None
        if by_design:  # what a step draws is the first part of its noise
            claim = replace(claim, noise_multiplier=abs(by_design[0]) * claim.noise_multiplier)
        with self._optimizers.paused():
            found = examine_step(
                user,
                session.step,
                claim,
                taken,
                seed=_seed(config.coin_seed, steps),
                names=names,
                replaced=config.adjacency == "replace_one",
                trials=self.schedule.trials or TRIALS,
                earlier_trials=self._log.asked("replay.clipping"),
                budget=self.schedule.budget(time.perf_counter()),
            )
        answers = found.answers
        if found.waits:
            self._log.off = next((answer.reason for answer in answers.values()), "")
            self.schedule.postpone(steps + found.waits - 1)
            return
        self._log.off = ""
        self.schedule.note(
            steps,
            names,
            found.seconds,
            time.perf_counter(),
            replayed=found.steps,
            late=found.late,
            unanswered=found.unanswered,
        )
        for note in found.notes:
            self._notes.add(note)
        if found.ends:
            self.schedule.end()
        self._log.take(steps - 1, answers)
        if found.step_times > 0.0:
            self._log.spend(found.seconds, found.step_times)
        if (answer := answers.get("replay.noise")) is not None and answer.kept is not None:
            self._let_go()
            if not by_design:
                self.behind = SuccessiveSteps(session.step, answer.kept)
        if (answer := answers.get("coupling")) is not None:
            self._coupling.take(steps - 1, answer)
        if found.logged:
            shown = ", ".join(f"`{name}`" for name in found.logged[:5])
            self._notes.add(_BY_TRAINING.format(names=shown) + _SEES)

    def look_at_changes(self) -> None:
        """Where weights begin to change behind a step's end, ask of the next one what it uses.

        The same where what is done to releases cannot be followed.
        """
        self._session()
        marks = [s.way.tap.weights.fingerprint for s in self._optimizers.sessions]
        between, within = sum(m.between for m in marks), sum(m.within for m in marks)
        if between > self._between:
            self._log.between_epochs += between - self._between
            self._between = between
        lost = any(not s.recorder.is_followed(self._log.alone) for s in self._optimizers.sessions)
        news = (within > 0 and not self._moves, lost and not self._lost)
        self._moves, self._lost = self._moves or within > 0, self._lost or lost
        if any(news):
            self.schedule.hasten("replay.release")

    def look_at_schedule(self, steps: int) -> None:
        """A batch was left out, or its noise is another one: ask a few of the next what decides it.

        Args:
            steps: that were taken.
        """
        if self._hastened < _HASTENED and steps >= self._hastened_at:
            self._hastened, self._hastened_at = self._hastened + 1, 2 * steps
            self.schedule.hasten("replay.release")

    def _session(self) -> AuditSession | None:
        """The session of the only private optimizer; None where there are several, or none yet."""
        sessions = self._optimizers.sessions
        if len(sessions) > 1:
            self._log.off = self._log.off or "several private optimizers step together"
            self.schedule.end()
        return sessions[0] if len(sessions) == 1 else None

    def look_behind(self, steps: int, *, now: bool = False) -> None:
        """Test the noise that was kept behind an examination, and let go of it.

        Args:
            steps: that were taken.
            now: whether no more is to come.
        """
        behind = self.behind
        if behind is None or not (behind.full or now):
            return
        if (look := behind.look()) is not None:
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
        """Take all hooks off."""
        self._unwatch()
        self._let_go()

    # ------------------------------------------------------------------ going on

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds; when steps were examined depends on the sizes of batches."""
        return self._log.state()

    def load(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint's state: the coming steps are examined like the first ones."""
        self._log.load(state)


def _seed(seed: int, number: int) -> int:
    """A seed for the examination of each step, from 1, and of the schedule, 0."""
    return int(np.random.SeedSequence([seed, number]).generate_state(1)[0])
