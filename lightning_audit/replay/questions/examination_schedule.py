"""The schedule of a training's examinations, and their time budget."""

from __future__ import annotations

import random
import sys
from collections.abc import Collection, Mapping, Sequence

#: Replayed steps allowed to each of the first examinations; share of time for the later ones.
FIRST_REPLAYS, LATER_SHARE = 80, 0.03
#: Number of steps on which an unanswered question is retried before it must wait for its time
#: share; the same if replays ran out each time.
_TRIES, _MOST_TRIES = 3, 5
#: Crafted gradients per examination under the time limit.
_TRIALS_IN_TIME = 8
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
        usual: number of steps that each question replays. A later examination has one question:
            the first of the least often tested ones.
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
        return LATER_SHARE * (now - self._since) - self._spent

    @property
    def _next(self) -> str:
        """The first of the least often tested questions."""
        return min(self._asked, key=lambda one: self._asked[one])

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
        """
        if not self._auto:
            self._left -= 1
            gap = self._random.randint(1, max(2, 2 * step))
            self.due = step + gap if self._left > 0 else NEVER
            self._costs = dict.fromkeys(names, seconds)
            return
        for name in names:
            self._asked[name] += name not in late
        counted = bool(self._open) and not self._pressing
        if not self._costs:
            self._step = seconds / max(replayed, 1)
            self._costs = {name: steps * self._step for name, steps in self._usual.items()}
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
