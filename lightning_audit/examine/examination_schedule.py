"""At which steps a training is examined, and how long that may take."""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping, Sequence
from typing import Any

#: What the first examination may take, in times of one step, and later ones of the time since.
FIRST_STEP_TIMES, LATER_SHARE = 80.0, 0.03
#: Part of that after which no replay begins, for it has to end as well.
_STOP = 0.8
#: Crafted gradients of one examination, where that is so: so many fit in.
_TRIALS_IN_TIME = 8
#: A step that never comes.
NEVER = sys.maxsize


class Schedule:
    """Draws the steps that are examined: the first, then at random and rarer.

    Args:
        wanted: "auto" for one examination at once and later ones within a share of the time, or
            how many there are, each of all questions and as long as it needs.
        seed: of the steps.
        questions: names of the questions, of which later examinations ask one at a time in turns.
    """

    def __init__(self, wanted: int | str, seed: int, questions: Sequence[str]) -> None:
        self._auto = wanted == "auto"
        self._left = 1 if self._auto else int(wanted)
        self._random = random.Random(seed)
        self._questions = list(questions)
        self._turn = 0
        #: Number of the next step that is examined, from 1.
        self.due = 1 if self._left else NEVER
        #: Of each question, seconds that it took when it was asked last.
        self._costs: dict[str, float] = {}
        self._since, self._spent = 0.0, 0.0

    @property
    def step_times(self) -> float | None:
        """What an examination of all questions may take, in times of one step."""
        return _STOP * FIRST_STEP_TIMES if self._auto else None

    @property
    def trials(self) -> int | None:
        """Crafted gradients of an examination at the most; None for as many as there are."""
        return _TRIALS_IN_TIME if self._auto else None

    def next_questions(self, now: float) -> list[str]:
        """The questions of an examination that is due; none while there is no time for one.

        Args:
            now: of a clock, in seconds.
        """
        if not self._auto or not self._costs:
            return self._questions
        name = self._questions[self._turn % len(self._questions)]
        allowed = LATER_SHARE * (now - self._since)
        return [name] if self._spent + self._costs[name] <= allowed else []

    def note(self, step: int, names: Sequence[str], seconds: float, now: float) -> None:
        """An examination was made.

        Args:
            step: its number, from 1.
            names: of the questions.
            seconds: that it took.
            now: of the clock, when it was over.
        """
        first = not self._costs
        if not self._auto:
            self._left -= 1
            gap = self._random.randint(1, max(2, 2 * step))
            self.due = step + gap if self._left > 0 else NEVER
            self._costs = dict.fromkeys(names, seconds)
            return
        if first:
            self._since = now
            self._costs = dict.fromkeys(self._questions, seconds / len(names))
        else:
            self._spent += seconds
            self._turn += 1
            self._costs |= dict.fromkeys(names, seconds)
        self.due = step + self._random.randint(10, max(20, step))

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
            self._turn = self._questions.index(name)
            self._costs[name] = 0.0

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds; the clock begins anew."""
        return {
            "due": self.due,
            "left": self._left,
            "turn": self._turn,
            "costs": dict(self._costs),
        }

    def load(self, state: Mapping[str, Any], now: float) -> None:
        """Go on from a checkpoint's state: what was examined first is not examined again.

        Args:
            state: of a schedule that was asked for the same.
            now: of the clock, in seconds.
        """
        self.due, self._left, self._turn = state["due"], state["left"], state["turn"]
        self._costs, self._since = dict(state["costs"]), now
