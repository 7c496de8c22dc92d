"""What the noise itself shows, where it can be told from the data, or beside them where it cannot.

All of it is computed from un-noised sums, noise and batch sizes, which stay in memory: `replay`
cannot give these checks again, and they restart when a training is resumed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from lightning_audit.checks.noise.noise_at_entries import SingleEntries, WholeSizes
from lightning_audit.checks.noise.noise_excess import NOISE_EXCESS
from lightning_audit.checks.noise.noise_mean import NoiseMean
from lightning_audit.checks.noise.noise_seen import NoiseSeen, WholeTensors, noise_of
from lightning_audit.checks.noise.normal_noise import NOISE_SHAPE
from lightning_audit.checks.noise.stated_divisor import BATCH_NORMALISED
from lightning_audit.checks.randomness.noise_forecast import NoiseForecast
from lightning_audit.checks.randomness.noise_recurrence import RECURRENCE, following_result
from lightning_audit.checks.randomness.noise_restart import NoiseRestart
from lightning_audit.checks.randomness.shared_entries import AlikeEntries
from lightning_audit.layout import FloatArray
from lightning_audit.record.snapshot import restore, snapshot
from lightning_audit.results.audit_report import CheckResult
from lightning_audit.stats.dependence.lag_signs import LagSigns
from lightning_audit.stats.evalues.divisor import DivisorTest, QuietEntries
from lightning_audit.stats.evalues.noise_scale import excess_log_e
from lightning_audit.stats.evalues.noise_shape import TailBet, TieBet, repeated_share
from lightning_audit.stats.evalues.recurrence import NoisePast
from lightning_audit.stats.evalues.sequential import SingleStepBet, log_mean_exp

#: Log e-value of one step whose noise came back, and how many of these steps are told.
_CERTAIN, _RETURNS = 20.0, 8
#: Entries larger than this, in standard deviations, are too coarse in single precision.
_COARSE = 1000.0
#: Smallest shift of `TailBet`, in standard deviations; a smaller one is as small as rounding.
_SMALLEST_SHIFT = 0.01
#: What the norm of a clipped sum may exceed the number of its terms by.
_ROUNDING = 1.05

#: What is said where another divisor was not found, and may be hidden by the data.
_BESIDE_DATA = (
    "nothing speaks for another divisor than the stated one; the sums before the noise are not "
    "shown, so that loud data may hide it"
)

#: Why a step says nothing of the noise.
_LOW = "gradients of low precision are rounded to a lattice, which the noise is not told from"
_NOT_FINITE = "no step's clipped sum was finite"
_LOUD = "the data are so loud that beside them the noise is rounding"


class _HasResult(Protocol):
    """A check."""

    def result(self, lack: str) -> CheckResult:
        """Result of the check; ``lack`` is why no noise was seen, or empty if no step was."""


class NoiseStatistic(_HasResult, Protocol):
    """What a check makes of the noise."""

    def update(self, noise: FloatArray, step: int) -> None:
        """Take in a step's noise in units of its claimed standard deviation, ``[n]``."""


#: Further checks, of the noise alone: what each makes of it, given the significance of a run.
OF_NOISE: tuple[Callable[[float], NoiseStatistic], ...] = (NoiseMean, SingleEntries)
#: The same of the noise, or of the readings that it is in where it is not known alone.
OF_READINGS: tuple[Callable[[float], NoiseStatistic], ...] = (NoiseForecast,)


