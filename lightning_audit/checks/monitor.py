"""Passes the record of a run, entry by entry, to every check.

The checks read nothing but the record, so `replay` reproduces the numbers of the run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_audit.accounting.phases import Phase
from lightning_audit.accounting.step_history import StepHistory
from lightning_audit.checks.accounting.coin_guesses import Guesses
from lightning_audit.checks.accounting.leakage import (
    LeakageBound,
    SignalBound,
    SignalOverNoise,
    StudentBound,
)
from lightning_audit.checks.base.check import EntryStatistic
from lightning_audit.checks.base.evidence import evidence_in, shared_log_e
from lightning_audit.checks.base.registry import statistics
from lightning_audit.checks.clipping.sensitivity import SENSITIVITY, SensitivityCheck
from lightning_audit.checks.noise.noise_size import (
    NOISE,
    NOISE_CANARY,
    CanaryNoiseCheck,
    WitnessNoiseCheck,
)
from lightning_audit.checks.randomness.noise_reuse import REUSE_LAG, ReuseCheck
from lightning_audit.checks.update.gradient_replaced import gradient_replaced_result
from lightning_audit.record.store import DROPPED, ENTERED, RecordHeader
from lightning_audit.results.audit_report import CheckResult


class AuditMonitor:
    """All checks by e-process of one record.

    Args:
        header: what the entries mean.
        significance: probability of a false alarm over the whole run.
    """

    def __init__(self, header: RecordHeader, significance: float) -> None:
        self.header = header
        self.significance = significance
        self._of_steps: dict[str, Any] = statistics("steps", header, significance)
        self._of_canaries: dict[str, Any] = statistics("canaries", header, significance)
        self.leakage = LeakageBound(header)
        self.signal = SignalBound(header)
        self.student = StudentBound(header)
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

    def update(self, entry: NDArray[np.void]) -> None:
        """Update with one entry of the record."""
        self.steps += 1
        self.replaced_steps += int(entry["replaced"])
        if entry["replaced"] and self.first_replaced is None:
            self.first_replaced = int(entry["step"])
        self.last_scale = float(entry["scale"])
        self.last_norm = float(entry["max_grad_norm"])
        sigma, rate = float(entry["noise_multiplier"]), float(entry["sample_rate"])
        self.claims.add(sigma, None if math.isnan(rate) else rate)
        if sigma <= 0.0:  # a step without claimed noise cannot be tested
            self.noiseless_steps += 1
            return
        if not np.isfinite(entry["tensor_squares"]).all():
            self.lost_steps += 1
            return
        for check in self._of_steps.values():
            check.update(entry)
        if entry["canaries"] == DROPPED:
            self.lost_steps += 1
        elif entry["canaries"] in ENTERED:
            if not np.isfinite(entry["readings"]).all():
                self.lost_steps += 1
                return
            self.canary_steps += 1
            for check in self._of_canaries.values():
                check.update(entry)
            for bound in (self.leakage, self.signal, self.student, self.guesses):
                bound.update(entry)

    @property
    def _statistics(self) -> list[EntryStatistic]:
        return [*self._of_steps.values(), *self._of_canaries.values()]

    @property
    def witness_noise(self) -> WitnessNoiseCheck:
        """The statistic of the noise at the probe coordinates."""
        found: WitnessNoiseCheck = self._of_steps[NOISE.name]
        return found

    @property
    def reuse(self) -> ReuseCheck:
        """The statistic of noise that is re-used at the probe coordinates."""
        found: ReuseCheck = self._of_steps[REUSE_LAG.name]
        return found

    @property
    def canary_noise(self) -> CanaryNoiseCheck:
        """The statistic of the noise along the canaries."""
        found: CanaryNoiseCheck = self._of_canaries[NOISE_CANARY.name]
        return found

    @property
    def sensitivity(self) -> SensitivityCheck:
        """The statistic of what canaries add."""
        found: SensitivityCheck = self._of_canaries[SENSITIVITY.name]
        return found

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
        return self.sensitivity.evidence.violated

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
        return (
            *(result for check in self._statistics for result in check.results()),
            gradient_replaced_result(self.replaced_steps, self.steps, self.first_replaced),
        )


def replay(
    header: RecordHeader, entries: Iterable[NDArray[np.void]], significance: float
) -> AuditMonitor:
    """Compute the checks of a record again.

    Args:
        header: what the entries mean.
        entries: the entries, in the order of the run.
        significance: probability of a false alarm over the whole run.

    Returns:
        The monitor after the last entry.
    """
    monitor = AuditMonitor(header, significance)
    for entry in entries:
        monitor.update(entry)
    return monitor
