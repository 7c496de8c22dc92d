"""The check `sensitivity`: whether a canary adds more than clipping allows."""

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
    title="Influence of one record",
    failed_title="One record counts too much",
    meaning="A canary, a test record that the audit adds, moved the gradient by more than the "
    "clipping norm, so the noise is too small to hide one record.",
    look_at="Check that each per-sample gradient is clipped at `max_grad_norm`, by its norm over "
    "all tensors, before gradients are summed or averaged.",
    topic="Clipping",
    # It needs the most steps of all checks, so it gets the largest weight.
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

#: One-sided 95 % point of the normal distribution, for the limits of the shift.
_Z95 = 1.6448536269514722
#: Number of steps whose norm of all "in" readings is kept, to distinguish clipping faults.
_KEPT_NORMS = 64
#: A canary is unclipped if its reading exceeds the first number, and 1 plus the second number of
#: standard deviations of the noise, in clipping norms; number of such steps that are kept.
_LOUD, _DEVIATIONS, _KEPT_STEPS = 3.0, 8.0, 8
#: Least number of steps, and fraction of canaries, for clipping to be missing since a step.
_SEVERAL, _MOST = 3, 0.6
#: Fraction of the stake that is on all parts together, once batches are split.
_TOGETHER = 0.5


class LoudSteps:
    """Steps with unclipped canaries: readings far above the clipping norm.

    Args:
        count: number of canaries, k.
    """

    def __init__(self, count: int) -> None:
        #: Numbers of the first steps with an unclipped canary.
        self.numbers: list[int] = []
        # Canaries that are in, clipped and unclipped: counts, and sums of their readings.
        self._seen, self._sums = np.zeros((2, count)), np.zeros((2, count))
        self._without = 0
        # Since the first such step: steps with a canary, canaries that are in, unclipped ones.
        self._since = [0, 0, 0]

    def update(self, entry: NDArray[np.void]) -> None:
        """Update with one entry whose coins count."""
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
        """Whether some canaries are unclipped at times, and clipped in most steps."""
        quiet, loud = self._seen[:, self._seen[1] > 0]
        if not len(loud) or self._without:  # such a reading without its canary is from the data
            return False
        most = float(np.mean(2.0 * loud <= quiet)) > 0.5
        return most and 0.5 < float(self._sums[0].sum() / max(self._seen[0].sum(), 1.0)) < 1.5

    @property
    def from_then_on(self) -> bool:
        """Whether most canaries are unclipped since the first such step, for several steps."""
        steps, inside, loud = self._since
        return steps >= _SEVERAL and loud > _MOST * inside

    @property
    def shift(self) -> float:
        """Mean reading of unclipped canaries; 0 if there are none."""
        return float(self._sums[1].sum() / max(self._seen[1].sum(), 1.0))

    @property
    def part(self) -> float:
        """Fraction of the readings of canaries that are in which are unclipped."""
        return float(self._seen[1].sum() / max(self._seen.sum(), 1.0))


class SensitivityCheck:
    """Test of `sensitivity`: the shift between readings with and without the canary is at most 1.

    Args:
        header: layout of the entries.
        significance: of the whole run.
    """

    def __init__(self, header: RecordHeader, significance: float) -> None:
        self._labels = tuple(f"{i}: {label}" for i, label in enumerate(header.canaries))
        self._k = len(self._labels)
        self._kinds = header.canary_kinds
        self._signal = header.signal
        self._coin_probability = header.coin_probability
        self._bet: CoinBet | None = None
        # By part of a split batch, and the bet's log e-value when the first one was seen.
        self.parts: PartShifts | None = None
        self._before_parts = 0.0
        self._all = ShiftEstimate(self._k)
        self._each = np.zeros((2, 2, self._k))  # out, in: number and sum of residuals, by canary
        self.loud = LoudSteps(self._k)
        # Number of canaries in, norm of their readings, scale, noise multiplier; of first steps.
        self._norms: list[tuple[float, float, float, float]] = []
        self.evidence = SENSITIVITY.test(significance)

    def update(self, entry: NDArray[np.void]) -> None:
        """Update with one entry whose coins count."""
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
        """Return the log e-value: the bet keeps a part of its stake, the rest is on the parts."""
        if self.parts is None:
            return float(bet.log_e)
        of_parts = self._before_parts + self.parts.log_e
        return float(
            np.logaddexp(float(bet.log_e) + math.log(_TOGETHER), of_parts + math.log1p(-_TOGETHER))
        )

    @property
    def together(self) -> float:
        """Fraction of the stake that is on all steps alike."""
        return 1.0 if self.parts is None else _TOGETHER

    @property
    def shift(self) -> float:
        """Estimated signal of a canary: 1 for a correct implementation, 0 if it has no effect."""
        return self._all.shift

    @property
    def largest_shift(self) -> float:
        """`shift`, or the largest shift of a part if parts of a batch count differently."""
        parts = self.parts
        if parts is None or not parts.differ:
            return self.shift
        return max(parts.earlier.shift, parts.last.shift)

    @property
    def shift_upper(self) -> float:
        """Upper 95 % limit of the largest shift of any part; inf until all were observed."""
        parts = self.parts
        upper = self.shift + _Z95 * self.shift_error
        if parts is None:
            return upper
        own = (part.shift + _Z95 * part.error for part in (parts.earlier, parts.last))
        return max(upper, *own)

    def shifts(self) -> FloatArray:
        """Return each canary's estimated signal, NaN if it was not both in and out, ``[k]``."""
        counts, sums = self._each[:, 0], self._each[:, 1]
        with np.errstate(invalid="ignore", divide="ignore"):
            means = sums / counts
        return np.asarray(1.0 + means[1] - means[0])

    @property
    def shift_error(self) -> float:
        """Standard error of `shift`; infinite until both groups were observed."""
        return self._all.error

    def shift_errors(self) -> FloatArray:
        """Return standard errors of `shifts`, from the spread of all canaries, ``[k]``."""
        with np.errstate(divide="ignore"):
            return np.asarray(self.residual_std * np.sqrt((1.0 / self._each[:, 0]).sum(axis=0)))

    @property
    def residual_std(self) -> float:
        """Standard deviation of a reading around its group's mean, in units of the signal."""
        return self._all.std

    @property
    def shift_lower(self) -> float:
        """Lower 95 % limit of the shift; -inf until both groups were observed."""
        return self.shift - _Z95 * self.shift_error

    @property
    def observations(self) -> int:
        """Number of readings."""
        return int(self._all.sums[:, 0].sum())

    @property
    def sum_is_clipped(self) -> bool:
        """Whether all canaries together have one norm, as if their average was clipped.

        Clipped one by one at ``c``, n canaries give readings of norm ``c * sqrt(n)``. Clipped after
        averaging, they give norm ``scale`` (the expected batch size) for any n.
        """
        if not self._norms:
            return False
        number, norm, scale, sigma = np.array(self._norms).T
        # A single small canary may be hidden by the data of its batch.
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
        """Return the result of the check."""
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
