"""The epsilons of a run: claimed, spent, and proved to leak at least."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from lightning_audit.accounting.margin import exceeds
from lightning_audit.accounting.spending import (
    History,
    claimed_epsilon,
    epsilon_of_parts,
    epsilon_spent,
)
from lightning_audit.checks.evidence import SHARES
from lightning_audit.checks.monitor import AuditMonitor
from lightning_audit.results.audit_report import CheckResult, EpsilonBound
from lightning_audit.run.run_bounds import betting_bound, literature_bounds, mu_bound
from lightning_audit.run.run_facts import RunFacts
from lightning_audit.run.terms import Terms
from lightning_audit.session.audit_session import AuditSession


@dataclass(frozen=True)
class Proved:
    """What the steps of a private optimizer are proved to leak at least.

    Args:
        lower: epsilon at the significance of the display; None where a sample rate is unknown.
        mu_lower: the same for the leakiest step's mu; None while there is no noise.
        ratio_sure: leakage of a step over its claim, at the significance of the verdict.
        sure: the same as an epsilon; None where it need not be composed.
        bounds: every bound at the significance of the display.
    """

    lower: float | None = None
    mu_lower: float | None = None
    ratio_sure: float = 0.0
    sure: float | None = None
    bounds: tuple[EpsilonBound, ...] = ()


@dataclass(frozen=True)
class Epsilons:
    """The epsilons of a run at one moment; None where no sample rate or claim is known.

    Args:
        claimed: what is claimed.
        source: who claims it.
        spent: what the steps cost, between the data sets that the claim is about.
        proved: lower bounds.
        spent_by_removal: where the claim is about replaced records, what the steps cost where a
            record is added or removed.
    """

    claimed: float | None
    source: str
    spent: float | None
    proved: Proved = dataclasses.field(default_factory=Proved)
    spent_by_removal: float | None = None


def run_history(sessions: Sequence[AuditSession]) -> History:
    """Phases of (noise_multiplier, sample_rate, steps) of all private optimizers."""
    return tuple(phase for session in sessions for phase in session.monitor.history)


def current_epsilons(sessions: Sequence[AuditSession], facts: RunFacts, terms: Terms) -> Epsilons:
    """Compute the epsilons now.

    Of n private optimizers each one's releases are a part of what the run releases, so that a
    lower bound of theirs is one of the run's. Each is computed at an n-th of the significance, and
    the largest counts: all of them hold at once with at least the stated probability.
    """
    claim = claimed_epsilon(
        terms.claimed_epsilon, facts.accountants, terms.delta, optimizers=len(sessions)
    )
    monitors = [session.monitor for session in sessions if session.monitor.steps]
    if not monitors:
        return Epsilons(claim.epsilon, claim.source, None)
    history, accountants = run_history(sessions), facts.accountants
    spent = epsilon_spent(history, accountants, terms.delta, terms.adjacency)
    replaced = terms.adjacency == "replace_one"
    by_removal = epsilon_spent(history, accountants, terms.delta) if replaced else None
    # A ratio of at most one proves no more than is spent: nothing to compose unless even that is
    # above the claim.
    within = spent is not None and claim.epsilon is not None and spent <= claim.epsilon
    each = [_proved(monitor, terms, len(sessions), within) for monitor in monitors]
    largest = each[0] if len(each) == 1 else _largest(each, terms.bound_significance)
    return Epsilons(claim.epsilon, claim.source, spent, largest, by_removal)


def _proved(monitor: AuditMonitor, terms: Terms, optimizers: int, within: bool) -> Proved:
    claims, delta = monitor.claims, terms.delta
    level = terms.bound_significance / optimizers
    sure = monitor.leakage.front(SHARES["epsilon"] * terms.significance / optimizers)
    ratio_sure = max((ratio for ratio, _ in sure), default=0.0)
    proved = betting_bound(monitor, delta, level)
    return Proved(
        proved.epsilon_lower,
        proved.mu_lower if claims.noise_at() > 0 else None,
        ratio_sure,
        None if ratio_sure <= 1 and within else epsilon_of_parts(claims, sure, delta),
        (
            proved,
            *mu_bound(monitor, delta, level),
            *literature_bounds(monitor, delta, level, terms.bounds),
        ),
    )


def _largest(each: Sequence[Proved], significance: float) -> Proved:
    """The largest of several optimizers' bounds, which all hold together at ``significance``."""
    surest = max(each, key=lambda proved: (_size(proved.sure), proved.ratio_sure))
    named: dict[str, EpsilonBound] = {}
    for bound in (bound for proved in each for bound in proved.bounds):
        known = named.get(bound.name)
        if known is None or _strength(bound) > _strength(known):
            named[bound.name] = dataclasses.replace(bound, significance=significance)
    return Proved(
        max((p.lower for p in each if p.lower is not None), default=None),
        max((p.mu_lower for p in each if p.mu_lower is not None), default=None),
        surest.ratio_sure,
        surest.sure,
        tuple(named.values()),
    )


def _strength(bound: EpsilonBound) -> tuple[float, float]:
    return _size(bound.epsilon_lower), _size(bound.epsilon_step_lower)


def _size(value: float | None) -> float:
    return -1.0 if value is None else value


def epsilon_result(epsilons: Epsilons, terms: Terms) -> CheckResult:
    """Result of `epsilon`: is more proved to leak than is claimed?"""
    if epsilons.spent is None or epsilons.claimed is None:
        return CheckResult("epsilon", "epsilon", "not_run", "no epsilon can be compared")
    proved = epsilons.proved
    violated = proved.sure is not None and exceeds(proved.sure, epsilons.claimed)
    claim = f"the claimed {epsilons.claimed:.4g} at delta {terms.delta:.3g}"
    if proved.ratio_sure == 0.0:
        message = f"no leakage is proved at the verdict's significance; within {claim}"
    elif proved.sure is None:
        message = (
            f"at least {proved.ratio_sure:.2f} times the stated leakage of a step is proved, "
            f"which stays within {claim}"
        )
    else:
        position = "above" if violated else "within"
        message = f"the run leaks at least epsilon {proved.sure:.4g}, {position} {claim}"
    return CheckResult(
        "epsilon",
        "epsilon",
        "violated" if violated else "ok",
        message,
        "the other findings say whether the noise or the clipping is at fault" if violated else "",
        share=SHARES["epsilon"],
        evidence={
            "ratio_lower": proved.ratio_sure,
            "epsilon_lower": proved.sure,
            "epsilon_claimed": epsilons.claimed,
        },
    )
