"""Sets all random numbers at the places of a replayed step, and marks how many were drawn.

Two replays are compared number by number: where one draws more than the other, all that is drawn
later is another number, and the difference of the two is noise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from lightning_audit.replay.replay import Replay
from lightning_audit.replay.training_state import TrainingState

#: Seeds apart from one another, so that no two places of a step get the same numbers.
_APART = {"clipping": 1_000_003, "noise": 2_000_003, "cut": 3_000_017}
_SECOND_STEP = 4_000_037


class RandomPlaces:
    """The random numbers of one replay.

    Args:
        state: of the training; it sets and marks all generators.
        seed: of the replay.
        found: takes the marks of the first step.
        others: seeds of single places of the first step, its "start" among them.
    """

    def __init__(
        self,
        state: TrainingState,
        seed: int,
        found: Replay,
        others: Mapping[str, int] | None = None,
    ) -> None:
        self._state, self._seed, self._found, self._others = state, seed, found, others or {}
        self._passed = Counter[str]()
        self._second = False

    def begin(self) -> None:
        """The first step begins."""
        self._state.seed(self._others.get("start", self._seed))
        self._found.marks.append(("start", self._state.mark()))

    def begin_second(self) -> None:
        """The second step begins, with the same numbers whatever the first one drew."""
        self._second = True
        self._seed += _SECOND_STEP
        self._passed.clear()
        self._state.seed(self._seed)

    def passes(self, place: str, *, once: bool = False) -> None:
        """The step comes to a place: mark what was drawn, and set all numbers.

        Args:
            place: "clipping", "noise" or "cut".
            once: whether it counts only the first time, as where records are clipped one by one.
        """
        self._passed[place] += 1
        if once and self._passed[place] > 1:
            return
        if not self._second:
            self._found.marks.append((place, self._state.mark()))
        seed = self._seed if self._second else self._others.get(place, self._seed)
        self._state.seed(seed + self._passed[place] * _APART[place])


def same_numbers(one: Replay, other: Replay) -> bool:
    """Whether two replays drew as many random numbers from place to place.

    Where one of them takes no step, up to where it went.
    """
    if len(one.releases) == len(other.releases):
        return one.marks == other.marks
    shorter = min(len(one.marks), len(other.marks))
    return one.marks[:shorter] == other.marks[:shorter]
