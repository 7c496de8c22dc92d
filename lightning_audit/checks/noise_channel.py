"""Passes steps to the checks that read the noise, with or without the data.

These checks use un-noised sums, noise and batch sizes, which stay in memory: `replay` cannot
compute them again, and they restart when a training is resumed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lightning_audit.checks.base.check import NoiseStatistic
from lightning_audit.checks.base.registry import statistics
from lightning_audit.checks.noise.noise_excess import NoiseExcess
from lightning_audit.checks.noise.noise_seen import NoiseSeen, NoiseStep, noise_of
from lightning_audit.checks.noise.stated_divisor import StatedDivisor
from lightning_audit.checks.randomness.noise_restart import NoiseRestart
from lightning_audit.record.snapshot import restore, snapshot
from lightning_audit.record.store import RecordHeader
from lightning_audit.results.audit_report import CheckResult

#: Above this size, in standard deviations of the noise, float32 rounds entries too coarsely.
_COARSE = 1000.0
#: Why a step's noise cannot be read.
_LOW = "low-precision gradients are quantized; the noise cannot be separated"
_NOT_FINITE = "no step's clipped sum was finite"
_LARGE = "clipped sums exceed 1000x the noise; float32 rounding dominates"


class NoiseChannelChecks:
    """The checks that read "readings" or "noise", and those of divisor, excess and restart.

    Args:
        header: describes the entries of the record.
        significance: of the whole run.
        fine: whether gradients have at least single precision; if not, nothing is tested.
    """

    def __init__(self, header: RecordHeader, significance: float, *, fine: bool = True) -> None:
        self._fine = fine
        #: Why the latest step has no readings, and why its noise is unknown; empty if they exist.
        self._lack = self._noise_lack = "" if fine else _LOW
        self._of_readings: dict[str, NoiseStatistic] = statistics("readings", header, significance)
        self._of_noise: dict[str, NoiseStatistic] = statistics("noise", header, significance)
        self._divisor = StatedDivisor(significance)
        self._excess = NoiseExcess(significance)
        self._restart = NoiseRestart(significance)

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint: what the first steps released."""
        return {"first": snapshot(self._restart.first)}

    def resume(self, state: dict[str, Any], step: int) -> None:
        """Begin a segment after a resume.

        Args:
            state: `state` of the previous segment.
            step: number of the next step.
        """
        self._restart.resume(restore(state["first"]), step)

    def update(self, seen: NoiseSeen, step: int) -> None:
        """Update with one step."""
        if not self._fine:
            return
        finite = seen.sums is None or np.isfinite(seen.sums).all()
        if not finite or not np.isfinite(seen.released).all():
            self._lack = self._noise_lack = _NOT_FINITE
            return
        self._divisor.update(seen, step)
        # If data are this much larger, the difference is rounding error. The release is compared
        # only if the sums are unknown: noise that is itself this large must be tested.
        large = seen.released if seen.sums is None else seen.sums
        if np.abs(large).max(initial=0.0) > _COARSE * seen.noise_multiplier:
            self._lack = self._noise_lack = _LARGE
            return
        noise, self._noise_lack = noise_of(seen)
        at = NoiseStep(step, seen, noise)
        alone = self._of_noise.values() if noise is not None else ()
        for one in (*alone, *self._of_readings.values(), self._excess, self._restart):
            one.update(at)

    @property
    def shrinks_with_batch(self) -> bool:
        """Whether gradients are clearly smaller in larger batches."""
        return self._divisor.shrinks_with_batch

    @property
    def sums_are_long(self) -> bool:
        """Whether a sum's norm exceeded what its clipped terms can add up to."""
        return self._excess.sums_are_long

    def results(self, *, clips: bool) -> tuple[CheckResult, ...]:
        """Return the results of the checks.

        Args:
            clips: whether no check contradicts the clipping; if one does, a long sum is no sign of
                noise.
        """
        return (
            *(one.result(self._lack) for one in self._of_readings.values()),
            *(one.result(self._noise_lack) for one in self._of_noise.values()),
            *((self._restart.result(self._lack),) if self._restart.resumed else ()),
            self._divisor.result("" if self._fine else self._lack),
            self._excess.result(self._noise_lack, clips=clips),
        )
