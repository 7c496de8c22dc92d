"""E-values for noise of the claimed size in every single entry, and their mean."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lightning_audit.stats._arguments import Floats
from lightning_audit.stats.evalues.noise_scale import noise_log_e
from lightning_audit.stats.evalues.sequential import PredictableCentre, log_mean_exp


class EntryBets:
    """E-process for "no entry has less noise than claimed, or repeats its noise".

    Each entry is compared with three predictable centers: zero, the mean of its earlier readings,
    and the latest reading. Each sum of squares has an e-value (`noise_log_e`, valid for any data,
    and for noise of any larger size), and all of them are averaged: testing one of a thousand
    entries costs as much as a thousandth of the significance. The average of e-values is an e-value
    (Vovk and Wang 2021, arXiv:1912.06116).

    Args:
        entries: Number of readings in a step, n.
    """

    def __init__(self, entries: int) -> None:
        self._centre = PredictableCentre((entries,))
        self._latest = np.zeros(entries)
        self._squares = np.zeros((3, entries))
        self.steps = 0

    def update(self, readings: Floats) -> None:
        """Update with a step.

        Args:
            readings: In units of the claimed standard deviation, finite, ``[n]``.
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
        """Smallest root mean square of each entry about one of the centers, ``[n]``."""
        return np.asarray(np.sqrt(self._squares.min(axis=0) / max(self.steps, 1)))


def quiet_entries(entry_log_e: Floats, threshold: float) -> NDArray[np.intp]:
    """Return the positions of the entries whose own e-value suffices to flag their mean.

    Args:
        entry_log_e: Log e-value of each entry, ``[n]``.
        threshold: Log e-value at which the mean of the e-values flags.

    Returns:
        Positions, increasing.
    """
    return np.flatnonzero(entry_log_e >= threshold + np.log(len(entry_log_e)))
