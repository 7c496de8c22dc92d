"""Noise that depends on that of an earlier step: `reuse.recurrence`."""

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
    finds="noise that comes back at irregular steps, as from few seeds, or depends on that of "
    "earlier steps otherwise than is claimed",
    # What it looks for shows in a step or two, with evidence that needs no larger share.
    weight=8,
    needs="of no step were entries read between its noise and its update",
    private=True,
    fine="no step's noise was that of an earlier step",
    reads="readings",
    init=lambda _, significance: NoiseRecurrence(significance),
)

CHECKS = (RECURRENCE,)

#: What the best forecast of the noise leaves of its variance where it tells anything.
EXPLAINED = 0.97

#: Share of equal signs from which noise is the same noise again.
_SAME_SIGNS = 0.98
#: Log e-value of one step whose noise came back, and how many of these steps are kept.
_CERTAIN, _RETURNS = 20.0, 8
#: A fault that several checks name.
CORRELATED_OVER_STEPS = "noise_correlated_over_steps"


class NoiseRecurrence:
    """`reuse.recurrence`: differences to earlier steps, and signs at fixed distances.

    Args:
        significance: of the whole run.
    """

    def __init__(self, significance: float) -> None:
        self._past, self._signs, self._bet = NoisePast(), LagSigns(), SingleStepBet()
        self._test = RECURRENCE.test(significance)
        #: Distances at which the noise of a step came back, for certain; a few of them.
        self._returned: list[int] = []
        # The earlier and the later step that differ least before the test flagged.
        self._pair, self._pair_log_e = (0, 0), -math.inf
        self._difference_ratio: float | None = None

    def update(self, at: NoiseStep) -> None:
        """Add a step's readings; signs count only if nothing but the noise can be in them."""
        step = at.number
        if at.noise is not None and at.seen.at_cut:  # elsewhere momentum may be in the gradient
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
        """Result of the check; ``lack`` is why the latest step shows no noise."""
        (earlier, later), violated = self._pair, self._test.violated
        evidence: dict[str, Any] = {
            "steps": [earlier, later] if violated else [],
            "distances": self._returned if violated else [],
            "difference_ratio": self._difference_ratio if violated else None,
        }
        wrong = (
            f"readings of step {later} differ from those of step {earlier} by less than fresh "
            "noise of the claimed size makes them: as if the noise came back"
        )
        advice = (
            "look for a generator that is seeded again from few seeds, or restored, and draw all "
            "noise from one generator that is seeded once"
        )
        lag, agreement = self._signs.lag, self._signs.agreement
        # Half of the stake is on the signs; equal ones are the same noise again.
        if self._signs.log_e - math.log(2.0) >= self._test.threshold and agreement < _SAME_SIGNS:
            wrong = (
                f"the noise of a step depends on that of {lag} step{'s' * (lag > 1)} before: "
                f"{agreement:.0%} of its signs are as they were there, and half would be"
            )
            advice = (
                "draw the noise of each step independently; if it is correlated by design, state "
                "its coefficients as PrivacyClaim(noise_coefficients=...), and draw by those that "
                "are stated"
            )
            evidence |= {"lag": lag, "agreement": agreement}
        return RECURRENCE.result(self._test, RECURRENCE.fine, wrong, advice, evidence, lack)
