r"""Test whether a step's noise can be predicted from earlier steps.

Notation: a reading is ``x = d + n``, in units of the claimed standard deviation; ``d`` may depend
on the past and on the data, but not on the noise ``n``. The claim is that ``n`` is normal, with a
standard deviation of at least 1, and independent of everything before.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lightning_audit.stats._arguments import Floats
from lightning_audit.stats.evalues.noise_scale import noise_log_e
from lightning_audit.stats.evalues.sequential import SingleStepBet, log_mean_exp

#: Number of earlier steps that a forecast uses.
FORECAST_LAGS = 16
#: Ridge penalty, in squared readings, that shrinks coefficients with few observations.
_RIDGE = 30.0
#: Decay of the coefficients: they adapt to noise that changes within about fifty steps.
_MEMORY = 0.98


class LatestNoise:
    """Readings of the latest steps, and their sum since the last step that was not read."""

    def __init__(self) -> None:
        self._rows: NDArray[np.float64] | None = None
        self._steps = np.full(FORECAST_LAGS, -1)
        self._sum: Floats | None = None

    def before(self, step: int, width: int) -> Floats:
        """Return the predictors of the next step.

        Args:
            step: Number of the next step.
            width: Number of its readings, n.

        Returns:
            A row for each lag, from 1 on, and one for the sum; zero if it was not read,
            ``[FORECAST_LAGS + 1, n]``.
        """
        found = np.zeros((FORECAST_LAGS + 1, width))
        if self._rows is None or self._sum is None:
            return found
        wanted = step - 1 - np.arange(FORECAST_LAGS)
        places = wanted % FORECAST_LAGS
        known = (self._steps[places] == wanted) & (wanted >= 0)
        found[:-1][known] = self._rows[places[known]]
        if known[0]:
            found[-1] = self._sum
        return found

    def add(self, readings: Floats, step: int) -> None:
        """Store the readings of a step, ``[n]``."""
        if self._rows is None or self._sum is None:
            self._rows = np.zeros((FORECAST_LAGS, len(readings)))
            self._sum = np.zeros(len(readings))
        if self._steps[(step - 1) % FORECAST_LAGS] != step - 1:
            self._sum = np.zeros(len(readings))
        self._sum = self._sum + readings
        self._rows[step % FORECAST_LAGS] = readings
        self._steps[step % FORECAST_LAGS] = step


class ForecastBet:
    r"""E-process for "no part of the noise can be predicted", valid for any data.

    For any center c that the past determines, ``x - c`` is at least as large as the noise, and the
    bets of `noise_log_e` on its squares have an expectation of at most one. So a forecast that
    leaves less than the claimed noise is evidence. Noise that is too small without any forecast is
    evidence as well. Noise that is larger than claimed and partly predictable is evidence only if
    less than the claimed noise remains. The centers are

    * the readings of each of the last `FORECAST_LAGS` steps, and their sum, times a coefficient
      fitted to the past;
    * all of them together, by least squares on the past: detects autoregressive noise, and noise
      that cancels its running sum;
    * for the bet on few steps: plus and minus the readings of each lag.

    The e-value is the mean of three: the mean over the fitted forecasts, over all steps; and two
    bets on single steps, of plus and minus, and of least squares. Validity follows from
    `noise_log_e` (own proof, above), as all centers are predictable.

    References:
        As `noise_log_e`; Vovk and Wang, "E-values: calibration, combination and applications",
        Annals of Statistics 49, 2021, arXiv:1912.06116 (averages of e-values).
    """

    def __init__(self) -> None:
        rows = FORECAST_LAGS + 1
        #: Sums of products of past readings, and with the reading that follows them.
        self._products, self._with_next = np.zeros((rows, rows)), np.zeros(rows)
        self._squares = np.zeros(rows + 1)
        self._count = self._plain = 0.0
        self._signed, self._fitted = SingleStepBet(), SingleStepBet()
        self._latest = np.zeros(rows)

    def update(self, past: Floats, readings: Floats) -> None:
        """Update with a step.

        Args:
            past: The result of `LatestNoise.before`, ``[FORECAST_LAGS + 1, n]``.
            readings: Readings of the step, in units of the claimed standard deviation, ``[n]``.
        """
        n = len(readings)
        products, with_next = past @ past.T, past @ readings
        square, own = float(readings @ readings), np.diagonal(products)
        if own[:-1].any():
            alone, together = self._coefficients()
            left = square - 2.0 * alone * with_next + alone**2 * own
            joint = square - 2.0 * together @ with_next + together @ products @ together
            # Rounding can leave a tiny negative sum if the forecast is exact.
            left = np.maximum(np.append(left, joint), 0.0)
            self._count, self._plain = self._count + n, self._plain + square
            self._squares += left
            known = own[:-1] > 0.0
            gaps = square + own[:-1][known] + np.outer((-2.0, 2.0), with_next[:-1][known])
            log_e = noise_log_e(n, np.maximum(np.append(gaps.ravel(), left[-1]), 0.0))
            self._signed.update(log_mean_exp(log_e[:-1]))
            self._fitted.update(log_e[-1])
        self._products = _MEMORY * self._products + products
        self._with_next = _MEMORY * self._with_next + with_next

    def _coefficients(self) -> tuple[Floats, Floats]:
        """Return coefficients of each row alone, and of all, ``[FORECAST_LAGS + 1]`` each."""
        ridged = self._products + _RIDGE * np.eye(len(self._products))
        self._latest = self._with_next / np.diagonal(ridged)
        return self._latest, np.asarray(np.linalg.solve(ridged, self._with_next))

    @property
    def compared(self) -> bool:
        """Whether a step was compared with an earlier one."""
        return self._count > 0.0

    @property
    def log_e(self) -> float:
        """Log e-value so far."""
        steady = log_mean_exp(noise_log_e(self._count, self._squares))
        return float(log_mean_exp(np.array([steady, self._signed.log_e, self._fitted.log_e])))

    @property
    def left(self) -> float:
        """Fraction of the squares that the best forecast leaves; 1 if nothing is predictable."""
        return float(np.min(self._squares) / self._plain) if self._plain > 0.0 else 1.0

    @property
    def ratio(self) -> float:
        """Root mean square of the readings, in claimed standard deviations."""
        return float(np.sqrt(self._plain / self._count)) if self._count > 0.0 else 1.0

    @property
    def best(self) -> tuple[int, float]:
        """The lag that predicts best by itself, 0 for the sum of all, and its coefficient."""
        row = int(np.argmin(self._squares[:-1]))
        return (row + 1) % (FORECAST_LAGS + 1), float(self._latest[row])
