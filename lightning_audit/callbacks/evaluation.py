"""Puts together what a session saw: the metrics of an epoch, and the report."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib import metadata
from typing import Any

from lightning_audit.callbacks.bounds import betting_bound, literature_bounds
from lightning_audit.callbacks.facts import RunFacts
from lightning_audit.callbacks.session import AuditSession
from lightning_audit.callbacks.spending import claimed_epsilon, epsilon_at_ratio, epsilon_spent
from lightning_audit.callbacks.terms import Terms
from lightning_audit.checks.accounting import accounting_result, batch_size_result, exceeds
from lightning_audit.checks.family import SHARES
from lightning_audit.checks.integrity import (
    clipping_norm_result,
    logical_batch_result,
    no_dp_result,
    noise_restarted_result,
    unsynchronised_result,
)
from lightning_audit.checks.resolution import PowerModel
from lightning_audit.checks.sampling import repeated_result, sampling_results
from lightning_audit.checks.verdict import acknowledge, judge
from lightning_audit.results import AuditReport, CheckResult, EpsilonBound, Verdict
from lightning_audit.store import RECORD_NAME

#: Dashboards draw in single precision; a larger e-value tells nothing more.
_LARGEST_E_VALUE = 1e30
_LIBRARIES = (
    "lightning-audit",
    "torch",
    "pytorch-lightning",
    "lightning",
    "opacus",
    "dp-accounting",
    "numpy",
)


@dataclass(frozen=True)
class Epsilons:
    """The epsilons of a run at one moment; None where no sample rate or claim is known."""

    claimed: float | None
    source: str
    spent: float | None
    ratio_lower: float
    lower: float | None
    #: As `ratio_lower` and `lower`, at the significance of the verdict rather than of the display.
    ratio_proved: float
    proved: float | None
    bounds: tuple[EpsilonBound, ...] = ()


def current_epsilons(session: AuditSession | None, facts: RunFacts, terms: Terms) -> Epsilons:
    """Compute the epsilons now."""
    claim = claimed_epsilon(terms.epsilon, facts.accountant, terms.delta)
    if session is None or not session.monitor.steps:
        return Epsilons(claim.epsilon, claim.source, None, 0.0, None, 0.0, None)
    monitor = session.monitor
    history = monitor.history
    ratio = monitor.leakage.ratio_lower(terms.bound_significance)
    sure = monitor.leakage.ratio_lower(SHARES["epsilon"] * terms.significance)
    spent = epsilon_spent(history, facts.accountant, terms.delta)
    lower = epsilon_at_ratio(history, ratio, terms.delta)
    # A ratio of at most one proves no more than is spent: nothing to compose unless even that is
    # above the claim.
    within = spent is not None and claim.epsilon is not None and spent <= claim.epsilon
    proved = None if sure <= 1 and within else epsilon_at_ratio(history, sure, terms.delta)
    delta, level = terms.delta, terms.bound_significance
    bounds = (
        betting_bound(monitor, ratio, lower, delta, level),
        *literature_bounds(monitor, delta, level),
    )
    return Epsilons(claim.epsilon, claim.source, spent, ratio, lower, sure, proved, bounds)


def run_checks(
    session: AuditSession | None, facts: RunFacts, terms: Terms, epsilons: Epsilons
) -> tuple[CheckResult, ...]:
    """Results of every check now, violated ones first, those that the user allows marked."""
    steps = session.monitor.steps if session else 0
    checks = [no_dp_result(facts.plain_steps, steps, facts.plain_name)]
    if session is not None:
        checks += session.monitor.results()
        if (norms := session.step.norms) is not None:
            checks.append(clipping_norm_result(norms.checked, norms.largest_ratio))
        if facts.synchronised is not None:
            checks.append(unsynchronised_result(facts.synchronised, facts.processes))
        if facts.noise_restarted is not None:
            checks.append(noise_restarted_result(facts.noise_restarted))
        checks.append(_epsilon_result(epsilons, terms))
        checks.append(
            accounting_result(epsilons.spent, epsilons.claimed, terms.delta, epsilons.source)
        )
        _hold_batches_to_steps(facts, steps)
        if facts.loader is not None:
            checks += sampling_results(
                facts.loader.kind,
                facts.loader.description,
                facts.loader.sample_rate,
                facts.sample_rate,
                session.batch_sizes,
                facts.batches,
            )
        checks += _lint_results(facts)
        if facts.repeated and facts.synchronised:
            checks.append(repeated_result(facts.processes, facts.sample_rate))
    return acknowledge(checks, terms.allow)


def _hold_batches_to_steps(facts: RunFacts, steps: int) -> None:
    """Test a sampler's batches as those of the steps only where they are."""
    check = facts.batches
    if check is None:
        return
    check.twice_counts = facts.accountant is not None
    # Samplers run ahead of the training, and a step may be left out.
    batches = min(check.batches, facts.trained_batches)
    if batches > 1.2 * facts.batches_per_step * steps + 2:
        check.obstacle = "several of its batches make up a step"


