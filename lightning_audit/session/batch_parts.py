"""Which part of a split batch the canaries of a step enter."""

from __future__ import annotations

import numpy as np

#: Probability that they enter the last part; otherwise they enter any of the others.
_LAST = 0.5


class PartChoice:
    """Chooses a part at random, while it is not known how many there are.

    A batch memory manager tells of a part only whether others follow. The last step's number of
    parts is taken for the present one's; where it has fewer, the last one is entered.
    """

    def __init__(self) -> None:
        #: Parts of the last step that had several.
        self.usual = 2
        self._passed = 0
        self._target: int | None = None

    def chosen(self, rng: np.random.Generator) -> bool:
        """Whether the canaries are to enter the present part, which is not the last."""
        if self._target is None:
            self._target = draw_part(self.usual, rng)
        return self._passed == self._target

    def passed(self) -> None:
        """A part is over, and another one follows."""
        self._passed += 1

    def ended(self) -> None:
        """The last part is reached."""
        if self._passed:
            self.usual = self._passed + 1
        self._passed, self._target = 0, None


def draw_part(parts: int, rng: np.random.Generator) -> int:
    """Number of the part to enter, -1 for the last one.

    Args:
        parts: how many there are, at least 2.
        rng: the audit's own generator.
    """
    return -1 if rng.random() < _LAST else int(rng.integers(parts - 1))
