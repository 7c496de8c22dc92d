"""Guesses of the private coins: error counts for bounds from the literature."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from lightning_audit.record.store import RecordHeader
from lightning_audit.results.audit_report import OperatingPoint
from lightning_audit.stats.bounds.counts import ConfusionCounts
from lightning_audit.stats.evalues.sequential import PredictableCentre

#: Thresholds: claimed standard deviations from the middle between out and in, in units of the
#: signal. They are fixed before the first reading.
_OFFSETS = np.array([-2.0, -1.0, 0.0, 1.0, 2.0])
_MIDDLE = 2


class Guesses:
    """Counts of right and wrong guesses of the coins, at thresholds fixed in advance.

    A canary is guessed to be in if its reading, minus the mean of its past residuals, exceeds the
    threshold. All canaries of all steps are pooled, in and out separately: coins need not be fair.

    Args:
        header: layout of the entries.
    """

    def __init__(self, header: RecordHeader) -> None:
        self._centre = PredictableCentre((len(header.canaries),))
        # Threshold x (fn, tp, fp, tn).
        self._counts = np.zeros((len(_OFFSETS), 4), dtype=np.int64)
        self._spread = math.nan
        #: Smallest noise multiplier of a step, of the largest claimed mu, which the bounds concern.
        self.least_noise = math.inf

    def update(self, entry: NDArray[np.void]) -> None:
        """Update with one entry whose coins count."""
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
        """Counts at the threshold in the middle between out and in."""
        fn, tp, fp, tn = self._counts[_MIDDLE]
        return ConfusionCounts(fn, tp, fp, tn)

    @property
    def points(self) -> tuple[OperatingPoint, ...]:
        """Counts at every threshold, in units of the signal at the first step's noise."""
        if math.isnan(self._spread):
            return ()
        thresholds = 0.5 + self._spread * _OFFSETS
        return tuple(
            OperatingPoint(float(threshold), fn, tp, fp, tn)
            for threshold, (fn, tp, fp, tn) in zip(thresholds, self._counts.tolist(), strict=True)
        )
