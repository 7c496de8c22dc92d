"""Does a canary add more than clipping allows?"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from lightning_audit.checks.family import Evidence
from lightning_audit.layout import FloatArray
from lightning_audit.results import CheckResult
from lightning_audit.stats.coin_bet import CoinBet
from lightning_audit.stats.sequential import PredictableCentre
from lightning_audit.store import RecordHeader

#: One-sided 95 % point of the normal distribution, for the "is the canary alive" limit.
_Z95 = 1.6448536269514722
#: Steps of which the norm of all "in" readings is kept, to tell clipping faults apart.
_KEPT_NORMS = 64


class SensitivityCheck:
    """`sensitivity`: the shift between readings with and without the canary, against 1.

    Args:
        header: what the entries mean.
        significance: of the whole run.
    """

    # Snapshots of the first release tell nothing of their coins, which were fair.
    _coin_probability = 0.5
    # And those of earlier releases bet on all canaries together alone.
    _kinds: tuple[str, ...] | None = None

    def __init__(self, header: RecordHeader, significance: float) -> None:
        self._labels = tuple(f"{i}: {label}" for i, label in enumerate(header.canaries))
        self._k = len(self._labels)
        self._kinds = header.canary_kinds
        self._signal = header.signal
        self._coin_probability = header.coin_probability
        self._bet: CoinBet | None = None
        self._centre = PredictableCentre((self._k,))
        self._sums = np.zeros((2, 3))  # out, in: number, sum and sum of squares of residuals
        self._each = np.zeros((2, 2, self._k))  # out, in: number and sum of residuals, by canary
        # Canaries in, norm of their readings, scale and noise multiplier of the first steps.
        self._norms: list[tuple[float, float, float, float]] = []
        self.evidence = Evidence("sensitivity", significance)

    def update(self, entry: NDArray[np.void]) -> None:
        """Take in one entry whose coins count."""
        coins = np.asarray(entry["coins"], dtype=np.float64)
        readings = np.asarray(entry["readings"])
        if self._bet is None:
            scale = float(entry["noise_multiplier"])
            self._bet = CoinBet(
                (self._k,), self._signal, scale, self._coin_probability, self._kinds
            )
        self._bet.update(coins, readings)
        self.evidence.update(float(self._bet.log_e), int(entry["step"]))
        residual = readings - coins
        centred = residual - self._centre.value
        self._centre.update(residual)
        for group in (0, 1):
            chosen = coins == group
            x = centred[chosen]
            self._sums[group] += (len(x), x.sum(), x @ x)
            self._each[group] += (chosen, np.where(chosen, centred, 0.0))
        if coins.any() and len(self._norms) < _KEPT_NORMS:
            norm = float(np.linalg.norm(readings[coins == 1]))
            scale, sigma = float(entry["scale"]), float(entry["noise_multiplier"])
            self._norms.append((float(coins.sum()), norm, scale, sigma))

    @property
    def shift(self) -> float:
        """Estimated signal of a canary: 1 for a correct implementation, 0 for a dead canary."""
        n = np.maximum(self._sums[:, 0], 1.0)
        means = self._sums[:, 1] / n
        return float(1.0 + means[1] - means[0])

    def shifts(self) -> FloatArray:
        """Estimated signal of each canary, NaN where it was not seen both in and out, ``[k]``."""
        counts, sums = self._each[:, 0], self._each[:, 1]
        with np.errstate(invalid="ignore", divide="ignore"):
            means = sums / counts
        return np.asarray(1.0 + means[1] - means[0])

    @property
    def residual_std(self) -> float:
        """Standard deviation of a reading around its group's mean, in units of the signal."""
        n = np.maximum(self._sums[:, 0], 1.0)
        within = self._sums[:, 2] - self._sums[:, 1] ** 2 / n
        freedom = float(self._sums[:, 0].sum()) - 2.0
        return math.sqrt(max(float(within.sum()), 0.0) / freedom) if freedom > 0 else math.nan

    @property
    def shift_lower(self) -> float:
        """Lower 95 % limit of the shift; -inf before both groups were seen."""
        if self._sums[:, 0].min() < 2:
            return -math.inf
        error = self.residual_std * math.sqrt(float((1.0 / self._sums[:, 0]).sum()))
        return self.shift - _Z95 * error

    @property
    def observations(self) -> int:
        """Readings taken in."""
        return int(self._sums[:, 0].sum())

    @property
    def sum_is_clipped(self) -> bool:
        """Whether the canaries share one norm, as when an average is clipped as a whole.

        Clipped one by one at ``c``, n canaries give readings of norm ``c * sqrt(n)``; clipped
        after averaging, they give norm ``scale`` (the expected batch size), whatever n.
        """
        if not self._norms:
            return False
        number, norm, scale, sigma = np.array(self._norms).T
        error = np.mean(norm / scale) - 1.0
        tolerance = 0.1 + 3.0 * np.mean(sigma / scale) / math.sqrt(len(norm))
        root = np.sqrt(number)
        one_by_one = norm - root * (norm @ root) / (root @ root)
        return bool(
            abs(error) < tolerance and np.sum((norm - norm.mean()) ** 2) <= np.sum(one_by_one**2)
        )

    def results(self) -> tuple[CheckResult, ...]:
        """Result of the check."""
        return (
            self.evidence.result(
                "a canary adds no more than clipping allows",
                f"a canary adds {self.shift:.3g} times what clipping to max_grad_norm allows",
                "clip every per-sample gradient to max_grad_norm before they are summed",
                {
                    "shift": self.shift,
                    "shift_lower": self.shift_lower,
                    "residual_std": self.residual_std,
                    "sum_is_clipped": self.sum_is_clipped,
                    "shift_by_canary": dict(
                        zip(self._labels, self.shifts().round(3).tolist(), strict=True)
                    ),
                },
            ),
        )
