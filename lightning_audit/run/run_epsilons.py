"""The epsilons of a run: claimed, spent, and the proved lower bound."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from lightning_audit.accounting.margin import exceeds
from lightning_audit.accounting.phases import Phase
from lightning_audit.accounting.shuffled_passes import passes_taken
from lightning_audit.accounting.spending import (
    EpsilonClaim,
    composed_epsilon,
    costlier,
    epsilon_claim,
    epsilon_of_parts,
    steps_told,
)
from lightning_audit.checks.accounting.accounted_epsilon import NOT_COMPOSED
from lightning_audit.checks.accounting.leakage import EPSILON
from lightning_audit.checks.monitor import AuditMonitor
from lightning_audit.config.audit_config import AuditConfig
from lightning_audit.results.audit_report import CheckResult, EpsilonBound
from lightning_audit.run.run_bounds import betting_bound, literature_bounds, mu_bound
from lightning_audit.run.run_facts import RunFacts
from lightning_audit.session.audit_session import AuditSession


@dataclass(frozen=True)
class Proved:
    """Lower bounds on what the steps of a private optimizer leak.

    Args:
        epsilon_lower: at the significance of the display; None if a sample rate is unknown.
        mu_lower: the same for the leakiest step's mu; None while there is no noise.
        sure_ratio: leakage of a step over its claim, at the significance of the verdict.
        sure_epsilon: the same as an epsilon; None if it need not be composed.
        bounds: every bound at the significance of the display.
    """

    epsilon_lower: float | None = None
    mu_lower: float | None = None
    sure_ratio: float = 0.0
    sure_epsilon: float | None = None
    bounds: tuple[EpsilonBound, ...] = ()


@dataclass(frozen=True)
class Epsilons:
    """The epsilons of a run at one moment; None if no sample rate or claim is known.

    Args:
        claim: the claimed epsilon and its source.
        epsilon_spent: of the steps, for the adjacency of the claim.
        proved: lower bounds.
        epsilon_by_removal: if the claim is for the replace_one adjacency, the epsilon of the steps
            for add_remove.
        composed: phases from which ``epsilon_spent`` is composed.
    """

    claim: EpsilonClaim
    epsilon_spent: float | None
    proved: Proved = dataclasses.field(default_factory=Proved)
    epsilon_by_removal: float | None = None
    composed: Sequence[Phase] = ()

    @property
    def claimed_epsilon(self) -> float | None:
        """The epsilon that the training claims not to exceed."""
        return self.claim.claimed_epsilon


def run_history(sessions: Sequence[AuditSession]) -> tuple[Phase, ...]:
    """Return the claimed phases of the steps of all private optimizers."""
    return tuple(phase for session in sessions for phase in session.monitor.history)


def current_epsilons(
    sessions: Sequence[AuditSession], facts: RunFacts, config: AuditConfig
) -> Epsilons:
    """Compute the epsilons now.

    The releases of each of n private optimizers are part of the run's releases, so a lower bound
    for one of them is a lower bound for the run. Each is computed at 1/n of the significance, so
    that all hold together with at least the stated probability (union bound); the largest is
    reported. If the claim states noise that is correlated over steps, epsilon is neither composed
    nor bounded.
    """
    if config.mechanism_alone:  # accountants and all bounds assume independent noise
        return Epsilons(epsilon_claim(config.claimed_epsilon, (), config.delta), None)
    links = () if config.shuffled else facts.accountants  # accountants assume Poisson batches
    claim = epsilon_claim(config.claimed_epsilon, links, config.delta, optimizers=len(sessions))
    monitors = [session.monitor for session in sessions if session.monitor.steps]
    if not monitors:
        return Epsilons(claim, None)
    history, told = run_history(sessions), steps_told(facts.accountants)
    if config.shuffled:
        composed: Sequence[Phase] = (passes_taken(history, told, facts.passes),)
    else:
        composed = costlier(history, told, config.delta, config.adjacency)
    spent = composed_epsilon(composed, config.delta, config.adjacency)
    by_removal = None
    if config.adjacency == "replace_one":
        by_removal = composed_epsilon(costlier(history, told, config.delta), config.delta)
    # A ratio of at most one proves no more than epsilon_spent: composing it is of use only if
    # epsilon_spent exceeds the claim.
    claimed_epsilon = claim.claimed_epsilon
    within = spent is not None and claimed_epsilon is not None and spent <= claimed_epsilon
    each = [_proved(monitor, config, len(sessions), within) for monitor in monitors]
    largest = each[0] if len(each) == 1 else _largest(each, config.bound_significance)
    return Epsilons(claim, spent, largest, by_removal, composed)


def _proved(monitor: AuditMonitor, config: AuditConfig, optimizers: int, within: bool) -> Proved:
    claims, delta = monitor.claims, config.delta
    level = config.bound_significance / optimizers
    sure = monitor.leakage.front(EPSILON.share * config.significance / optimizers)
    sure_ratio = max((part.ratio for part in sure), default=0.0)
    proved = betting_bound(monitor, delta, level)
    return Proved(
        proved.epsilon_lower,
        proved.mu_lower if claims.noise_at() > 0 else None,
        sure_ratio,
        None if sure_ratio <= 1 and within else epsilon_of_parts(claims, sure, delta),
        (
            proved,
            *mu_bound(monitor, delta, level),
            *literature_bounds(monitor, delta, level, config.bounds),
        ),
    )


def _largest(each: Sequence[Proved], significance: float) -> Proved:
    """Return the largest of several optimizers' bounds; all hold together at ``significance``."""
    surest = max(each, key=lambda proved: (_size(proved.sure_epsilon), proved.sure_ratio))
    named: dict[str, EpsilonBound] = {}
    for bound in (bound for proved in each for bound in proved.bounds):
        known = named.get(bound.name)
        if known is None or _strength(bound) > _strength(known):
            named[bound.name] = dataclasses.replace(bound, significance=significance)
    return Proved(
        max((p.epsilon_lower for p in each if p.epsilon_lower is not None), default=None),
        max((p.mu_lower for p in each if p.mu_lower is not None), default=None),
        surest.sure_ratio,
        surest.sure_epsilon,
        tuple(named.values()),
    )


