"""A report that agrees with itself, made without a training: what the gate takes for real."""

import dataclasses
import math
from typing import Any

from lightning_audit.checks.check import REGISTRY, group
from lightning_audit.checks.disclosure import shown
from lightning_audit.results.audit_report import (
    AuditReport,
    CheckResult,
    EpsilonBound,
    LikelyFault,
    OptimizerSeen,
    Outcome,
    Place,
    Power,
    Verdict,
)
from lightning_audit.stats.tradeoff import gaussian_mu
from lightning_audit.verdict.judge import OutcomeSettings, Resolution, blockers_of, judge

STEPS, CANARIES, DELTA, SIGNIFICANCE = 100, 8, 1e-5, 1e-3
SHIFT_LOWER = 0.9


def made_report(
    outcome: Outcome = "PASS",
    *,
    claimed: float | None = 8.0,
    spent: float | None = 3.0,
    proved: float | None = 1.5,
    **changes: Any,
) -> AuditReport:
    """A report of 100 steps with this outcome: half noise, or no canary's signal, where it fails.

    Epsilon is claimed, spent and proved; the last two are None for an unknown sample rate.
    """
    power = {"noise": Power(0.99, 50, 0.8), "sensitivity": Power(1.0, 40, 2.0)}
    asked = OutcomeSettings(None, DELTA, SIGNIFICANCE, 0.05, Resolution(), ())
    blockers = ("the canary was taken out",) if outcome == "INCONCLUSIVE" else ()
    seen = OptimizerSeen(
        "", STEPS, CANARIES, STEPS, 0, 0, 1000.0, SHIFT_LOWER, power, 1.0, blockers
    )
    checks = _checks(outcome, claimed, spent)
    assumptions = ("flat clipping",)
    fields: dict[str, Any] = {
        "verdict": _verdict(outcome, checks, seen),
        "checks": checks,
        "bounds": (
            EpsilonBound(
                *("betting", proved, DELTA, 0.25, 0.05, "confidence", "fixed", "anytime"),
                assumptions,
            ),
        ),
        "claimed_epsilon": claimed,
        "epsilon_spent": spent,
        "epsilon_not_excluded": None if outcome == "VIOLATION" else 4.0,
        "delta": DELTA,
        "steps": STEPS,
        "observations": STEPS * CANARIES,
        "history": (_costing(spent),),
        "power": {part: dataclasses.asdict(row) for part, row in power.items()},
        "epochs": (),
        "settings": {**dataclasses.asdict(asked), "bounds": []},
        "environment": {},
        "optimizers": (seen,),
    }
    return AuditReport(**{**fields, **changes})


def _costing(spent: float | None) -> tuple[float, float | None, int]:
    """Steps on all records that compose to this epsilon, without a grid."""
    if spent is None or spent <= 0:
        return (1.0, None, STEPS)
    if math.isinf(spent):
        return (0.0, 1.0, STEPS)
    return (math.sqrt(STEPS) / float(gaussian_mu(spent, DELTA)), 1.0, STEPS)


def _verdict(outcome: Outcome, checks: tuple[CheckResult, ...], seen: OptimizerSeen) -> Verdict:
    if outcome != "VIOLATION":
        return judge(checks, None, seen, Resolution(), blockers_of(checks, seen, Resolution()))
    half = LikelyFault("half_noise", "half the noise", "noise", place=Place(step=7))
    return Verdict("VIOLATION", "mechanism", "noise: seen", faults=(half,))


def _checks(
    outcome: Outcome, claimed: float | None, spent: float | None
) -> tuple[CheckResult, ...]:
    compared = claimed is not None and spent is not None
    numbers: dict[str, dict[str, Any]] = {
        "no_dp": {"plain_steps": 0, "private_steps": STEPS},
        "gradient_replaced": {"replaced": 0, "steps": STEPS, "first_step": None},
        "finite": {"lost_steps": 0},
        "sampling.not_poisson": {"poisson": True},
        "ledger.accountant": {"hook": "read", "missing": 0, "told_noise": None},
        "sensitivity": {"shift_lower": SHIFT_LOWER},
        "fence.weights": {"changes": 0},
        "fence.monitors": {"monitors": 0},
        "coupling": {"replays": 1, "change": None, "step": None},
        **{key: {"examined": 1, "asked": 9, "findings": 0} for key in group("replay")},
    }
    numbers["accounting"] = {"epsilon_spent": spent, "claimed_epsilon": claimed, "delta": DELTA}
    if compared:
        numbers["epsilon"] = {"epsilon_lower": None, "claimed_epsilon": claimed}
    checks = []
    for name, share in ((n, known.share) for n, known in REGISTRY.items() if known.occurs(1)[0]):
        evidence = numbers.get(name, {})
        if name in ("epsilon", "accounting") and not compared:
            checks.append(
                CheckResult(name, "accounting", "not_run", "not compared", evidence=evidence)
            )
        elif share and name not in ("epsilon", "sampling.not_poisson"):
            violated = name == "noise" and outcome == "VIOLATION"
            log_e = 5.0 - math.log(share * SIGNIFICANCE) if violated else 0.0
            evidence = {**evidence, "violated_at_step": 7 if violated else None}
            status: Any = "violated" if violated else "ok"
            checks.append(
                CheckResult(name, "mechanism", status, "seen", "", log_e, share, evidence)
            )
        else:
            checks.append(CheckResult(name, "mechanism", "ok", "seen", evidence=evidence))
    told = [shown(check, SIGNIFICANCE) for check in checks]
    return tuple(sorted(told, key=lambda check: check.status != "violated"))
