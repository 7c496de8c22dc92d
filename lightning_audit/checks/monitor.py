"""Feeds the record of a run, entry by entry, to every check.

The checks see nothing but the record, so that `replay` gives the numbers of the run again.
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
    """All checks by e-process over one record.

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
        """Take in one entry of the record."""
        self.steps += 1
        self.replaced_steps += int(entry["replaced"])
        if entry["replaced"] and self.first_replaced is None:
            self.first_replaced = int(entry["step"])
        self.last_scale = float(entry["scale"])
        self.last_norm = float(entry["max_grad_norm"])
        sigma, rate = float(entry["noise_multiplier"]), float(entry["sample_rate"])
        self.claims.add(sigma, None if math.isnan(rate) else rate)
        if sigma <= 0.0:  # nothing is claimed of a step without noise, so nothing can be tested
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
        """Of the noise of the probe coordinates."""
        found: WitnessNoiseCheck = self._of_steps[NOISE.name]
        return found

    @property
    def reuse(self) -> ReuseCheck:
        """Of noise that comes back at the probe coordinates."""
        found: ReuseCheck = self._of_steps[REUSE_LAG.name]
        return found

    @property
    def canary_noise(self) -> CanaryNoiseCheck:
        """Of the noise along the canaries."""
        found: CanaryNoiseCheck = self._of_canaries[NOISE_CANARY.name]
        return found

    @property
    def sensitivity(self) -> SensitivityCheck:
        """Of what canaries add."""
        found: SensitivityCheck = self._of_canaries[SENSITIVITY.name]
        return found

    @property
    def history(self) -> tuple[Phase, ...]:
        """What was claimed of the steps, in the order of first appearance."""
        return self.claims.phases()

    def signal_over_noise(self, significance: float) -> SignalOverNoise:
        """Signal at least, and noise at most, at one look now, together at ``significance``.

        A twentieth of it is the noise's, whose thousands of witnesses leave little doubt.

        Both are valid at a look of one's choice, and for any data. Their quotient bounds mu over
        its claim where both were constant so far, and the noise of one relative size in the
        witnesses and along the canaries: from looks of its own each, an early small noise would
        stand under a late large signal.
        """
        of_noise = 0.05 * significance
        return SignalOverNoise(
            self.signal.lower(significance - of_noise),
            self.witness_noise.sums.noise_upper(of_noise),
        )

    @property
    def clipping_is_broken(self) -> bool:
        """Whether oversized canaries would only harm the model from now on."""
        return self.sensitivity.evidence.violated

    @property
    def log_e_value(self) -> float:
        """Log of the e-value that the checks of the record share; see `shared_log_e`."""
        return shared_log_e((test.log_e, test.share) for test in evidence_in(self))

    def results(self) -> tuple[CheckResult, ...]:
        """Results of the checks that see the record alone."""
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