def _strength(bound: EpsilonBound) -> tuple[float, float]:
    return _size(bound.epsilon_lower), _size(bound.epsilon_step_lower)


def _size(value: float | None) -> float:
    return -1.0 if value is None else value


def epsilon_result(epsilons: Epsilons, config: AuditConfig) -> CheckResult:
    """Return the result of `epsilon`: does the lower bound exceed the claim?"""
    claimed_epsilon = epsilons.claimed_epsilon
    if config.mechanism_alone:
        return EPSILON.not_run(f"not compared: {NOT_COMPOSED}")
    if config.shuffled:
        return EPSILON.not_run("not compared: lower bounds are composed for Poisson batches only")
    if epsilons.epsilon_spent is None or claimed_epsilon is None:
        return EPSILON.not_run("no epsilon can be compared")
    proved = epsilons.proved
    violated = proved.sure_epsilon is not None and exceeds(proved.sure_epsilon, claimed_epsilon)
    claim = f"the claimed {claimed_epsilon:.4g} at delta {config.delta:.3g}"
    if proved.sure_ratio == 0.0:
        message = f"no leakage is proved at the verdict's significance; within {claim}"
    elif proved.sure_epsilon is None:
        message = (
            f"at least {proved.sure_ratio:.2f} times the stated leakage of a step is proved, "
            f"which stays within {claim}"
        )
    else:
        position = "above" if violated else "within"
        message = f"the run leaks at least epsilon {proved.sure_epsilon:.4g}, {position} {claim}"
    return CheckResult(
        EPSILON.name,
        EPSILON.kind,
        "violated" if violated else "ok",
        message,
        "the other findings say whether the noise or the clipping is at fault" if violated else "",
        share=EPSILON.share,
        evidence={
            "ratio_lower": proved.sure_ratio,
            "epsilon_lower": proved.sure_epsilon,
            "claimed_epsilon": claimed_epsilon,
        },
    )
