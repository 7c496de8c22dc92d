"""How long the audit's own code runs within a training, as its hooks tell."""

from __future__ import annotations

import time


class OwnTime:
    """Seconds in the audit's hooks, of all trainings of this process."""

    def __init__(self) -> None:
        #: Of the hooks that are over.
        self.seconds = 0.0
        #: When the hook began that runs now; None where none does.
        self.since: float | None = None

    def now(self) -> float:
        """Seconds by now, those of the hook that runs among them."""
        return self.seconds + (0.0 if self.since is None else time.perf_counter() - self.since)


#: The hooks add to it. Where trainings run in several threads each is told the sum.
OWN_TIME = OwnTime()


class RunTime:
    """How long a training has taken since this was made, and the audit of that."""

    def __init__(self) -> None:
        self._began, self._before = time.perf_counter(), OWN_TIME.now()

    def cost(self) -> dict[str, float]:
        """Seconds of the audit's code ("seconds"), and over those of all else ("share").

        What the canaries' rows cost within the optimizer's clipping and sums is not the audit's
        code, and is not in it; `benchmarks/whole_runs.py` measures it from outside.
        """
        own = OWN_TIME.now() - self._before
        other = time.perf_counter() - self._began - own
        return {"seconds": own, "share": own / other if other > 0.0 else 0.0}