class NoiseChannelChecks:
    """`noise.shape`, `reuse.*` of the noise, `batch_normalised`; `noise.excess` warns.

    Args:
        significance: of the whole run.
        fine: whether gradients are of single precision or better; if not, nothing is tested.
        tensors: names of the tensors.
    """

    def __init__(
        self, significance: float, *, fine: bool = True, tensors: Sequence[str] = ()
    ) -> None:
        self._fine = fine
        #: Why the latest step that says nothing does so: of its readings, and of its noise alone.
        self._lack = self._noise_lack = "" if fine else _LOW
        self._of_noise = tuple(make(significance) for make in OF_NOISE)
        self._of_readings = tuple(make(significance) for make in OF_READINGS)
        self._of_tensors = (WholeSizes(significance, tensors), AlikeEntries(significance))
        self._restart = NoiseRestart(significance)
        self._past = NoisePast()
        self._tails, self._ties, self._signs = TailBet(), TieBet(), LagSigns()
        #: Part of the values that stood twice in the step at which the shape was flagged.
        self._repeated = 0.0
        self._recurrence = SingleStepBet()
        #: Distances at which the noise of a step came back, for certain; a few of them.
        self._returned: list[int] = []
        # Of what resembled an earlier step most before the test flagged.
        self._recurred, self._recurred_log_e = (0, 0), -math.inf
        self._difference_ratio: float | None = None
        self._divisor = DivisorTest()
        self._quiet, self._beside_data = QuietEntries(), False
        self._excess = np.zeros(2)
        self._longest, self._long_at = 0.0, -1
        self.shape = NOISE_SHAPE.test(significance)
        self.recurrence = RECURRENCE.test(significance)
        self.divisor = BATCH_NORMALISED.test(significance)
        self.excess = NOISE_EXCESS.test(significance)

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds: what the first steps released."""
        return {"first": snapshot(self._restart.first)}

    def resume(self, state: dict[str, Any], step: int) -> None:
        """Begin a segment behind a resume.

        Args:
            state: of the segment before.
            step: number of the coming step.
        """
        self._restart.resume(restore(state["first"]), step)

    def update(self, seen: NoiseSeen, step: int) -> None:
        """Take in one step."""
        if not self._fine:
            return
        finite = seen.sums is None or np.isfinite(seen.sums).all()
        if not finite or not np.isfinite(seen.released).all():
            self._lack = self._noise_lack = _NOT_FINITE
            return
        self._update_divisor(seen, step)
        # Beside data that are so much louder, what is left of the noise is rounding; but noise
        # that is itself so large is to be seen.
        loud = seen.released if seen.sums is None else seen.sums
        if np.abs(loud).max(initial=0.0) > _COARSE * seen.noise_multiplier:
            self._lack = self._noise_lack = _LOUD
            return
        noise, self._noise_lack = noise_of(seen)
        if noise is not None:
            self._update_excess(noise, step)
            if seen.at_cut:  # elsewhere momentum, say, may be in the gradient as well
                self._signs.update(noise, step)
            for one in self._of_noise:
                one.update(noise, step)
        self._update_tensors(seen.whole, alone=noise is not None, step=step)
        if noise is not None or seen.split:
            self._note_sum(seen, step)
        # Readings hold the noise beside the data, so that the tests are valid for them as well.
        readings = seen.released / seen.noise_multiplier if noise is None else noise
        self._tails.update(readings, min(1.0, max(1.0 / seen.noise_multiplier, _SMALLEST_SHIFT)))
        self._ties.update(readings)
        before = self.shape.violated
        self.shape.update(float(log_mean_exp([self._tails.log_e, self._ties.log_e])), step)
        if self.shape.violated and not before:
            self._repeated = repeated_share(readings)
        self._update_recurrence(readings, step)
        for other in self._of_readings:
            other.update(readings, step)
        self._restart.update(seen.released / seen.noise_multiplier, noise, step)

    def _update_recurrence(self, readings: FloatArray, step: int) -> None:
        log_e, age = self._past.recurrence_log_e(readings)
        earlier = self._past.nearest
        self._past.add(readings, step)
        if log_e >= _CERTAIN and len(self._returned) < _RETURNS:
            self._returned.append(step - earlier)
        self._recurrence.update(log_e)
        before = self.recurrence.violated
        together = [float(self._recurrence.log_e), self._signs.log_e]
        self.recurrence.update(float(log_mean_exp(together)), step)
        flags = self.recurrence.violated and not before
        if flags or (not before and age and log_e > self._recurred_log_e):
            self._recurred, self._recurred_log_e = (earlier, step), log_e
            self._difference_ratio = self._past.difference_ratio

    def _update_tensors(self, whole: WholeTensors | None, *, alone: bool, step: int) -> None:
        sizes, alike = self._of_tensors
        if whole is not None:
            sizes.update(whole, alone=alone, step=step)
            if alone and whole.block is not None:
                alike.update(whole.block, step)

    def _update_divisor(self, seen: NoiseSeen, step: int) -> None:
        if not seen.divisors:
            return
        self._beside_data |= seen.sums is None
        released, sums = seen.released, seen.sums
        if sums is None:
            released = self._quiet.take(released, seen.noise_multiplier)
            sums = np.zeros_like(released)
        self._divisor.update(released, sums, seen.noise_multiplier, seen.divisors)
        self.divisor.update(self._divisor.log_e, step)

    @property
    def shrinks_with_batch(self) -> bool:
        """Whether gradients are clearly smaller where batches are larger."""
        return self._divisor.shrinks_with_divisor

    def _update_excess(self, noise: FloatArray, step: int) -> None:
        self._excess += [len(noise), float(noise @ noise)]
        self.excess.update(float(excess_log_e(*self._excess)), step)

    def _note_sum(self, seen: NoiseSeen, step: int) -> None:
        """Keep by how much a clipped sum was longer than its terms together can be.

        Noise that was added in place is in the sum, and belongs there unless the sum has parts.
        """
        if seen.sum_norm is None or not seen.terms or not math.isfinite(seen.sum_norm):
            return
        ratio = seen.sum_norm / seen.terms
        if ratio > _ROUNDING and self._long_at < 0:
            self._long_at = step
        self._longest = max(self._longest, ratio)

    @property
    def sums_are_long(self) -> bool:
        """Whether a sum was longer than its clipped terms can make it."""
        return self._long_at >= 0

    def results(self, *, clips: bool) -> tuple[CheckResult, ...]:
        """Results of the checks.

        Args:
            clips: whether nothing contradicts the clipping; if not, a long sum is no sign of noise.
        """
        apart: list[_HasResult] = [*self._of_noise, *self._of_tensors]
        (earlier, later), recurred = self._recurred, self.recurrence.violated
        of_recurrence = {
            "steps": [earlier, later] if recurred else [],
            "distances": self._returned if recurred else [],
            "difference_ratio": self._difference_ratio if recurred else None,
        }
        return (
            self._shape_result(),
            following_result(self.recurrence, self._signs, of_recurrence, self._lack)
            or RECURRENCE.result(
                self.recurrence,
                RECURRENCE.fine,
                f"readings of step {later} differ from those of step {earlier} by less than fresh "
                "noise of the claimed size makes them: as if the noise came back",
                "look for a generator that is seeded anew from few seeds, or restored, and draw "
                "all noise from one generator that is seeded once",
                of_recurrence,
                self._lack,
            ),
            *(one.result(self._lack) for one in self._of_readings),
            *self._restart.results(self._lack),
            BATCH_NORMALISED.result(
                self.divisor,
                _BESIDE_DATA if self._beside_data else BATCH_NORMALISED.fine,
                "the noisy sum is divided by the number of samples that the batch happens to have, "
                "so that the size of the gradient and of its noise tells of it",
                "divide by the expected batch size, which is the same at every step",
                {},
                "" if self._fine else self._lack,
            ),
            *(one.result(self._noise_lack) for one in apart),
            self._excess_result(clips),
        )

    def _shape_result(self) -> CheckResult:
        lattice = self._ties.log_e > self._tails.log_e
        what = (
            "values of the noise come back exactly, as if it were rounded to a lattice"
            if lattice
            else "the noise is not spread as normal noise of the claimed size is"
        )
        return NOISE_SHAPE.result(
            self.shape,
            NOISE_SHAPE.fine,
            f"{what}: some events tell one record more than the claim allows",
            "draw the noise with torch.normal or torch.randn in single precision, and neither "
            "round nor clip it",
            {
                "log_e_tails": self._tails.log_e,
                "log_e_ties": self._ties.log_e,
                "repeated": self._repeated,
            },
            self._lack,
        )

    def _excess_result(self, clips: bool) -> CheckResult:
        count, squares = self._excess.tolist()
        ratio = math.sqrt(squares / count) if count else math.nan
        evidence = {"ratio": ratio, "sum_norm_over_terms": self._longest}
        advice = (
            "add the noise once a step, and compare its scale with noise_multiplier * "
            "max_grad_norm; momentum, or anything else that is added to the gradient before the "
            "update, looks like noise as well"
        )
        if clips and self.sums_are_long and not self.excess.violated:
            return NOISE_EXCESS.judged(
                {**evidence, "violated_at_step": self._long_at},
                "",
                "too much noise: clipped sums are longer than clipping allows, so noise is added "
                "before a sum is complete, perhaps to each part of a split batch; that loses no "
                "privacy, but accuracy",
                advice,
            )
        return NOISE_EXCESS.result(
            self.excess,
            NOISE_EXCESS.fine,
            "too much noise: it is larger than claimed, or something else was added to the "
            "clipped sums; that loses no privacy, but accuracy",
            advice,
            evidence,
            self._noise_lack,
        )
