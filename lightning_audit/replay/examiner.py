"""Examines one step of a training, without changing the training: questions and schedule."""

from __future__ import annotations

import contextlib
import logging
import math
import random
import sys
import threading
import time
import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from lightning_audit.canaries.inputs import rows, taken
from lightning_audit.checks.replay import (
    COUPLING,
    REPLAY_CLIPPING,
    REPLAY_RELEASE,
    REPLAY_SENSITIVITY,
    Answer,
)
from lightning_audit.checks.replay_findings import Finding, Reason
from lightning_audit.checks.replayed_noise import REPLAY_NOISE
from lightning_audit.hooks.boundary import raised_in_audit, undoing
from lightning_audit.replay.before_step import examine_coupling
from lightning_audit.replay.clipping import divides_by_rows, examine_clipping, sensitivity_kind
from lightning_audit.replay.device import clock, no_room
from lightning_audit.replay.fork import CannotSeparate, ForkFailed, Stalled, in_a_fork, may_fork
from lightning_audit.replay.noise import SET, examine_noise
from lightning_audit.replay.order import Order, UserStep
from lightning_audit.replay.other_threads import training_thread
from lightning_audit.replay.question import Asked, Question
from lightning_audit.replay.records import examine_factors, examine_sensitivity
from lightning_audit.replay.release import examine_release
from lightning_audit.replay.releases import Release
from lightning_audit.replay.step_replay import (
    ANOTHER_DREW,
    StepReplay,
    Stopped,
    equal_after,
    equal_releases,
    same_numbers,
)
from lightning_audit.replay.taken_step import StepWatch
from lightning_audit.replay.training_state import (
    CannotKeep,
    TrainingState,
    room_for,
)

# --- The questions of an examination, tested one after the other on a step, and their costs.

#: Smallest number of records in a batch that is examined.
LEAST_RECORDS = 3

#: Reasons why a step is not examined.
_UNKNOWN = (
    "a batch needs tensors of one length with the records first, in tuples, named tuples, lists or "
    "dicts, and lists of strings or numbers; give others in another form by collate_fn"
)
_UNSEEN = "no batch of the step was seen; show your own by audit.batches(...)"
_OTHER_STEP = (
    "with the same batch and random numbers, it does not give the same weights: what the loop "
    "iterates may change the batches, or train on earlier ones"
)
#: Largest part of an update that rounding changes, as where canaries are taken out.
_ROUNDING = 1e-4
_UNSTEADY = "the step is not deterministic: {lacking}"
_RANDOM_NORM = "the clipping norm of a step depends on random numbers"
_OTHER_SEED = 9_115_027
#: Operations that a reason names.
_NAMED = 3


#: The question of all records at once, which the check of single ones answers.
FACTORS = "replay.factors"

#: The questions in their order: the answer to the first shows which records the second needs; the
#: slowest come last.
QUESTIONS = (
    Question(COUPLING.name, 10.0, 3, examine_coupling, Asked.not_alone),
    Question(REPLAY_SENSITIVITY.name, 15.0, 1, examine_sensitivity, Asked.of_views),
    Question(FACTORS, 14.0, 8, examine_factors, Asked.of_views),
    Question(REPLAY_RELEASE.name, 20.0, 6, examine_release),
    Question(REPLAY_CLIPPING.name, 24.0, 4, examine_clipping, Asked.not_alone),
    Question(REPLAY_NOISE.name, 24.0, 16, examine_noise, Asked.not_alone),
)
NAMES = tuple(question.name for question in QUESTIONS)


