"""Check that no earlier step's noise recurs: `reuse.recurrence`."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from lightning_audit.checks.noise.noise_seen import NoiseStep
from lightning_audit.checks.randomness.noise_reuse import REUSE_LAG
from lightning_audit.results.audit_report import CheckResult
from lightning_audit.stats.dependence.lag_signs import LagSigns
from lightning_audit.stats.evalues.recurrence import NoisePast
from lightning_audit.stats.evalues.sequential import SingleStepBet, log_mean_exp

RECURRENCE = dataclasses.replace(
    REUSE_LAG,
    name="reuse.recurrence",
    finds="noise that recurs at irregular steps, as from few seeds, or depends on that of earlier "
    "steps otherwise than is claimed",
    title="Noise of distant steps",
    failed_title="Noise repeats at irregular steps",
    meaning="The noise of a step equals that of an earlier step, as if drawn from few seeds, or "
    "depends on it.",
    look_at="Check how seeds are chosen: all noise must come from one generator that is seeded "
    "once.",
    topic="Fresh randomness",
    # One or two steps show recurring noise, with enough evidence for a small share.
    weight=8,
    needs="no step's entries were read between its noise and its update",
    private=True,
    fine="no step's noise repeats that of an earlier step",
    reads="readings",
    init=lambda _, significance: NoiseRecurrence(significance),
)

CHECKS = (RECURRENCE,)

#: Below this share of the variance that is left, the best forecast explains part of the noise.
EXPLAINED = 0.97

#: From this share of equal signs on, the noise is the same noise.
_SAME_SIGNS = 0.98
#: Log e-value at which a step's noise surely recurred, and how many of these steps are kept.
_CERTAIN, _RETURNS = 20.0, 8
#: Name of a fault that several checks report.
CORRELATED_OVER_STEPS = "noise_correlated_over_steps"


class NoiseRecurrence:
    """Statistic of `reuse.recurrence`: differences from earlier steps, and signs at fixed lags.

    Args:
        significance: of the whole run.
    """

    def __init__(self, significance: float) -> None:
        self._past, self._signs, self._bet = NoisePast(), LagSigns(), SingleStepBet()
        self._test = RECURRENCE.test(significance)
        #: Distances, in steps, at which a step's noise surely recurred; at most `_RETURNS`.
        self._returned: list[int] = []
        # The earlier and the later step that differ least until the test flags.
        self._pair, self._pair_log_e = (0, 0), -math.inf
        self._difference_ratio: float | None = None

    def update(self, at: NoiseStep) -> None:
        """Update with a step's readings; signs count only if the readings can be noise alone."""
        step = at.number
        if at.noise is not None and at.seen.at_cut:  # else it may contain momentum
            self._signs.update(at.noise, step)
        log_e, age = self._past.recurrence_log_e(at.readings)
        earlier = self._past.nearest
        self._past.add(at.readings, step)
        if log_e >= _CERTAIN and len(self._returned) < _RETURNS:
            self._returned.append(step - earlier)
        self._bet.update(log_e)
        before = self._test.violated
        both = [float(self._bet.log_e), self._signs.log_e]
        self._test.update(float(log_mean_exp(both)), step)
        flags = self._test.violated and not before
        if flags or (not before and age and log_e > self._pair_log_e):
            self._pair, self._pair_log_e = (earlier, step), log_e
            self._difference_ratio = self._past.difference_ratio

    def result(self, lack: str) -> CheckResult:
        """Return the check's result; ``lack`` is the reason why the latest step shows no noise."""
        (earlier, later), violated = self._pair, self._test.violated
        evidence: dict[str, Any] = {
            "steps": [earlier, later] if violated else [],
            "distances": self._returned if violated else [],
            "difference_ratio": self._difference_ratio if violated else None,
        }
        wrong = (
            f"readings of step {later + 1} differ from those of step {earlier + 1} by less than "
            "independent noise of the claimed size makes them: as if the noise recurred"
        )
        advice = (
            "look for a generator that is re-seeded from few seeds, or restored, and draw all "
            "noise from one generator that is seeded once"
        )
        lag, agreement = self._signs.lag, self._signs.agreement
        # Half of the stake is on the signs; if nearly all agree, it is the same noise.
        if self._signs.log_e - math.log(2.0) >= self._test.threshold and agreement < _SAME_SIGNS:
            wrong = (
                f"the noise of a step depends on that of {lag} step{'s' * (lag > 1)} before: "
                f"{agreement:.0%} of its signs agree, and 50% would agree by chance"
            )
            advice = (
                "draw the noise of each step independently; if it is correlated by design, state "
                "its coefficients as PrivacyClaim(noise_coefficients=...), and draw it with the "
                "stated coefficients"
            )
            evidence |= {"lag": lag, "agreement": agreement}
        return RECURRENCE.result(self._test, RECURRENCE.fine, wrong, advice, evidence, lack)
