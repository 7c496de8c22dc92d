"""Noise that depends on that of an earlier step: `reuse.recurrence`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from lightning_audit.checks.base.evidence import Evidence
from lightning_audit.checks.randomness.noise_reuse import REUSE_LAG
from lightning_audit.results.audit_report import CheckResult
from lightning_audit.stats.dependence.lag_signs import LagSigns

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
)

CHECKS = (RECURRENCE,)

#: What the best forecast of the noise leaves of its variance where it tells anything.
EXPLAINED = 0.97

#: Share of equal signs from which noise is the same noise again.
_SAME_SIGNS = 0.98


def following_result(
    test: Evidence, signs: LagSigns, seen: Mapping[str, Any], lack: str
) -> CheckResult | None:
    """Result of `reuse.recurrence` where the signs of the noise alone violate it.

    Args:
        test: its e-process, half of whose stake is on the signs.
        signs: of the noise of the steps so far.
        seen: what else its evidence holds.
        lack: why the latest step said nothing of its noise.

    Returns:
        The result; None where the signs do not show it, or show the same noise again.
    """
    lag, agreement = signs.lag, signs.agreement
    if signs.log_e - math.log(2.0) < test.threshold or agreement >= _SAME_SIGNS:
        return None
    return RECURRENCE.result(
        test,
        "",
        f"the noise of a step depends on that of {lag} step{'s' * (lag > 1)} before: "
        f"{agreement:.0%} of its signs are as they were there, and half would be",
        "draw the noise of each step independently; where it is correlated by design, state its "
        "coefficients as PrivacyClaim(noise_coefficients=...), and draw by those that are stated",
        {**seen, "lag": lag, "agreement": agreement},
        lack,
    )


#: A fault that several checks tell.
CORRELATED_OVER_STEPS = "noise_correlated_over_steps"