def ask(asked: Asked, names: Collection[str] = NAMES) -> dict[str, Answer]:
    """Test questions on a step.

    Args:
        asked: the step and the settings.
        names: of the questions, which are those of their checks.

    Returns:
        The answers, by name.
    """
    answers: dict[str, Answer] = {}
    replay = asked.replay
    asked, none = _prepared(asked)
    for question in (one for one in QUESTIONS if one.name in names):
        late = "" if replay.has_left(question.least) else Reason.NONE_LEFT
        answer = replace(none, reason=none.reason or replay.lost or late)
        begun = time.perf_counter()
        if not answer.reason:
            asked, answer = _with_room(question, asked)
        answer = replace(answer, seconds=time.perf_counter() - begun)
        answers[question.name] = answer
        if question.name == COUPLING.name and answer.asked and not answer.findings:
            asked = replace(asked, independent=True)
    factors = answers.pop(FACTORS, None)
    if factors is not None:
        single = answers.get(REPLAY_SENSITIVITY.name, Answer(reason=factors.reason))
        more = 0 if single.reason else factors.asked
        found = (*single.findings, *factors.findings)
        answers[REPLAY_SENSITIVITY.name] = replace(
            single,
            asked=single.asked + (more or len(factors.findings)),
            findings=found,
            reason="" if found else single.reason,
            seconds=single.seconds + factors.seconds,
        )
    _name_clipping(asked, answers)
    noise = answers.get(REPLAY_NOISE.name, Answer())
    if noise.kind == SET and not answers.get(REPLAY_RELEASE.name, Answer()).findings:
        decided = Finding("other noise with other records", math.inf, 0.0, decides="noise")
        answers[REPLAY_RELEASE.name] = Answer(1, (decided,))
    if replay.stopped:  # another thread's random numbers may have affected any answer
        return {name: Answer(reason=replay.stopped) for name in names}
    return answers


def _name_clipping(asked: Asked, answers: dict[str, Answer]) -> None:
    """Classify why a record or a crafted gradient moves a release too far."""
    found, crafted = (answers.get(n) for n in (REPLAY_SENSITIVITY.name, REPLAY_CLIPPING.name))
    named = {n: a for n, a in answers.items() if a in (found, crafted) and a.findings}
    if not named:
        return
    by_hand = len(asked.batches) == 1 and not asked.replay.clips_by_opacus
    counts = by_hand and not asked.replay.claim.fixed_size
    if counts and divides_by_rows(asked):
        answers.update({name: replace(a, kind="divisor") for name, a in named.items()})
        return
    if found is None or not found.findings or (crafted is not None and crafted.findings):
        return
    worst = max(finding.size for finding in found.findings)
    answers[REPLAY_SENSITIVITY.name] = replace(found, kind=sensitivity_kind(asked, worst))


def _with_room(question: Callable[[Asked], Answer], asked: Asked) -> tuple[Asked, Answer]:
    """Return the answer to a question, and on how few records, if memory was full, it was asked."""
    while True:
        answer = _unless_full(question, asked)
        if answer.reason != Reason.NO_ROOM or (fewer := _fewer(asked)) is None:
            return asked, answer
        asked = fewer


def _unless_full(question: Callable[[Asked], Answer], asked: Asked) -> Answer:
    """Return the answer to a question; full memory is one."""
    try:
        return question(asked)
    except Stopped as stopped:
        return Answer(reason=str(stopped))
    except Exception as error:  # the question's own tensors, such as crafted gradients
        if not (full := no_room(error)):
            raise
        return Answer(reason=full)


# --- The records on which a step is replayed.

#: Records of a replayed part, and of a batch from which a part is taken.
_PART, _FROM = 16, 24


def _prepared(asked: Asked) -> tuple[Asked, Answer]:
    """Return what to replay, and the answer to all questions if none can be tested."""
    with contextlib.suppress(ValueError):  # a batch of unknown size, as `_unfit` says
        while not asked.replay.fits(max(map(rows, asked.batches), default=0)):
            if (fewer := _fewer(asked)) is None:
                break
            asked = fewer
    asked, none = _with_room(_unfit, asked)
    if none.reason:
        return asked, none
    try:
        asked = _on_a_part(asked)
    except Stopped as stopped:
        return asked, Answer(reason=str(stopped))
    return asked, _unless_full(_unsteady, asked)


