"""Check that earlier noise does not predict the noise of a step: `reuse.forecast`."""

from __future__ import annotations

import dataclasses

from lightning_audit.checks.base.check import FaultRule
from lightning_audit.checks.noise.noise_seen import NoiseStep
from lightning_audit.checks.randomness.noise_recurrence import (
    CORRELATED_OVER_STEPS,
    EXPLAINED,
    RECURRENCE,
)
from lightning_audit.results.audit_report import CheckResult
from lightning_audit.stats.dependence.forecast import ForecastBet, LatestNoise

REUSE_FORECAST = dataclasses.replace(
    RECURRENCE,
    name="reuse.forecast",
    weight=5,
    finds="noise that depends on that of earlier steps: in part, with opposite sign, or so that "
    "it cancels",
    title="Noise given earlier noise",
    failed_title="Noise depends on earlier noise",
    meaning="Part of a step's noise can be computed from the noise of earlier steps, and then be "
    "subtracted.",
    look_at="Check what is kept of the noise between steps (momentum, sums, buffers); if the "
    "correlation is intended, state `PrivacyClaim(noise_coefficients=...)`.",
    topic="Fresh randomness",
    needs="no step's noise was read after that of an earlier step",
    fine="the noise of earlier steps does not predict that of a step",
    faults=(
        FaultRule(
            CORRELATED_OVER_STEPS,
            "noise correlated over steps: the noise of a step depends on that of earlier steps, "
            "otherwise than is claimed",
            "what keeps noise from step to step and adds it again: a momentum, a running sum, a "
            "buffer or a generator that is restored; and, if the noise is correlated by design, "
            "whether PrivacyClaim(noise_coefficients=...) states the weights of the draws",
            headline="The noise depends on that of earlier steps",
            rank=0.5,
            explains_groups=("reuse", "channel", "leakage"),
            applies=lambda seen: seen["left"] < EXPLAINED,
        ),
    ),
    reads="readings",
    init=lambda _, significance: NoiseForecast(significance),
)

CHECKS = (REUSE_FORECAST,)

#: The test looks at each step before number `_EACH`, and at every `_LATER`-th step after them.
_EACH, _LATER = 20, 4


class NoiseForecast:
    """Statistic of `reuse.forecast`: forecasts of a step's noise from earlier steps.

    Args:
        significance: of the whole run.
    """

    def __init__(self, significance: float) -> None:
        self._past = LatestNoise()
        self._bet = ForecastBet()
        self._test = REUSE_FORECAST.test(significance)

    def update(self, at: NoiseStep) -> None:
        """Update with a step's readings."""
        readings, step = at.readings, at.number
        self._bet.update(self._past.before(step, len(readings)), readings)
        self._past.add(readings, step)
        if self._bet.compared and (step < _EACH or step % _LATER == 0):
            self._test.update(self._bet.log_e, step)

    def result(self, lack: str) -> CheckResult:
        """Return the check's result; ``lack`` is the reason why no noise was read."""
        lag, coefficient = self._bet.best
        by = f"the noise of {lag} steps before" if lag > 1 else "the noise of the step before"
        by = by if lag else "the sum of all noise so far"
        return REUSE_FORECAST.result(
            self._test,
            REUSE_FORECAST.fine,
            "forecasts from earlier steps leave less than the claimed noise: the best forecast is "
            f"{coefficient:.2g} times {by}, and leaves {self._bet.left:.0%} of the variance",
            "draw all noise from one generator that is seeded once, and add each draw to one step "
            "only, without any part of earlier draws",
            {
                "lag": lag,
                "coefficient": coefficient,
                "left": self._bet.left,
                "ratio": self._bet.ratio,
            },
            lack,
        )
