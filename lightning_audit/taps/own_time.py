"""Measures the time that the audit's own code takes within a training."""

from __future__ import annotations

import time


class OwnTime:
    """Seconds spent in the audit's hooks, over all trainings of this process."""

    def __init__(self) -> None:
        #: Seconds in hooks that have returned.
        self.seconds = 0.0
        #: Start time of the running hook; None if none runs.
        self.since: float | None = None

    def now(self) -> float:
        """Return the seconds so far, including the running hook."""
        return self.seconds + (0.0 if self.since is None else time.perf_counter() - self.since)


#: The hooks add to it. Trainings in several threads share it, so that each reports the sum.
OWN_TIME = OwnTime()


class RunTime:
    """Run time of a training since this object was created, and the audit's part of it."""

    def __init__(self) -> None:
        self._began, self._before = time.perf_counter(), OWN_TIME.now()

    def cost(self) -> dict[str, float]:
        """Return the audit's time ("seconds"), and its ratio to all other time ("share").

        The cost of the canaries' rows in the optimizer's clipping and sums is not included;
        `benchmarks/whole_runs.py` measures it from outside.
        """
        own = OWN_TIME.now() - self._before
        other = time.perf_counter() - self._began - own
        return {"seconds": own, "share": own / other if other > 0.0 else 0.0}