def _on_a_part(asked: Asked) -> Asked:
    """Return a step on few of a batch's records, unless it treats them in another way.

    Poisson sampling may draw any part of a batch, and DP-SGD bounds a record in each. The first and
    the last record are kept, and those of the largest and smallest gradient.
    """
    if not asked.may_shrink or rows(asked.batches[0]) < _FROM:
        return asked
    small = replace(asked, batches=_part(asked, _PART), whole=asked.batches)
    one, other = asked.usual, small.usual
    alike = (
        other.is_finite
        and other.sure
        and len(one.releases) == len(other.releases)
        and [place for place, _ in one.marks] == [place for place, _ in other.marks]
        and (one.stated, one.noise) == (other.stated, other.noise)
    )
    if not alike:
        return asked
    one.after = {}  # it takes memory
    return small


def _fewer(asked: Asked) -> Asked | None:
    """Return a step on half of the records; None if there is none."""
    count = rows(asked.batches[0]) // 2 if asked.may_shrink else 0
    if count < LEAST_RECORDS:
        return None
    return replace(asked, batches=_part(asked, count), whole=())


def _part(asked: Asked, count: int) -> list[Any]:
    """Return a batch of some records of a batch, those of the largest and smallest gradient too."""
    batch, usual = asked.batches[0], asked.replay.known(asked.batches, asked.seed)
    size, chosen = rows(batch), [0, rows(batch) - 1]
    if usual is not None and len(norms := usual.all_norms) == size:
        chosen += [int(norms.argmax()), int(norms.argmin())]
    others = random.Random(asked.seed).sample(range(size), count)
    return [taken(batch, sorted(list(dict.fromkeys([*chosen, *others]))[:count]))]


def _unfit(asked: Asked) -> Answer:
    """Answer why no question can be tested on such a step."""
    try:
        most = max(map(rows, asked.batches), default=0)
    except ValueError:  # whose text may hold sizes
        unseen = all(batch is None for batch in asked.batches)
        return Answer(reason=_UNSEEN if unseen else _UNKNOWN)
    if most < LEAST_RECORDS:
        return Answer(reason=Reason.TOO_SMALL)
    base, reason = asked.usual, ""
    if base.error:
        reason = f"the step cannot be replayed ({base.error}, {base.where})"
    elif not base.releases:
        reason = Reason.NO_STEP
    elif len(base.releases) > 1:
        reason = "the batch makes several steps"
    elif not base.sure:
        reason = Reason.NOT_SHOWN
    elif not base.is_finite:
        reason = "the step's release is not finite"
    return Answer(reason=reason, repeated=bool(base.releases) and not base.error)


def _unsteady(asked: Asked) -> Answer:
    """Answer why replays are not comparable: other bits, or a random clipping norm."""
    replay, batches, seed = asked.replay, asked.batches, asked.seed
    base, again = asked.usual, replay.followed(batches, seed)
    if again.error:  # of a second step, perhaps
        again = replay.run(batches, seed, look=True)
    same = equal_releases(base, again) and same_numbers(base, again) and equal_after(base, again)
    base.after = {}
    if not same:
        lacking = "; ".join(replay.steady.lacking[:_NAMED])
        if lacking:
            return Answer(reason=_UNSTEADY.format(lacking=lacking))
        return Answer(reason=Reason.NOT_REPEATED, repeated=False)
    # A norm that depends on random numbers is no unit of releases.
    steady = base.stated == 1.0 or (base.stated == replay.run(batches, seed + _OTHER_SEED).stated)
    return Answer(reason="" if steady else _RANDOM_NORM)


# --- Examine one step of a training, without changing the training.

