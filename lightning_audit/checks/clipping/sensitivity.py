"""Does a canary add more than clipping allows?"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from lightning_audit.checks.base.check import Check
from lightning_audit.checks.clipping.part_shifts import PartShifts, ShiftEstimate
from lightning_audit.layout import FloatArray
from lightning_audit.record.store import EARLIER, RecordHeader
from lightning_audit.results.audit_report import CheckResult
from lightning_audit.stats.evalues.coin_bet import CoinBet

SENSITIVITY = Check(
    "sensitivity",
    "one record adds more than clipping allows",
    # It needs the most steps of all: what is left over helps it most.
    weight=130,
    group="clipping",
    needs="no finite gradient was read of a step with canaries",
    each=True,
    always=True,
    must_run=True,
    doubtful=True,
    size_of="signal",
    reads="canaries",
    init=lambda *about: SensitivityCheck(*about),
)

CHECKS = (SENSITIVITY,)

#: One-sided 95 % point of the normal distribution, for the "is the canary alive" limit.
_Z95 = 1.6448536269514722
#: Steps of which the norm of all "in" readings is kept, to tell clipping faults apart.
_KEPT_NORMS = 64
#: A canary is loud if it passes with more than this, and than so many standard deviations of the
#: noise, in clipping norms; of how many steps the numbers are kept.
_LOUD, _DEVIATIONS, _KEPT_STEPS = 3.0, 8.0, 8
#: Steps that are several, and part of canaries that is most of them: some are small.
_SEVERAL, _MOST = 3, 0.6
#: Part of the stake that is on all parts together, once batches are split.
_TOGETHER = 0.5


class LoudSteps:
    """Steps in which canaries pass with much more than the clipping norm.

    Args:
        count: number of canaries, k.
    """

    def __init__(self, count: int) -> None:
        #: Numbers of the first loud steps.
        self.numbers: list[int] = []
        # Of canaries that are in, by whether they were loud: how often, and their readings' sum.
        self._seen, self._sums = np.zeros((2, count)), np.zeros((2, count))
        self._without = 0
        # Since the first loud step: steps with a canary, canaries that are in, and loud ones.
        self._since = [0, 0, 0]

    def update(self, entry: NDArray[np.void]) -> None:
        """Take in one entry whose coins count."""
        inside, readings = np.asarray(entry["coins"]) == 1, np.asarray(entry["readings"])
        loud = readings > max(_LOUD, 1.0 + _DEVIATIONS * float(entry["noise_multiplier"]))
        for kind, chosen in enumerate((inside & ~loud, inside & loud)):
            self._seen[kind] += chosen
            self._sums[kind] += np.where(chosen, readings, 0.0)
        self._without += int((loud & ~inside).any())
        found = bool((inside & loud).any())
        if found and len(self.numbers) < _KEPT_STEPS:
            self.numbers.append(int(entry["step"]))
        if self.numbers and inside.any():
            counted = (1, int(inside.sum()), int((inside & loud).sum()))
            self._since = [a + b for a, b in zip(self._since, counted, strict=True)]

    @property
    def rare(self) -> bool:
        """Whether canaries are loud now and then, each of which is clipped in most steps."""
        quiet, loud = self._seen[:, self._seen[1] > 0]
        if not len(loud) or self._without:  # without a canary, the data are so loud
            return False
        most = float(np.mean(2.0 * loud <= quiet)) > 0.5
        return most and 0.5 < float(self._sums[0].sum() / max(self._seen[0].sum(), 1.0)) < 1.5

    @property
    def from_then_on(self) -> bool:
        """Whether most canaries are loud since the first loud step, of several steps."""
        steps, inside, loud = self._since
        return steps >= _SEVERAL and loud > _MOST * inside

    @property
    def shift(self) -> float:
        """Mean of what canaries add where they are loud; 0 where they never are."""
        return float(self._sums[1].sum() / max(self._seen[1].sum(), 1.0))

    @property
    def part(self) -> float:
        """Part of the canaries' entries in which they are loud."""
        return float(self._seen[1].sum() / max(self._seen.sum(), 1.0))


