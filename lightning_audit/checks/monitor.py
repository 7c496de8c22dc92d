"""Passes the record of a run, and what steps show of their noise, to every check.

**Passes the record of a run, entry by entry, to every check.** The checks read nothing but the
record, so `replay` reproduces the numbers of the run.

**Passes steps to the checks that read the noise, with or without the data.** These checks use
un-noised sums, noise and batch sizes, which stay in memory: `replay` cannot compute them again, and
they restart when a training is resumed.
"""

from __future__ import annotations

import copy
import math
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from lightning_audit.accounting.history import Phase, StepHistory
from lightning_audit.checks.accounting import (
    Guesses,
    LeakageBound,
    SignalBound,
    SignalOverNoise,
    StudentBound,
)
from lightning_audit.checks.check import Statistic, evidence_in, statistics
from lightning_audit.checks.check import largest_shared_log_e as shared_log_e
from lightning_audit.checks.clipping import SENSITIVITY, SensitivityCheck
from lightning_audit.checks.noise import (
    BATCH_NORMALISED,
    NOISE,
    NOISE_CANARY,
    NOISE_EXCESS,
    CanaryNoiseCheck,
    NoiseExcess,
    StatedDivisor,
    WitnessNoiseCheck,
)
from lightning_audit.checks.probes import noise_of
from lightning_audit.checks.randomness import NOISE_RESTARTED, REUSE_LAG, NoiseRestart, ReuseCheck
from lightning_audit.checks.update import gradient_replaced_result
from lightning_audit.record.store import (
    DROPPED,
    ENTERED,
    Observation,
    RecordHeader,
    restore,
    snapshot,
)
from lightning_audit.results.audit_report import CheckResult

# --- Passes the record of a run, entry by entry, to every check.


class AuditMonitor:
    """All checks by e-process of one record.

    Args:
        header: what the entries mean.
        significance: probability of a false alarm over the whole run.
    """

    def __init__(self, header: RecordHeader, significance: float) -> None:
        self.header = header
        self.significance = significance
        self._of_steps: dict[str, Statistic] = statistics("steps", header, significance)
        self._of_canaries: dict[str, Statistic] = statistics("canaries", header, significance)
        self.leakage = LeakageBound(header)
        self.signal = SignalBound(header)
        self.student = StudentBound(header)
        #: `student` as it was at the planned end; None before it.
        self.student_at_end: StudentBound | None = None
        self.guesses = Guesses(header)
        self.steps = 0
        self.canary_steps = 0
        self.lost_steps = 0
        self.noiseless_steps = 0
        self.replaced_steps = 0
        self.first_replaced: int | None = None
        self.last_scale = 1.0
        self.last_norm = 1.0
        self.claims = StepHistory()

    def update(self, seen: Observation) -> None:
        """Update with steps of one claim, see `Observation.blocks`.

        A statistic updates its centers, scales and wealth after each of them, as if the steps came
        one by one: a block changes no number by more than rounding.
        """
        steps = len(seen.step)
        self.steps += steps
        self.replaced_steps += int(seen.replaced.sum())
        if seen.replaced.any() and self.first_replaced is None:
            self.first_replaced = int(seen.step[seen.replaced > 0][0])
        self.last_scale, self.last_norm = seen.scale, seen.max_grad_norm
        sigma, rate = seen.noise_multiplier, seen.sample_rate
        self.claims.add(sigma, None if math.isnan(rate) else rate, steps)
        if sigma > 0.0:
            self._test(seen)
        else:  # steps without claimed noise cannot be tested
            self.noiseless_steps += steps
        if self.steps == self.header.planned_end:
            self.student_at_end = copy.deepcopy(self.student)

    def _test(self, seen: Observation) -> None:
        whole = seen.where(np.isfinite(seen.tensor_squares).all(axis=1))
        entered = whole.where(np.isin(whole.canaries, ENTERED))
        read = entered.where(np.isfinite(entered.readings).all(axis=1))
        self.canary_steps += len(read.step)
        lost = len(seen.step) - len(whole.step) + len(entered.step) - len(read.step)
        self.lost_steps += lost + int((whole.canaries == DROPPED).sum())
        for check in self._of_steps.values() if len(whole.step) else ():
            check.update(whole)
        if len(read.step):
            bounds = (self.leakage, self.signal, self.student, self.guesses)
            readers: list[Any] = [*self._of_canaries.values(), *bounds]
            for one in readers:
                one.update(read)

    @property
    def witness_noise(self) -> WitnessNoiseCheck:
        """The statistic of the noise at the probe coordinates."""
        return cast(WitnessNoiseCheck, self._of_steps[NOISE.name])

    @property
    def reuse(self) -> ReuseCheck:
        """The statistic of noise that is re-used at the probe coordinates."""
        return cast(ReuseCheck, self._of_steps[REUSE_LAG.name])

    @property
    def canary_noise(self) -> CanaryNoiseCheck:
        """The statistic of the noise along the canaries."""
        return cast(CanaryNoiseCheck, self._of_canaries[NOISE_CANARY.name])

    @property
    def sensitivity(self) -> SensitivityCheck:
        """The statistic of what canaries add."""
        return cast(SensitivityCheck, self._of_canaries[SENSITIVITY.name])

    @property
    def history(self) -> tuple[Phase, ...]:
        """The claims of the steps, in the order of first appearance."""
        return self.claims.phases()

    def signal_over_noise(self, significance: float) -> SignalOverNoise:
        """Return a lower bound of the signal and an upper bound of the noise at the present look.

        Both hold at once at ``significance``, of which the noise gets a twentieth: thousands of
        probe coordinates determine it precisely. Both are valid at any chosen look and for any
        data. Their quotient bounds mu over its claim if both were constant so far, and if the noise
        has the same relative size at the probe coordinates and along the canaries. The two bounds
        must come from the same look: otherwise a large signal of late steps could be divided by a
        small noise of early steps.
        """
        of_noise = 0.05 * significance
        return SignalOverNoise(
            self.signal.lower(significance - of_noise),
            self.witness_noise.sums.noise_upper(of_noise),
        )

    @property
    def clipping_is_broken(self) -> bool:
        """Whether clipping is refuted: from now on oversized canaries would only harm the model."""
        return self.sensitivity.test.violated

    @property
    def shares(self) -> dict[str, float]:
        """Share of the significance of each statistic and test, 0 of those without an e-value."""
        tests = {test.name: test.share for test in evidence_in(self)}
        return {**dict.fromkeys([*self._of_steps, *self._of_canaries], 0.0), **tests}

    @property
    def log_e_value(self) -> float:
        """Log of the joint e-value of the record's checks; see `shared_log_e`."""
        return shared_log_e((test.log_e, test.share) for test in evidence_in(self))

    def results(self) -> tuple[CheckResult, ...]:
        """Return the results of the checks that read the record alone."""
        readers = (*self._of_steps.values(), *self._of_canaries.values())
        return (
            *(result for one in readers for result in one.results()),
            gradient_replaced_result(self.replaced_steps, self.steps, self.first_replaced),
        )