_log = logging.getLogger(__name__)
#: Time limit of a replay and of the first one, which a lock of another thread may stop: seconds,
#: plus a multiple of the step's single-threaded seconds.
_PATIENCE, _FIRST, _SLOWER = 60.0, 10.0, 20.0
#: Least number of steps to wait while another thread may train.
_WAIT = 16
#: An examination sets generators that all threads share.
_ONE_AT_A_TIME = threading.Lock()
_ANOTHER = "another examination is under way in this process; train more steps"
_THREAD = "thread {thread!r} of this process computes with torch or NumPy; let it wait, or end it"
#: Reasons for which no step of a training answers a question.
_LASTING = (Reason.NO_ROOM, Reason.NO_ROWS)
_MOVED = (
    "a step was replayed and gave other bits: state that a replay cannot restore may have changed, "
    "and the training with it"
)
_NO_FORK = (
    "steps are replayed in the training's own process, since an accelerator is visible; for a "
    "training on the CPU, set the environment variable CUDA_VISIBLE_DEVICES to nothing: its steps "
    "are then replayed in a fork, which cannot change the training"
)


#: Part of a GPU's free memory for the state before a step, which needs memory for itself.
_BEFORE_STEP = 8


def state_of(user: UserStep, share: int = 2) -> TrainingState:
    """Return the present state of a training.

    Args:
        user: the user's step.
        share: see `room_for`.

    Raises:
        CannotKeep: it does not fit into memory a second time, or cannot be restored.
    """
    forks = may_fork(user.module.parameters())
    for p in () if forks else user.module.parameters():
        if getattr(getattr(p, "grad_sample", None), "_processed", False):
            p.grad_sample = None  # type: ignore[attr-defined]  # clipped, not read again, large
    room = room_for(user.module.parameters(), user.optimizers, share)
    return TrainingState(user.roots(), user.aside, room, forks=forks)


def state_before(user: UserStep) -> TrainingState | None:
    """Return `state_of` a training; None if there is none, which an examination explains."""
    try:
        return state_of(user, _BEFORE_STEP)
    except Exception as error:
        if raised_in_audit(error) and not isinstance(error, CannotKeep) and not no_room(error):
            raise
        return None


@dataclass(frozen=True)
class Examined:
    """Result of an examination.

    Args:
        answers: to the questions, by the names of their checks.
        seconds: duration of the examination.
        steps: number of replayed steps.
        step_times: the examination's CPU time over that of the step.
        late: names of the questions for which no replays were left.
        waits: number of steps until the next try; 0 if this step was examined.
        ends: whether no other step may be replayed.
        logged: names of the values that ``training_step`` logs, each with whether it differed
            between replays, whose records differ.
        notes: for the report.
        one_number: see `StepReplay.one_number`.
        whole: see `UserStep.whole`.
    """

    answers: Mapping[str, Answer]
    seconds: float = 0.0
    steps: int = 0
    step_times: float = 0.0
    late: tuple[str, ...] = ()
    waits: int = 0
    ends: bool = False
    logged: Mapping[str, bool] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    one_number: bool = False
    whole: bool = True

    @property
    def unanswered(self) -> tuple[str, ...]:
        """Names of the questions that were not tested, for any reason."""
        return tuple(name for name, answer in self.answers.items() if answer.reason)

    @property
    def worth_another(self) -> tuple[str, ...]:
        """Names of the questions that were not tested, and that another step may answer."""
        return tuple(name for name in self.unanswered if self.answers[name].reason not in _LASTING)

    @property
    def asked_again(self) -> tuple[str, ...]:
        """Names of the questions that replays from the state after the step may answer."""
        if self.waits or self.ends:
            return ()
        if len(self.unanswered) == len(self.answers):
            return self.unanswered
        return tuple(n for n, answer in self.answers.items() if answer.reason == Reason.SEEDED)


