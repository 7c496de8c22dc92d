"""Is the noise of every entry as large as claimed: an e-value for each, and their mean."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lightning_audit.stats._arguments import Floats
from lightning_audit.stats.evalues.noise_scale import noise_log_e
from lightning_audit.stats.evalues.sequential import PredictableCentre, log_mean_exp


class EntryBets:
    """E-process for "no entry has less noise than claimed, or the same one again and again".

    Each entry is held against three centres that the past gives: zero, the mean of its earlier
    readings, and the latest one. Each sum of squares has an e-value (`noise_log_e`, which holds for
    any data, and for noise of any larger size), and all of them are averaged: one entry among a
    thousand costs as much as a thousandth of the significance.

    Args:
        entries: readings of a step, n.
    """

    def __init__(self, entries: int) -> None:
        self._centre = PredictableCentre((entries,))
        self._latest = np.zeros(entries)
        self._squares = np.zeros((3, entries))
        self.steps = 0

    def update(self, readings: Floats) -> None:
        """Take in a step.

        Args:
            readings: in units of the claimed standard deviation, finite, ``[n]``.
        """
        centres = np.stack([np.zeros_like(self._latest), self._centre.value, self._latest])
        self._squares += (readings - centres) ** 2
        self._centre.update(readings)
        self._latest = np.array(readings, dtype=np.float64)
        self.steps += 1

    @property
    def entry_log_e(self) -> Floats:
        """Log e-value of each entry, ``[n]``."""
        return log_mean_exp(noise_log_e(self.steps, self._squares), axis=0)

    @property
    def ratios(self) -> Floats:
        """Root mean square of each entry about its best centre, at least, ``[n]``."""
        return np.asarray(np.sqrt(self._squares.min(axis=0) / max(self.steps, 1)))


def quiet_entries(entry_log_e: Floats, threshold: float) -> NDArray[np.intp]:
    """Positions of the entries whose own e-value is enough for all of them.

    Args:
        entry_log_e: log e-value of each, ``[n]``.
        threshold: log e-value at which their mean flags.
    """
    return np.flatnonzero(entry_log_e >= threshold + np.log(len(entry_log_e)))