class SensitivityCheck:
    """`sensitivity`: the shift between readings with and without the canary, against 1.

    Args:
        header: what the entries mean.
        significance: of the whole run.
    """

    def __init__(self, header: RecordHeader, significance: float) -> None:
        self._labels = tuple(f"{i}: {label}" for i, label in enumerate(header.canaries))
        self._k = len(self._labels)
        self._kinds = header.canary_kinds
        self._signal = header.signal
        self._coin_probability = header.coin_probability
        self._bet: CoinBet | None = None
        # By part of a split batch, and what the bet had come to when the first one was seen.
        self.parts: PartShifts | None = None
        self._before_parts = 0.0
        self._all = ShiftEstimate(self._k)
        self._each = np.zeros((2, 2, self._k))  # out, in: number and sum of residuals, by canary
        self.loud = LoudSteps(self._k)
        # Canaries in, norm of their readings, scale and noise multiplier of the first steps.
        self._norms: list[tuple[float, float, float, float]] = []
        self.evidence = SENSITIVITY.test(significance)

    def update(self, entry: NDArray[np.void]) -> None:
        """Take in one entry whose coins count."""
        coins = np.asarray(entry["coins"], dtype=np.float64)
        readings = np.asarray(entry["readings"])
        if self._bet is None:
            self._bet = self._new_bet(entry)
        earlier = bool(entry["canaries"] == EARLIER)
        if earlier and self.parts is None:
            self._before_parts = float(self._bet.log_e)
            self.parts = PartShifts(self._new_bet(entry), self._new_bet(entry), self._k)
        self._bet.update(coins, readings)
        if self.parts is not None:
            self.parts.update(coins, readings, earlier=earlier)
        self.evidence.update(self._log_e(self._bet), int(entry["step"]))
        centred = self._all.update(coins, readings)
        for group in (0, 1):
            chosen = coins == group
            self._each[group] += (chosen, np.where(chosen, centred, 0.0))
        self.loud.update(entry)
        if coins.any() and len(self._norms) < _KEPT_NORMS:
            norm = float(np.linalg.norm(readings[coins == 1]))
            scale, sigma = float(entry["scale"]), float(entry["noise_multiplier"])
            self._norms.append((float(coins.sum()), norm, scale, sigma))

    def _new_bet(self, entry: NDArray[np.void]) -> CoinBet:
        scale = float(entry["noise_multiplier"])
        return CoinBet((self._k,), self._signal, scale, self._coin_probability, self._kinds)

    def _log_e(self, bet: CoinBet) -> float:
        """Log e-value now: the bet goes on with a part of its stake, the rest is on the parts."""
        if self.parts is None:
            return float(bet.log_e)
        of_parts = self._before_parts + self.parts.log_e
        return float(
            np.logaddexp(float(bet.log_e) + math.log(_TOGETHER), of_parts + math.log1p(-_TOGETHER))
        )

    @property
    def together(self) -> float:
        """Part of the stake that is on all steps alike."""
        return 1.0 if self.parts is None else _TOGETHER

    @property
    def shift(self) -> float:
        """Estimated signal of a canary: 1 for a correct implementation, 0 for a dead canary."""
        return self._all.shift

    @property
    def largest_shift(self) -> float:
        """The same, where parts of a batch count differently that of those which count most."""
        parts = self.parts
        if parts is None or not parts.differ:
            return self.shift
        return max(parts.earlier.shift, parts.last.shift)

    @property
    def shift_upper(self) -> float:
        """Upper 95 % limit of the largest shift that any part has; inf before all were seen."""
        parts = self.parts
        upper = self.shift + _Z95 * self.shift_error
        if parts is None:
            return upper
        own = (part.shift + _Z95 * part.error for part in (parts.earlier, parts.last))
        return max(upper, *own)

    def shifts(self) -> FloatArray:
        """Estimated signal of each canary, NaN where it was not seen both in and out, ``[k]``."""
        counts, sums = self._each[:, 0], self._each[:, 1]
        with np.errstate(invalid="ignore", divide="ignore"):
            means = sums / counts
        return np.asarray(1.0 + means[1] - means[0])

    @property
    def shift_error(self) -> float:
        """Standard error of `shift`; infinite before both groups were seen."""
        return self._all.error

    def shift_errors(self) -> FloatArray:
        """Standard errors of `shifts`, from the spread that all canaries have, ``[k]``."""
        with np.errstate(divide="ignore"):
            return np.asarray(self.residual_std * np.sqrt((1.0 / self._each[:, 0]).sum(axis=0)))

    @property
    def residual_std(self) -> float:
        """Standard deviation of a reading around its group's mean, in units of the signal."""
        return self._all.std

    @property
    def shift_lower(self) -> float:
        """Lower 95 % limit of the shift; -inf before both groups were seen."""
        return self.shift - _Z95 * self.shift_error

    @property
    def observations(self) -> int:
        """Readings taken in."""
        return int(self._all.sums[:, 0].sum())

    @property
    def sum_is_clipped(self) -> bool:
        """Whether the canaries share one norm, as when an average is clipped as a whole.

        Clipped one by one at ``c``, n canaries give readings of norm ``c * sqrt(n)``; clipped
        after averaging, they give norm ``scale`` (the expected batch size), whatever n.
        """
        if not self._norms:
            return False
        number, norm, scale, sigma = np.array(self._norms).T
        # The shorter canary of a step, in alone, may be hidden by the data of its batch.
        kept = (number > 1) | (norm > 0.5 * scale)
        if not kept.any():
            return False
        number, norm, scale, sigma = (x[kept] for x in (number, norm, scale, sigma))
        error = np.mean(norm / scale) - 1.0
        tolerance = 0.1 + 3.0 * np.mean(sigma / scale) / math.sqrt(len(norm))
        root = np.sqrt(number)
        one_by_one = norm - root * (norm @ root) / (root @ root)
        return bool(
            abs(error) < tolerance and np.sum((norm - norm.mean()) ** 2) <= np.sum(one_by_one**2)
        )

    def results(self) -> tuple[CheckResult, ...]:
        """Result of the check."""
        by_part = {}
        if self.parts is not None:
            shifts = {"earlier": self.parts.earlier.shift, "last": self.parts.last.shift}
            by_part = {"shift_by_part": {part: round(x, 3) for part, x in shifts.items()}}
        return (
            SENSITIVITY.result(
                self.evidence,
                "a canary adds no more than clipping allows",
                f"a canary adds {self.largest_shift:.3g} times what clipping to max_grad_norm "
                "allows",
                "clip every per-sample gradient to max_grad_norm before they are summed",
                {
                    "shift": self.shift,
                    "shift_lower": self.shift_lower,
                    **by_part,
                    "residual_std": self.residual_std,
                    "sum_is_clipped": self.sum_is_clipped,
                    "shift_by_canary": dict(
                        zip(self._labels, self.shifts().round(3).tolist(), strict=True)
                    ),
                },
            ),
        )
