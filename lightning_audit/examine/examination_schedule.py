"""At which steps a training is examined, and how long that may take."""

from __future__ import annotations

import random
import sys
from collections.abc import Collection, Mapping, Sequence

#: Steps that the first examinations may replay each, and what later ones take of the time since.
FIRST_REPLAYS, LATER_SHARE = 80, 0.03
#: Steps of which a question is asked, where those before gave no answer, before it has to wait for
#: time; the same where replays ran out each time.
_TRIES, _MOST_TRIES = 3, 5
#: Crafted gradients of one examination, where that is so: so many fit in.
_TRIALS_IN_TIME = 8
#: A step that never comes.
NEVER = sys.maxsize


class Schedule:
    """Draws the steps that are examined: the first, then at random and rarer.

    Which questions are asked first does not depend on the machine's speed: all of the first step,
    within a number of replays, and those without an answer of the next steps that are drawn.

    Args:
        wanted: "auto" for each question once and later ones within a share of the time, or how
            many examinations there are, each of all questions and as long as it needs.
        seed: of the steps.
        usual: steps that each question replays. Later examinations ask one, the first
            of those that were asked least.
    """

    def __init__(self, wanted: int | str, seed: int, usual: Mapping[str, float]) -> None:
        self._auto = wanted == "auto"
        self._left = 1 if self._auto else int(wanted)
        self._random = random.Random(seed)
        self._usual = dict(usual)
        #: How often each question was asked.
        self._asked = dict.fromkeys(usual, 0)
        #: Those that have no answer yet and are asked whatever the time, and how often they were.
        self._open, self._tries = list(usual), 0
        #: A question that is asked next, whatever it takes.
        self._pressing = ""
        #: Number of the next step that is examined, from 1.
        self.due = 1 if self._left else NEVER
        #: Of each question, seconds that it will take; of a replayed step. Empty at first.
        self._costs: dict[str, float] = {}
        self._step = 0.0
        self._since, self._spent = 0.0, 0.0

    def budget(self, now: float) -> int | None:
        """Steps that the next examination may replay; None for as many as it needs.

        Args:
            now: of a clock, in seconds.
        """
        if not self._auto or self._pressing:
            return None
        if self._open:
            return FIRST_REPLAYS
        if not self._step > 0.0:
            return None
        return max(int(self._allowed(now) / self._step), int(self._usual[self._next]))

    def _allowed(self, now: float) -> float:
        """Seconds that the next of the later examinations may take."""
        return LATER_SHARE * (now - self._since) - self._spent

    @property
    def _next(self) -> str:
        """The first of the questions that were asked least."""
        return min(self._asked, key=lambda one: self._asked[one])

    @property
    def trials(self) -> int | None:
        """Crafted gradients of an examination at the most; None for as many as there are."""
        return _TRIALS_IN_TIME if self._auto else None

    def next_questions(self, now: float) -> list[str]:
        """The questions of an examination that is due; none while there is no time for one.

        Args:
            now: of a clock, in seconds.
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
        """An examination was made.

        Args:
            step: its number, from 1.
            names: of the questions.
            seconds: that it took.
            now: of the clock, when it was over.
            replayed: steps in it.
            late: names of the questions for which no replays were left.
            unanswered: of those that this step gave no answer to, for whatever reason.
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
        """There is nothing to examine, or no time for it, at a step; the next one may do."""
        self.due = step + 1

    def end(self) -> None:
        """Nothing more is examined."""
        self.due = NEVER

    def hasten(self, name: str) -> None:
        """Ask a question of the next step, unless nothing more is asked."""
        if self.due == NEVER:
            return
        self.due = 1
        if self._auto and name in self._costs:
            self._pressing = name
