"""How well the private coins are guessed: error counts for the bounds of the literature."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from lightning_audit.record.store import RecordHeader
from lightning_audit.results.audit_report import OperatingPoint
from lightning_audit.stats.bounds.counts import ConfusionCounts
from lightning_audit.stats.evalues.sequential import PredictableCentre

#: Thresholds, in units of the signal: half way between out and in, and as many claimed standard
#: deviations from there. They are fixed before anything is seen.
_OFFSETS = np.array([-2.0, -1.0, 0.0, 1.0, 2.0])
_MIDDLE = 2


class Guesses:
    """Counts of right and wrong guesses at thresholds that are fixed beforehand.

    A canary is guessed in where its reading, less what its past residuals were on average, exceeds
    the threshold. All canaries of all steps are pooled, by world: the coins need not be fair.

    Args:
        header: what the entries mean.
    """

    def __init__(self, header: RecordHeader) -> None:
        self._centre = PredictableCentre((len(header.canaries),))
        # Threshold x (fn, tp, fp, tn).
        self._counts = np.zeros((len(_OFFSETS), 4), dtype=np.int64)
        self._spread = math.nan
        #: Largest mu that a step claims: the bounds on mu are bounds on it.
        self.least_noise = math.inf

    def update(self, entry: NDArray[np.void]) -> None:
        """Take in one entry whose coins count."""
        coins, readings = np.asarray(entry["coins"]) > 0, np.asarray(entry["readings"])
        sigma = float(entry["noise_multiplier"])
        if math.isnan(self._spread):
            self._spread = sigma
        self.least_noise = min(self.least_noise, sigma)
        guesses = (readings - self._centre.value)[None] > 0.5 + sigma * _OFFSETS[:, None]
        self._counts += np.stack(
            [
                (~guesses & coins).sum(axis=1),
                (guesses & coins).sum(axis=1),
                (guesses & ~coins).sum(axis=1),
                (~guesses & ~coins).sum(axis=1),
            ],
            axis=1,
        )
        self._centre.update(readings - coins)

    @property
    def middle(self) -> ConfusionCounts:
        """Counts at the threshold half way between out and in."""
        fn, tp, fp, tn = self._counts[_MIDDLE]
        return ConfusionCounts(fn, tp, fp, tn)

    @property
    def points(self) -> tuple[OperatingPoint, ...]:
        """Counts at every threshold, in units of the signal at the first step's noise."""
        if math.isnan(self._spread):
            return ()
        thresholds = 0.5 + self._spread * _OFFSETS
        return tuple(
            OperatingPoint(float(threshold), *(int(n) for n in row))
            for threshold, row in zip(thresholds, self._counts, strict=True)
        )
