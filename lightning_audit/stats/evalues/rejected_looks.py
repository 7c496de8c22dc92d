"""Which values were rejected at which look, for any significance that is asked for later."""

from __future__ import annotations

import numpy as np

from lightning_audit.stats._arguments import Floats

#: Log e-values at which past looks are kept apart: a level in between counts as the next one up,
#: which proves less. 85 kB for a grid of 359 values.
LEVELS: Floats = np.arange(1.0, 30.25, 0.5)


class RejectedLooks:
    """For each value of a grid and each of `LEVELS` the last look at which it stood rejected.

    The e-values must decrease along the grid. What an e-process rejects at a look says something of
    the steps up to that look, and nothing of later ones: a maximum over looks that forgets which
    look it came from would.

    Args:
        values: the grid, increasing, ``[m]``.
    """

    def __init__(self, values: Floats) -> None:
        self._values = np.asarray(values, dtype=np.float64)
        self._last = np.zeros((len(LEVELS), len(self._values)), dtype=np.int32)
        self._log_e = np.zeros(len(self._values))
        self._look = 0

    def update(self, log_e: Floats, look: int) -> None:
        """Take in the log e-values at a look.

        Args:
            log_e: of each value of the grid, ``[m]``.
            look: number of steps that they are about, larger than that of the look before.
        """
        self._last[LEVELS[:, None] <= log_e] = look
        self._log_e, self._look = np.array(log_e), look

    def front(self, significance: float) -> list[tuple[float, int]]:
        """The rejected values that no later look rejects as well or better.

        The latest look counts by its exact e-values, earlier ones as `LEVELS` says.

        Args:
            significance: level at which a value is rejected.

        Returns:
            Pairs of a value and the look that rejects it, from the latest look back, the values
            increasing. Empty if nothing was rejected.
        """
        needed = -np.log(significance)
        last = np.zeros(len(self._values), dtype=np.int64)
        level = int(np.searchsorted(LEVELS, needed))
        if level < len(LEVELS):
            last = self._last[level].astype(np.int64)
        last = np.where(self._log_e >= needed, self._look, last)
        # A larger value that is rejected at a look stands for the smaller ones.
        ends = np.flatnonzero(np.diff(last, append=0))
        return [(float(self._values[i]), int(last[i])) for i in ends if last[i] > 0]
