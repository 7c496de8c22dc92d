"""Seed all generators at fixed points of a replayed step, and record how many numbers were drawn.

Two replays are comparable only if they draw the same number of random numbers: if one draws more,
all its later draws differ, and the difference of the two is noise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from lightning_audit.replay.replay import Replay
from lightning_audit.replay.training_state import TrainingState

#: Offsets of the seeds, so that no two points of a step get the same random numbers.
_APART = {"clipping": 1_000_003, "noise": 2_000_003, "cut": 3_000_017}
_SECOND_STEP = 4_000_037


class RandomPlaces:
    """The random numbers of one replay.

    Args:
        state: of the training; it seeds all generators and reads their state.
        seed: of the replay.
        found: the replay to which the first step's marks are added.
        others: other seeds for single points of the first step, such as "start".
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
        """Begin the first step."""
        self._state.seed(self._others.get("start", self._seed))
        self._found.marks.append(("start", self._state.mark()))

    def begin_second(self) -> None:
        """Begin the second step; its random numbers do not depend on the first one's draws."""
        self._second = True
        self._seed += _SECOND_STEP
        self._passed.clear()
        self._state.seed(self._seed)

    def passes(self, place: str, *, once: bool = False) -> None:
        """Record the generators' state at a point of the step, and seed them.

        Args:
            place: "clipping", "noise" or "cut".
            once: whether only the first time counts, as if records are clipped one by one.
        """
        self._passed[place] += 1
        if once and self._passed[place] > 1:
            return
        if not self._second:
            self._found.marks.append((place, self._state.mark()))
        seed = self._seed if self._second else self._others.get(place, self._seed)
        self._state.seed(seed + self._passed[place] * _APART[place])


def same_numbers(one: Replay, other: Replay) -> bool:
    """Return whether two replays drew the same number of random numbers between all points.

    If they take different numbers of steps, only the points that both have are compared.
    """
    if len(one.releases) == len(other.releases):
        return one.marks == other.marks
    shorter = min(len(one.marks), len(other.marks))
    return one.marks[:shorter] == other.marks[:shorter]