def _lint_results(facts: RunFacts) -> list[CheckResult]:
    results = []
    if facts.split_epochs:
        results.append(logical_batch_result(facts.carried_over, facts.split_epochs))
    records = facts.loader.records if facts.loader else None
    if records and facts.sample_rate and facts.expected_batch_size is not None:
        divisor = batch_size_result(facts.expected_batch_size, records, facts.sample_rate)
        results += [divisor] if divisor else []
    return results


def _epsilon_result(epsilons: Epsilons, terms: Terms) -> CheckResult:
    if epsilons.spent is None or epsilons.claimed is None:
        return CheckResult("epsilon", "epsilon", "not_run", "no epsilon can be compared")
    violated = epsilons.proved is not None and exceeds(epsilons.proved, epsilons.claimed)
    claim = f"the claimed {epsilons.claimed:.4g} at delta {terms.delta:.3g}"
    if epsilons.ratio_proved == 0.0:
        message = f"no leakage is proved at the verdict's significance; within {claim}"
    elif epsilons.proved is None:
        message = (
            f"at least {epsilons.ratio_proved:.2f} times the stated leakage of a step is proved, "
            f"which stays within {claim}"
        )
    else:
        position = "above" if violated else "within"
        message = f"the run leaks at least epsilon {epsilons.proved:.4g}, {position} {claim}"
    return CheckResult(
        "epsilon",
        "epsilon",
        "violated" if violated else "ok",
        message,
        "the other findings say whether the noise or the clipping is at fault" if violated else "",
        share=SHARES["epsilon"],
        evidence={
            "ratio_lower": epsilons.ratio_proved,
            "epsilon_lower": epsilons.proved,
            "epsilon_claimed": epsilons.claimed,
        },
    )


def epoch_metrics(
    session: AuditSession | None, epsilons: Epsilons, checks: Sequence[CheckResult]
) -> dict[str, float]:
    """What is logged at an epoch's end; epsilons that are unknown are left out."""
    metrics: dict[str, float | None] = {
        "epsilon_lower": epsilons.lower,
        "epsilon_spent": epsilons.spent,
        "epsilon_claimed": epsilons.claimed,
        "violated": float(any(check.status == "violated" for check in checks)),
    }
    if session is not None:
        monitor = session.monitor
        sigma = monitor.history[-1][0] if monitor.history else 0.0
        metrics["mu_lower"] = epsilons.ratio_lower / sigma if sigma > 0 else None
        metrics["e_value"] = min(math.exp(min(monitor.log_e_value, 100.0)), _LARGEST_E_VALUE)
        metrics["observations"] = float(monitor.sensitivity.observations)
        metrics["step"] = float(monitor.steps)
    for bound in epsilons.bounds:
        if bound.looks == "single":
            metrics[f"epsilon_lower/{bound.name}"] = bound.epsilon_lower
            metrics[f"epsilon_step_lower/{bound.name}"] = bound.epsilon_step_lower
    return {k: float(v) for k, v in metrics.items() if v is not None and math.isfinite(v)}