def examine_step(order: Order) -> Examined:
    """Test questions on a step that was taken; failures are answers, not exceptions.

    The step is replayed from the state before it, if that is given and can be restored, so that
    what is done once is done again. It is replayed in a fork of the process if the fork can train,
    else in this process, whose state is then restored. If another thread may train, the step is not
    replayed.

    Args:
        order: the step, and the settings of the examination.
    """
    user, names, begun = order.user, order.names or NAMES, time.perf_counter()
    order = replace(order, names=names)
    if not _ONE_AT_A_TIME.acquire(blocking=False):
        return replace(_none(names, _ANOTHER), waits=_WAIT)
    try:
        if thread := training_thread(forked=may_fork(user.module.parameters())):
            return replace(_none(names, _THREAD.format(thread=thread)), waits=_WAIT)
        found = _examined(order, user.module.parameters())
        if order.before is not None and user.sure and (again := found.asked_again):
            # A generator that the first step makes can be seeded after it, and no earlier.
            every = len(again) == len(found.answers)
            order = replace(order, before=None, names=names if every else again)
            later = _examined(order, user.module.parameters())
            found = replace(
                found,
                answers={**found.answers, **later.answers},
                steps=found.steps + later.steps,
                step_times=found.step_times + later.step_times,
                ends=later.ends,
                whole=found.whole and later.whole,
            )
    finally:
        _ONE_AT_A_TIME.release()
    return replace(found, seconds=time.perf_counter() - begun)


def _examined(order: Order, params: Iterable[torch.Tensor]) -> Examined:
    if not may_fork(params):
        return _here(order)
    slow = _SLOWER * torch.get_num_threads() * order.taken.seconds
    work = partial(_in_the_fork, replace(order, forked=True))
    try:
        return in_a_fork(work, _PATIENCE + slow, _FIRST + slow)
    except CannotSeparate as error:
        _log.info("the step is replayed in the training's own process: %s", error)
        return _here(order)
    except ForkFailed as error:
        ends = not isinstance(error, Stalled)
        return replace(_none(order.names, f"the step was not replayed: {error}"), ends=ends)


def _here(order: Order) -> Examined:
    """Examine the step in the training's own process."""
    found = _in_the_fork(order)
    if any(answer.reason == Reason.NOT_REPEATED for answer in found.answers.values()):
        found = replace(found, notes=(*found.notes, _MOVED), ends=True)
    for note in found.notes:
        _log.warning(note)
    beside = sys.platform == "linux" and torch.accelerator.is_available()
    if beside and all(p.is_cpu for p in order.step.params):
        found = replace(found, notes=(*found.notes, _NO_FORK))
    return found


def _in_the_fork(order: Order, beat: Callable[[], None] = lambda: None) -> Examined:
    """Examine the step, and restore all state."""
    work, user, names = clock(), order.user, order.names
    try:
        after = None if order.before and order.forked else state_of(user)
    except CannotKeep as error:
        return _none(names, str(error))
    except Exception as error:  # raised by a user's object
        if raised_in_audit(error) and not no_room(error):
            raise
        return _none(names, no_room(error) or type(error).__name__)
    with undoing(after.put_back if after is not None else lambda: None):
        state = after
        if order.before is not None:
            state, claim = order.before.restored()
            order = replace(order, claim=claim)
        assert state is not None
        replay = StepReplay(order, state, beat)
        try:
            return _asked(replay, work)
        finally:
            replay.forget()


def _asked(replay: StepReplay, work: float) -> Examined:
    """Ask the questions of an examination, which began at a time of the `clock`."""
    order, user, state = replay.order, replay.order.user, replay.state
    if not user.sure and not _repeats(replay):
        return _none(order.names, _OTHER_STEP, repeated=False)
    answers = ask(Asked(replay, order.taken.batches), order.names)
    logged = {name: len(values) > 1 for name, values in user.logged.items()}
    user.logged.clear()  # a later step may log another learning rate
    notes = [f"the training is not as it was before the examination: {lost}" for lost in state.lost]
    notes += [f"{ANOTHER_DREW}: they were not restored"] * bool(replay.stopped)
    return Examined(
        answers,
        steps=replay.steps,
        step_times=(clock() - work) / max(replay.unit, 1e-9),
        late=tuple(name for name, answer in answers.items() if answer.reason == Reason.NONE_LEFT),
        waits=int(all(answer.reason == Reason.TOO_SMALL for answer in answers.values())),
        ends=bool(replay.stopped),
        logged=logged,
        notes=tuple(notes),
        one_number=replay.one_number,
        whole=user.whole,
    )


