"""Consistency of a report: of its numbers, and of its verdict with its checks and counts.

The verdict is computed again by the rules of the run: `pass_blockers` for the outcome, `registry`
for the checks. This finds accidents and careless edits. A report whose numbers are all rewritten
consistently passes: a report is not a signature.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from lightning_audit.accounting.margin import COMPOSITION_ERROR, exceeds
from lightning_audit.checks.accounting.leakage import EPSILON
from lightning_audit.checks.base.registry import REGISTRY, shared_log_e
from lightning_audit.results.audit_report import KINDS, AuditReport, CheckResult, OptimizerSeen
from lightning_audit.verdict.allowed import Held, held, with_allowed
from lightning_audit.verdict.check_status import contradictions_of_checks
from lightning_audit.verdict.pass_blockers import (
    MECHANISM_ALONE,
    OutcomeSettings,
    blockers_of_optimizer,
    blockers_of_run,
    outcome_of,
)
from lightning_audit.verdict.root import contradictions_of_root

#: Largest relative difference of two roundings of one number.
_ROUNDING = 1e-9
#: Allowed ratio of a canary signal's lower limit to the signal; in 1 run of 20 it exceeds 1.
_OVER = 1.25
#: The bound that every report has, and one that needs steps with canaries.
_ANYTIME, _OF_CANARIES = "betting", "mu"


def contradictions(report: AuditReport) -> list[str]:
    """Return the contradictions in a report, as text that begins with the place.

    Args:
        report: as `AuditReport.from_json` reads it.

    Returns:
        The contradictions; empty if checks, counts and settings give the verdict of the report.
    """
    try:
        settings = OutcomeSettings.of(report.settings)
    except ValueError as error:
        return [str(error)]
    return [
        *_of_verdict(report, settings),
        *_of_counts(report),
        *_of_epsilons(report, settings),
        *contradictions_of_checks(report, settings),
        *contradictions_of_root(report),
        *_of_powers(report, settings),
        *_of_bounds(report, settings),
    ]


def noise_is_correlated(report: AuditReport) -> bool:
    """Whether `noise_coefficients` are claimed, so that no epsilon is computed."""
    return _claims(report, "noise_coefficients") is not None


def _claims(report: AuditReport, name: str) -> Any:
    """Return a part of the claim; None if the claim does not state it."""
    claim = report.settings.get("claim")
    return claim.get(name) if isinstance(claim, Mapping) else None


def _named(report: AuditReport, name: str) -> list[CheckResult]:
    return [check for check in report.checks if check.name == name]


def _of_counts(report: AuditReport) -> Iterator[str]:
    seen, history = report.optimizers, report.history
    for one in seen:
        counted = (one.canary_steps, one.lost_steps, one.noiseless_steps)
        if min(counted) < 0 or sum(counted) > one.steps or one.canaries < 1:
            yield (
                f"optimizers: {one.steps} steps cannot be {one.canary_steps} with {one.canaries} "
                f"canaries, {one.lost_steps} lost and {one.noiseless_steps} without noise"
            )
    told = {
        "optimizers": sum(one.steps for one in seen),
        "history": sum(steps for *_, steps in history),
    }
    yield from (
        f"steps is {report.steps}, the sum over {where} {steps}"
        for where, steps in told.items()
        if steps != report.steps
    )
    if any(steps < 1 or sigma < 0 or not 0 < (rate or 1) <= 1 for sigma, rate, steps in history):
        yield "history: a phase has no steps, negative noise or a sample rate outside (0, 1]"
    noiseless = sum(steps for sigma, _, steps in history if sigma <= 0)
    if noiseless != sum(one.noiseless_steps for one in seen):
        yield f"optimizers: other than {noiseless} steps without noise, which history has"
    readings = sum(one.canaries * one.canary_steps for one in seen)
    if readings != report.observations:
        yield f"observations is {report.observations}, the canary steps have {readings} readings"
    for point in report.operating_points:
        cells = (point.fn, point.tp, point.fp, point.tn)
        if min(cells) < 0 or sum(cells) != readings:
            yield f"operating_points: one counts {sum(cells)} guesses of {readings} readings"
    if len(report.records) > len(seen):
        yield f"record: {len(report.records)} records of {len(seen)} private optimizers"
    yield from _of_counted_evidence(report)


def _of_counted_evidence(report: AuditReport) -> Iterator[str]:
    """Yield contradictions in numbers that both the optimizers and their checks have."""
    for check in _named(report, "no_dp"):
        if check.evidence.get("private_steps") != report.steps:
            yield f"checks: no_dp has other private_steps than the {report.steps} steps"
    pairs = (("gradient_replaced", "steps"), ("sensitivity", "shift_lower"))
    for name, number in pairs:
        told = [check for check in _named(report, name) if check.status != "not_run"]
        found = [check.evidence.get(number) for check in told]
        wanted = [getattr(one, number) for one in report.optimizers if _ran(one, name)]
        if sorted(map(str, found)) != sorted(map(str, wanted)):
            yield f"checks: {name} has {number} {found}, optimizers has {wanted}"
    last = next((row["e_value"] for row in reversed(report.epochs) if "e_value" in row), 0.0)
    if last > 0 and math.log(last) > shared_log_e(report.checks) + _ROUNDING * abs(math.log(last)):
        yield f"epochs: an e-value of {last:.3g} was logged, and no check has one as large"


def _ran(one: OptimizerSeen, name: str) -> bool:
    """Whether a check that reads every step, or those with canaries, read any."""
    return bool(one.canary_steps if name == "sensitivity" else one.steps)


def _of_powers(report: AuditReport, settings: OutcomeSettings) -> Iterator[str]:
    for one in report.optimizers:
        # The signal of a canary is at most the share that is released, up to its error.
        most = _OVER * math.sqrt(one.released) if 0.0 < one.released <= 1.0 else 0.0
        if one.released != 1.0 and (one.shift_lower or 0.0) > most:
            yield f"optimizers: released is {one.released:.3g}, shift_lower {one.shift_lower:.3g}"
        sizes = {part: power.size for part, power in one.power.items()}
        if sizes != settings.resolution.parts and (sizes or (report.complete and one.steps)):
            yield f"optimizers: power is of {sizes}, the resolution asks for " + (
                f"{dict(settings.resolution.parts)}"
            )
        if not all(0.0 <= power.power <= 1.0 for power in one.power.values()):
            yield "optimizers: a power outside [0, 1]"
    least = {part: _least(report.optimizers, part) for part in settings.resolution.parts}
    if report.power != {part: row for part, row in least.items() if row is not None}:
        yield f"power: {dict(report.power)} is not the least of the optimizers', {least}"


def _least(seen: Iterable[OptimizerSeen], part: str) -> dict[str, Any] | None:
    powers = [one.power[part] for one in seen if part in one.power]
    return dataclasses.asdict(min(powers, key=lambda power: power.power)) if powers else None


def _composed(report: AuditReport) -> tuple[float | None, float | None]:
    """Return the composed epsilon and the claim, before allowed findings are considered."""
    for check in _named(report, "accounting"):
        if report.epsilon_refuted_by:
            return check.evidence.get("epsilon_spent"), check.evidence.get("claimed_epsilon")
    return report.epsilon_spent, report.claimed_epsilon


def _of_allowed(report: AuditReport, now: Held) -> Iterator[str]:
    """Yield epsilons of the report that do not hold given what the user allows."""
    told = {
        "epsilon_spent": (report.epsilon_spent, now.spent),
        "claimed_epsilon": (report.claimed_epsilon, now.claimed),
        "epsilon_refuted_by": (report.epsilon_refuted_by, now.refuted_by),
    }
    for name, (shown, wanted) in told.items():
        if shown != wanted:
            yield f"{name} is {shown}, with the allowed findings it is {wanted}"
    if not now.lower_holds and report.epsilon_lower is not None:
        yield "bounds: a lower bound assumes batches as the accountant does, which is refuted"


def _of_epsilons(report: AuditReport, settings: OutcomeSettings) -> Iterator[str]:
    claimed_epsilon, delta = report.claimed_epsilon, report.delta
    stated = settings.claimed_epsilon
    if stated is not None and stated != claimed_epsilon:
        yield f"claimed_epsilon is {claimed_epsilon}, settings.claimed_epsilon {stated}"
    if settings.delta != delta:
        yield f"delta is {delta}, settings.delta {settings.delta}"
    composed, claimed = _composed(report)
    yield from _of_allowed(report, held(report.checks, composed, claimed, stated))
    shuffled = _claims(report, "sampling") == "shuffled"
    rates = [rate for _, rate, _ in report.history]
    known = bool(rates) and (shuffled or None not in rates)
    if noise_is_correlated(report):
        known = False
        if stated is None and claimed_epsilon is not None:
            yield f"claimed_epsilon is {claimed_epsilon}, and accountants know independent noise"
        if report.epsilon_not_excluded is not None:
            yield "epsilon_not_excluded is a number, and none is computed for correlated noise"
    if known != (composed is not None):
        gives = "gives" if known else "does not give"
        yield f"epsilon_spent is {composed}, and history {gives} it"
    epsilons = {"epsilon_spent": composed, "claimed_epsilon": claimed}
    for name, epsilon in epsilons.items():
        if epsilon is not None and epsilon < 0:
            yield f"{name} is {epsilon}, below 0"
    if not report.optimizers:
        return
    numbers = {**epsilons, "delta": delta}
    planned = any("epsilon_planned" in check.evidence for check in _named(report, "accounting"))
    compared = planned or None not in epsilons.values()
    holds = {"accounting": tuple(numbers), "epsilon": ("claimed_epsilon",)}
    if shuffled:
        del holds["epsilon"]
        if any(check.status != "not_run" for check in _named(report, "epsilon")):
            yield "checks: epsilon ran, and no lower bound is composed for shuffled batches"
    for name, own in holds.items():
        for check in _named(report, name):
            if name == "epsilon" and planned:
                continue
            if compared != (check.status != "not_run"):
                yield (
                    f"checks: {name} is {check.status}, with spent {composed}, claimed {claimed}"
                )
            elif compared or name == "accounting":
                yield from (
                    f"checks: {name} has {number} {check.evidence.get(number)}, "
                    f"the report {numbers[number]}"
                    for number in own
                    if check.evidence.get(number) != numbers[number]
                )


def _of_bounds(report: AuditReport, settings: OutcomeSettings) -> Iterator[str]:
    names = [bound.name for bound in report.bounds]
    if len(set(names)) < len(names):
        yield "bounds: a name occurs twice"
    if noise_is_correlated(report) and names:
        yield f"bounds: {names} are present, and none is computed for correlated noise"
    elif not noise_is_correlated(report) and (_ANYTIME in names) != (report.steps > 0):
        yield f"bounds: {_ANYTIME} is {'present' if _ANYTIME in names else 'absent'}"
    named = report.settings.get("bounds")
    own = {_ANYTIME, _OF_CANARIES}
    if not isinstance(named, list) or not {*names} <= own.union(map(str, named)):
        yield f"bounds: {names} are not those of settings.bounds, {named}"
    count = max(len(report.optimizers), 1)
    for bound in report.bounds:
        numbers = (bound.epsilon_lower, bound.mu_lower, bound.epsilon_step_lower)
        if any(number is not None and not number >= 0 for number in numbers):
            yield f"bounds: {bound.name} has a bound below 0"
        if bound.delta not in (report.delta, 0):
            yield f"bounds: {bound.name} is at delta {bound.delta}, the report at {report.delta}"
        # One bound is valid at all looks: it is the proved one.
        if (bound.looks == "anytime") != (bound.name == _ANYTIME):
            yield f"bounds: {bound.name} is for {bound.looks} looks"
        # Optimizers that took no step leave their share to the others.
        levels = (settings.bound_significance, settings.bound_significance / count)
        if not any(math.isclose(bound.significance, level) for level in levels):
            yield f"bounds: {bound.name} is at significance {bound.significance}, not {levels[0]}"
    if report.epsilon_refuted_by and report.epsilon_lower is None:
        return
    surely = [check.evidence.get("epsilon_lower") for check in _named(report, "epsilon")]
    lower = report.epsilon_lower
    strict = EPSILON.share * settings.significance <= settings.bound_significance
    both = 2.0 * COMPOSITION_ERROR  # each is composed on a grid of its own
    for sure in surely:
        if not (isinstance(sure, int | float) and strict):
            continue
        if lower is None or exceeds(sure, lower, both):
            yield f"bounds: epsilon {sure} is proved at the verdict's level, {lower} in bounds"


def _of_verdict(report: AuditReport, settings: OutcomeSettings) -> Iterator[str]:
    verdict = report.verdict
    allowed = {check.name for check in report.checks if check.status == "allowed"}
    if not allowed <= {*verdict.allowed}:
        yield f"verdict: allowed names {verdict.allowed}, and not {sorted(allowed)}"
    now = held(report.checks, *_composed(report), settings.claimed_epsilon)
    if with_allowed(verdict, verdict.allowed, now, report.delta) != verdict:
        yield f"verdict: holds is {verdict.holds!r}, the checks give another epsilon"
    others = report.pass_blockers
    correlated = noise_is_correlated(report)
    blockers = blockers_of_run(
        settings,
        report.checks,
        _composed(report)[0],
        others,
        complete=report.complete,
        mechanism_alone=correlated,
    )
    for one in report.optimizers or (None,):
        blockers += blockers_of_optimizer(one, settings.resolution)
    outcome = outcome_of(report.checks, blockers)
    violated = [check for check in report.checks if check.status == "violated"]
    if verdict.outcome != outcome:
        why = {"VIOLATION": [f"{c.name} is violated" for c in violated], "INCONCLUSIVE": blockers}
        reason = "; ".join(why.get(outcome, ["nothing is violated and nothing is missing"]))
        yield f"verdict: outcome is {verdict.outcome}, the report gives {outcome}: {reason}"
    if verdict.outcome == "PASS":
        if correlated != (MECHANISM_ALONE in verdict.summary):
            without = "does not say" if correlated else "says"
            yield f"verdict: summary {without} that the mechanism alone was judged"
        if verdict.pass_blockers:
            yield f"verdict: outcome is PASS, and missing: {'; '.join(verdict.pass_blockers)}"
        yield from (
            f"verdict: outcome is PASS, and {check.name} has not run"
            for check in report.checks
            if check.status == "not_run"
            and check.name in REGISTRY
            and REGISTRY[check.name].must_run
        )
    if verdict.outcome == "INCONCLUSIVE" and not verdict.pass_blockers:
        yield "verdict: outcome is INCONCLUSIVE, and nothing is missing"
    kind = next((k for k in KINDS if any(check.kind == k for check in violated)), None)
    if verdict.kind != kind:
        yield f"verdict: kind is {verdict.kind}, the violated checks give {kind}"
    if bool(verdict.faults) != bool(violated):
        yield f"verdict: {len(verdict.faults)} faults of {len(violated)} violated checks"
    if verdict.fault and not verdict.faults:
        yield "verdict: fault is not the sentence of one of faults"