def build_report(
    session: AuditSession | None,
    facts: RunFacts,
    terms: Terms,
    epsilons: Epsilons,
    checks: tuple[CheckResult, ...],
    *,
    complete: bool,
) -> AuditReport:
    """The report now; the power is computed for a complete run only."""
    monitor = session.monitor if session else None
    oversize = session.oversize if session else terms.oversize
    model = PowerModel(monitor, oversize) if monitor and monitor.steps and complete else None
    power = model.at(terms.resolution) if model else {}
    missing = _missing(facts, terms, epsilons, checks, complete)
    verdict = judge(
        checks,
        monitor,
        power,
        terms.resolution,
        oversize,
        [*missing, *(session.lacks() if session else ())],
    )
    history = monitor.history if monitor else ()
    return AuditReport(
        verdict=verdict,
        checks=checks,
        bounds=epsilons.bounds,
        operating_points=monitor.guesses.points if monitor else (),
        epsilon_claimed=epsilons.claimed,
        epsilon_spent=epsilons.spent,
        epsilon_not_excluded=_not_excluded(model, history, terms, verdict),
        delta=terms.delta,
        steps=monitor.steps if monitor else 0,
        observations=monitor.sensitivity.observations if monitor else 0,
        history=history,
        power={part: dataclasses.asdict(value) for part, value in power.items()},
        epochs=tuple(facts.epochs),
        settings=terms.settings(),
        environment={name: _version(name) for name in _LIBRARIES},
        notes=(*facts.notes, *(session.notes if session else ())),
        record=RECORD_NAME if session and session.store else None,
        created=datetime.now().astimezone().isoformat(timespec="seconds"),
        complete=complete,
    )


def _missing(
    facts: RunFacts,
    terms: Terms,
    epsilons: Epsilons,
    checks: Sequence[CheckResult],
    complete: bool,
) -> list[str]:
    lacks = [facts.resumed] if facts.resumed else []
    if facts.break_off:
        lacks.append(facts.break_off)
    elif not complete:
        lacks.append("the training has not ended")
    if terms.epsilon is not None and epsilons.spent is None:
        lacks.append(
            "the sample rate is unknown, so the claimed epsilon cannot be checked; state it as "
            "PrivacyAudit(claim=PrivacyClaim(sample_rate=...)) or attach an accountant"
        )
    if facts.unaudited and "unaudited" not in terms.allow:
        shown = ", ".join(f"`{parameter}`" for parameter in facts.unaudited[:5])
        lacks.append(
            f"{shown} changed although the private optimizer does not train it: what it learned "
            "was not audited; if that is nothing of the data (an average of weights, say), "
            "allow='unaudited' says so"
        )
    name = "sampling.not_poisson"
    doubtful = next((c for c in checks if c.name == name and c.status == "not_run"), None)
    if (
        doubtful
        and facts.sample_rate is not None
        and facts.sample_rate < 1
        and (name not in terms.allow)
    ):
        lacks.append(f"{doubtful.message}; if it does, allow={name!r} says so")
    return lacks


def _not_excluded(
    model: PowerModel | None, history: Sequence[Any], terms: Terms, verdict: Verdict
) -> float | None:
    """Epsilon if noise and clipping were as wrong as this run could just not have seen."""
    if model is None or verdict.outcome == "VIOLATION":
        return None
    noise, shift = model.not_excluded()
    quietest = min(sigma for sigma, *_ in history)
    # Beyond this mu of a single step epsilon runs into the hundreds: nothing was excluded.
    if quietest == 0.0 or noise == 0.0 or shift / (noise * quietest) > 20.0:
        return math.inf
    return epsilon_at_ratio(history, shift / noise, terms.delta)


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed as a package"