def replay(header: RecordHeader, entries: NDArray[Any], significance: float) -> AuditMonitor:
    """Compute the checks of a record again.

    Args:
        header: what the entries mean.
        entries: the entries, in the order of the run, ``[n]``.
        significance: probability of a false alarm over the whole run.

    Returns:
        The monitor after the last entry.
    """
    monitor = AuditMonitor(header, significance)
    for seen in Observation.blocks(entries, header.planned_end):
        monitor.update(seen)
    return monitor


# --- Passes steps to the checks that read the noise, with or without the data.

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
        self._of_readings: dict[str, Statistic] = statistics("readings", header, significance)
        self._of_noise: dict[str, Statistic] = statistics("noise", header, significance)
        about = header, significance
        #: The statistics of the divisor and of too much noise.
        self.divisor = StatedDivisor(BATCH_NORMALISED, *about)
        self.excess = NoiseExcess(NOISE_EXCESS, *about)
        self._restart = NoiseRestart(NOISE_RESTARTED, *about)

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

    def update(self, seen: Observation) -> None:
        """Update with one step whose noise was read."""
        if not self._fine or seen.released is None:
            return
        finite = seen.sums is None or np.isfinite(seen.sums).all()
        if not finite or not np.isfinite(seen.released).all():
            self._lack = self._noise_lack = _NOT_FINITE
            return
        self.divisor.update(seen)
        # If data are this much larger, the difference is rounding error. The release is compared
        # only if the sums are unknown: noise that is itself this large must be tested.
        large = seen.released if seen.sums is None else seen.sums
        if np.abs(large).max(initial=0.0) > _COARSE * seen.noise_multiplier:
            self._lack = self._noise_lack = _LARGE
            return
        noise, self._noise_lack = noise_of(seen)
        seen = seen.having(noise=noise)
        alone = self._of_noise.values() if noise is not None else ()
        for one in (*alone, *self._of_readings.values(), self.excess, self._restart):
            one.update(seen)

    def results(self, *, clips: bool) -> tuple[CheckResult, ...]:
        """Return the results of the checks.

        Args:
            clips: whether no check contradicts the clipping; if one does, a long sum is no sign of
                noise.
        """
        of_readings, of_noise = self._of_readings.values(), self._of_noise.values()
        return (
            *(result for one in of_readings for result in one.results(self._lack)),
            *(result for one in of_noise for result in one.results(self._noise_lack)),
            *(self._restart.results(self._lack) if self._restart.resumed else ()),
            *self.divisor.results("" if self._fine else self._lack),
            *self.excess.results(self._noise_lack, clips=clips),
        )