def _repeats(replay: StepReplay) -> bool:
    """Return whether the step gives its weights again, and on half of the records others.

    It is run with the random numbers that it drew; else what is run again is another step. A batch
    of few records, or of an unknown kind, counts as repeated: no question is tested on it.
    """
    order, params = replay.order, replay.order.step.params
    batches, ends = order.taken.batches, order.taken.weights
    try:
        if max(map(rows, batches), default=0) < LEAST_RECORDS:
            return True
    except ValueError:
        return True
    if order.before is None or ends is None:
        return False
    now = Release.of(params, params, 1.0)

    def weights_after(batches: Sequence[Any]) -> Release | None:
        watch = StepWatch(order.step, keeps=True)
        with contextlib.ExitStack() as stack, contextlib.suppress(Exception):  # the user's
            stack.callback(replay.state.put_back)
            stack.callback(watch.remove)
            replay.state.numbers.put_back()
            replay.take_first(batches, None, alone=False)
        return watch.taken.weights

    halves = [taken(batch, range(rows(batch) // 2)) for batch in batches]
    again, other = weights_after(batches), weights_after(halves)
    if again is None or other is None:
        return False
    rounding = _ROUNDING * ends.distance(now)
    return ends.distance(again) <= rounding < again.distance(other)


def _none(names: Collection[str], reason: str, *, repeated: bool = True) -> Examined:
    return Examined({name: Answer(reason=reason, repeated=repeated) for name in names})


# --- The schedule of a training's examinations, and their time budget.

#: Replayed steps allowed to each of the first examinations; share of time for the later ones, and
#: once each question was tested this often.
FIRST_REPLAYS, LATER_SHARE, LATEST_SHARE, _ROUNDS = 92, 0.03, 0.01, 2
#: Number of steps on which an unanswered question is retried before it must wait for its time
#: share; the same if replays ran out each time.
_TRIES, _MOST_TRIES = 3, 5
#: Crafted gradients per examination under the time limit.
_TRIALS_IN_TIME = 8
#: The replayed steps of each question. Of two that have replayed as much, the first is next.
COSTS = {one.name: one.cost for one in (*QUESTIONS[1:4], QUESTIONS[0], *QUESTIONS[4:])}
#: A step that never comes.
NEVER = sys.maxsize


class Schedule:
    """Schedule of the examined steps: the first step, then random ones, at growing distances.

    The first examinations do not depend on the machine's speed: the first step gets all questions,
    within a limit on replays, and the next drawn steps get those that are still unanswered.

    Args:
        wanted: "auto" for each question once and later ones within a share of the time, or the
            number of examinations, each with all questions and without a time limit.
        seed: of the drawn steps.
        usual: number of steps that each question replays, see `COSTS`. A later examination has one
            question: the one that has replayed the fewest steps.
    """

    def __init__(self, wanted: int | str, seed: int, usual: Mapping[str, float]) -> None:
        self._auto = wanted == "auto"
        self._left = 1 if self._auto else int(wanted)
        self._random = random.Random(seed)
        self._usual = dict(usual)
        #: How often each question was tested.
        self._asked = dict.fromkeys(usual, 0)
        #: Unanswered questions, which need not wait for time, and how often they were tried.
        self._open, self._tries = list(usual), 0
        #: The next question, regardless of its time; or empty.
        self._pressing = ""
        #: Number of the next step to examine, from 1.
        self.due = 1 if self._left else NEVER
        #: Expected seconds of each question, empty at first; and of one replayed step.
        self._costs: dict[str, float] = {}
        self._step = 0.0
        self._since, self._spent = 0.0, 0.0

    def budget(self, now: float) -> int | None:
        """Return how many steps the next examination may replay; None for no limit.

        Args:
            now: the time, in seconds.
        """
        if not self._auto or self._pressing:
            return None
        if self._open:
            return FIRST_REPLAYS
        if not self._step > 0.0:
            return None
        return max(int(self._allowed(now) / self._step), int(self._usual[self._next]))

    def _allowed(self, now: float) -> float:
        """Return the seconds that the next of the later examinations may take."""
        share = LATER_SHARE if min(self._asked.values()) < _ROUNDS else LATEST_SHARE
        return share * (now - self._since) - self._spent

    @property
    def _next(self) -> str:
        """The question that has replayed the fewest steps."""
        return min(self._asked, key=lambda one: self._asked[one] * self._usual[one])

    @property
    def trials(self) -> int | None:
        """Largest number of crafted gradients of an examination; None for no limit."""
        return _TRIALS_IN_TIME if self._auto else None

    def next_questions(self, now: float) -> list[str]:
        """Return the questions of a due examination; empty while there is no time for one.

        Args:
            now: the time, in seconds.
        """
        if not self._auto:
            return list(self._usual)
        if self._pressing:
            return [self._pressing]
        if self._open:
            return list(self._open)
        return [self._next] if self._costs[self._next] <= self._allowed(now) else []

    def note(
        self,
        step: int,
        names: Sequence[str],
        seconds: float,
        now: float,
        *,
        replayed: int = 0,
        late: Collection[str] = (),
        unanswered: Collection[str] = (),
        costs: Mapping[str, float] = types.MappingProxyType({}),
    ) -> None:
        """Record an examination, and draw the next step.

        Args:
            step: number of the examined step, from 1.
            names: of the questions.
            seconds: duration of the examination.
            now: the time at its end, in seconds.
            replayed: number of replayed steps.
            late: names of the questions for which no replays were left.
            unanswered: names of the questions without an answer, for any reason.
            costs: seconds of single questions.
        """
        if not self._auto:
            self._left -= 1
            gap = self._random.randint(1, max(2, 2 * step))
            self.due = step + gap if self._left > 0 else NEVER
            self._costs = dict.fromkeys(names, seconds)
            return
        rounds = min(self._asked.values())
        for name in names:
            self._asked[name] += name not in late
        if rounds < _ROUNDS <= min(self._asked.values()):  # from here on another share counts
            self._since, self._spent = now, 0.0
        counted = bool(self._open) and not self._pressing
        if not self._costs:
            self._step = seconds / max(replayed, 1)
            self._costs = {name: steps * self._step for name, steps in self._usual.items()}
            # What every examination takes, and the question itself.
            rest = max(seconds - sum(costs.values()), 0.0)
            self._costs |= {name: rest + own for name, own in costs.items()}
            if not replayed:
                self._costs = dict.fromkeys(self._usual, seconds / len(names))
        elif not counted:
            self._spent += seconds
            for name in names:
                short = 2.0 * max(seconds, self._costs[name])
                self._costs[name] = short if name in late else seconds
        if counted:
            self._tries, self._since = self._tries + 1, now
            again = {*late, *(unanswered if self._tries < _TRIES else ())}
            self._open = [n for n in self._open if n in again and self._tries < _MOST_TRIES]
        self._pressing = ""
        least, most = (1, 10) if self._open else (10, max(20, step))
        self.due = step + self._random.randint(least, most)

    def postpone(self, step: int) -> None:
        """Move the examination to the next step: there is nothing to examine, or no time."""
        self.due = step + 1

    def end(self) -> None:
        """End all examinations."""
        self.due = NEVER

    def hasten(self, name: str) -> None:
        """Make a question due at the next step, unless examinations have ended."""
        if self.due == NEVER:
            return
        self.due = 1
        if self._auto and name in self._costs:
            self._pressing = name
