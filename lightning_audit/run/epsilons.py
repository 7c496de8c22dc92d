"""The epsilons of a run: claimed, spent, and the proved lower bounds."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lightning_audit.accounting.composition import exceeds, passes_taken
from lightning_audit.accounting.history import Phase, rates_known
from lightning_audit.accounting.spending import (
    EpsilonClaim,
    composed_epsilon,
    costlier,
    epsilon_at_ratio,
    epsilon_claim,
    epsilon_of_parts,
    steps_told,
)
from lightning_audit.checks.accounting import EPSILON, NOT_COMPOSED
from lightning_audit.checks.monitor import AuditMonitor
from lightning_audit.config import AuditConfig
from lightning_audit.record.store import RecordHeader
from lightning_audit.results.audit_report import AT_END, CheckResult, EpsilonBound, at_end
from lightning_audit.run.facts import proved_mu
from lightning_audit.run.run_facts import RunFacts
from lightning_audit.session.step import AuditSession
from lightning_audit.stats.counts import (
    subsampled_epsilon_clopper_pearson,
    subsampled_epsilon_of_mu,
)
from lightning_audit.stats.named_bounds import BOUND_NAMES, METHODS, BoundMethod
from lightning_audit.stats.tradeoff import gaussian_epsilon, gaussian_mu

# --- Lower bounds on the run's epsilon: the anytime bound, and the literature's bounds by name.

_GAUSSIAN = (
    "epsilon of the run from mu of a step: Gaussian noise, independent steps, Poisson sampling at "
    "the stated rate"
)
_COMPOSED = f"{_GAUSSIAN}, the same leakage over claim in every step"
#: Assumption of a bound on all steps up to a look; see `accounting.spending.cheapest`.
_OF_A_PART = (
    f"{_GAUSSIAN}; composed over the steps up to a look, at the least cost that the guesses of "
    "their coins admit; least-cost allocation: exact for full batches, at every integer Renyi "
    "order for steps of one claim, by simulation for others"
)
#: Assumption if only some of the steps have canaries.
_WITHOUT = "steps without canaries leak as those with canaries of the same claim"
#: Assumption under which limits on signal and noise bound their quotient.
_SO_FAR = "signal and noise over their claims constant so far"
_OF_A_STEP = "epsilon of the run from that of a step: the step is a Gaussian mechanism"
_CANARIES = "canaries of a step independent"
_STEPS = "steps independent"
_MIDDLE = "threshold half way between out and in"
#: Assumes Gaussian readings; skewed data deviate most from these if one world is rare.
_OF_FAIR_COINS = {"fdp_t"}
#: Bounds with no derived form for the subsampled game.
_OF_KNOWN_COINS = {"eps_jeffreys", "eps_bayes", "katz"}
#: A single step's mu from which epsilon is in the thousands: composing it adds no information.
_LARGEST_MU = 40.0


def betting_bound(monitor: AuditMonitor, delta: float, significance: float) -> EpsilonBound:
    """Return the bound by betting, valid at all times simultaneously.

    Args:
        monitor: the current checks.
        delta: the delta of all epsilons.
        significance: probability that the bound is wrong.
    """
    front, claims = monitor.leakage.front(significance), monitor.claims
    mu = proved_mu(front, claims)
    epsilon = epsilon_of_parts(claims, front, delta)
    without = (_WITHOUT,) if monitor.canary_steps < monitor.steps else ()
    rests_on = (_OF_A_PART, *without)
    return _of_readings(monitor, delta, significance, "betting", "anytime", epsilon, mu, rests_on)


def _of_readings(
    monitor: AuditMonitor,
    delta: float,
    significance: float,
    name: str,
    looks: Literal["anytime", "single"],
    epsilon: float | None,
    mu: float,
    assumptions: tuple[str, ...],
) -> EpsilonBound:
    """Return a bound from the canaries' readings, at thresholds that are fixed beforehand."""
    header = monitor.header
    return EpsilonBound(
        *(name, epsilon, delta, mu, significance, "confidence", "fixed", looks),
        assumptions=(_coins(header), *_game(header), *assumptions),
        epsilon_step_lower=_step_epsilon(header, mu, delta),
    )


def end_bound(monitor: AuditMonitor, delta: float, significance: float) -> tuple[EpsilonBound, ...]:
    """Return the bound by one look at the planned end, which is fixed before step 1.

    The limit of the noncentral t of readings with the signs of their coins. With fair coins a data
    term is added or subtracted by chance, which widens the spread and lowers the limit: its level
    is that of Gaussian readings, by simulation also where data follow past coins or have heavy
    tails (see `SignedReadings`). It is closer to the truth than `betting_bound`, since it need not
    hold at other looks. Empty before the planned end, without fair coins, and if the noise
    multiplier or the sample rate changes.
    """
    end, taken = monitor.student_at_end, monitor.claims.phases(monitor.header.planned_end)
    fair = monitor.header.coin_probability == 0.5
    if end is None or not fair or len(taken) != 1 or taken[0].noise_multiplier == 0.0:
        return ()
    mu, sigma = end.mu_lower(significance)
    rests_on = (
        _CANARIES,
        "the look is at the planned end",
        "Gaussian readings; by simulation for data of other distributions",
        _COMPOSED,
    )
    epsilon = _composed(taken, mu * sigma, mu, delta)
    of = (monitor, delta, significance)
    return (_of_readings(*of, AT_END, "single", epsilon, mu, rests_on),)


def mu_bound(monitor: AuditMonitor, delta: float, significance: float) -> tuple[EpsilonBound, ...]:
    """Return the bound from the least signal over the most noise; see `betting_bound`.

    A twentieth of the significance is spent on the noise. Empty before the first canary.
    """
    sigma = monitor.claims.noise_at()
    if not monitor.canary_steps or sigma == 0.0:
        return ()
    found = monitor.signal_over_noise(significance)
    mu = found.ratio_lower / sigma
    limits = (
        f"a canary adds at least {found.signal_lower:.3g} times the clipping norm, and the noise "
        f"is at most {found.noise_upper:.4g} times the claim, both for any data"
    )
    rests_on = (
        limits,
        _SO_FAR,
        "Gaussian noise, of one size over its claim in all coordinates",
        _COMPOSED,
    )
    epsilon = _composed(monitor.history, found.ratio_lower, mu, delta)
    return (_of_readings(monitor, delta, significance, "mu", "single", epsilon, mu, rests_on),)


def literature_bounds(
    monitor: AuditMonitor,
    delta: float,
    significance: float,
    names: Sequence[str] = BOUND_NAMES,
) -> tuple[EpsilonBound, ...]:
    """Return the literature's bounds that hold for the coins and the game, for one look now.

    Given the coins, the errors in either world are independent trials of that world's rate,
    regardless of the coins' probability: their limits and posteriors need no fair coins.

    Args:
        monitor: the checks now.
        delta: the delta of all epsilons.
        significance: probability that each bound is wrong.
        names: of the requested bounds.
    """
    if not monitor.canary_steps:
        return ()
    if monitor.header.coin_probability != 0.5:
        names = tuple(name for name in names if name not in _OF_FAIR_COINS)
    if monitor.header.game == "subsampled":
        names = tuple(name for name in names if name not in _OF_KNOWN_COINS)
    history = monitor.history  # under a noise schedule, as many phases as steps
    return tuple(_bound(monitor, history, METHODS[name], delta, significance) for name in names)


def _coins(header: RecordHeader) -> str:
    p = header.coin_probability
    return "fair private coins" if p == 0.5 else f"private coins of probability {p:g}"


def _game(header: RecordHeader) -> tuple[str, ...]:
    """Return the assumption on a step's epsilon in the subsampled game; none in the step game."""
    if header.game == "step":
        return ()
    return (
        f"epsilon of a step: of a record that joins it with probability "
        f"{header.coin_probability:g}, by the canary's own coins",
    )


def _step_epsilon(header: RecordHeader, mu: float, delta: float) -> float:
    if header.game == "step":
        return float(gaussian_epsilon(mu, delta))
    return subsampled_epsilon_of_mu(mu, header.coin_probability, delta)


def _bound(
    monitor: AuditMonitor,
    history: Sequence[Phase],
    method: BoundMethod,
    delta: float,
    significance: float,
) -> EpsilonBound:
    counts, sigma = monitor.guesses.middle, monitor.guesses.least_noise
    header = monitor.header
    assumptions: tuple[str, ...] = (_MIDDLE,)
    if method.from_counts is None:
        value, sigma = monitor.student.mu_lower(significance)
        assumptions = ("steps of the first noise multiplier only",)
    else:
        value = float(method.from_counts(counts, delta, significance))
    epsilon: float | None = None
    mu: float | None = None
    step = value
    if method.name == "katz":
        delta = 0.0
    elif method.quantity == "mu":
        mu, step = value, _step_epsilon(header, value, delta)
        assumptions += _game(header)
    else:
        mu = float(gaussian_mu(value, delta)) if value > 0 else 0.0
        assumptions += (_OF_A_STEP, *_game(header))
        if header.game == "subsampled":
            rate = header.coin_probability
            step = subsampled_epsilon_clopper_pearson(counts, rate, delta, significance)
    if mu is not None:
        # The claim at the smallest sigma implies those at the others.
        epsilon = _composed(history, mu * sigma, mu, delta)
        assumptions += (_COMPOSED,)
    return EpsilonBound(
        name=method.name,
        epsilon_lower=epsilon,
        delta=delta,
        mu_lower=mu,
        significance=significance,
        interpretation=method.interpretation,
        threshold="fixed",
        looks="single",
        assumptions=(_CANARIES, _STEPS, *method.assumptions, *assumptions),
        epsilon_step_lower=step,
    )


def _composed(history: Sequence[Phase], ratio: float, mu: float, delta: float) -> float | None:
    if mu > _LARGEST_MU:
        return math.inf if rates_known(history) else None
    return epsilon_at_ratio(history, ratio, delta)


# --- The epsilons of a run: claimed, spent, and the proved lower bound.


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

    @property
    def epsilon_lower_at_end(self) -> float | None:
        """The bound by one look at the planned end; None before it."""
        return at_end(self.bounds)


@dataclass(frozen=True)
class Epsilons:
    """The epsilons of a run at one moment; None if no sample rate or claim is known.

    Args:
        claim: the claimed epsilon and its source.
        epsilon_spent: of the steps, for the adjacency of the claim.
        proved: lower bounds.
        epsilon_by_removal: if the claim is for the replace_one adjacency, the epsilon of the steps
            for add_remove.
        composed: phases of this fit from which ``epsilon_spent`` is composed.
        earlier: phases of the earlier fits from which it is composed too.
    """

    claim: EpsilonClaim
    epsilon_spent: float | None
    proved: Proved = dataclasses.field(default_factory=Proved)
    epsilon_by_removal: float | None = None
    composed: Sequence[Phase] = ()
    earlier: Sequence[Phase] = ()

    @property
    def claimed_epsilon(self) -> float | None:
        """The epsilon that the training claims not to exceed."""
        return self.claim.claimed_epsilon


def run_history(sessions: Sequence[AuditSession]) -> tuple[Phase, ...]:
    """Return the claimed phases of the steps of all private optimizers."""
    return tuple(phase for session in sessions for phase in session.monitor.history)


def current_epsilons(run: RunFacts) -> Epsilons:
    """Compute the epsilons now.

    The releases of each of n private optimizers are part of the run's releases, so a lower bound
    for one of them is a lower bound for the run. Each is computed at 1/n of the significance, so
    that all hold together with at least the stated probability (union bound); the largest is
    reported. If the claim states noise that is correlated over steps, epsilon is neither composed
    nor bounded.
    """
    config = run.config
    if config.mechanism_alone:  # accountants and all bounds assume independent noise
        return Epsilons(epsilon_claim(config.claimed_epsilon, (), config.delta), None)
    links = () if config.shuffled else run.accountants  # accountants assume Poisson batches
    about = config.claimed_epsilon, links, config.delta
    claim = epsilon_claim(*about, optimizers=len(run.sessions), items=config.items)
    monitors = [session.monitor for session in run.sessions if session.monitor.steps]
    if not monitors:
        return Epsilons(claim, None)
    history, recorded = run_history(run.sessions), steps_told(run.accountants)
    if config.shuffled:
        composed: Sequence[Phase] = (passes_taken(history, recorded, run.passes),)
    else:
        composed = costlier(history, recorded, config.delta, config.adjacency, config.items)
    earlier = run.course.fits.counted(config)
    spent = config.epsilon_of([*composed, *earlier])
    by_removal = None
    if config.adjacency == "replace_one":
        removal = [*costlier(history, recorded, config.delta), *earlier]
        by_removal = composed_epsilon(removal, config.delta, items=config.items)
    # A ratio of at most one proves no more than epsilon_spent: composing it is of use only if
    # epsilon_spent exceeds the claim.
    claimed_epsilon = claim.claimed_epsilon
    within = spent is not None and claimed_epsilon is not None and spent <= claimed_epsilon
    # Noise that is added to the weights is not in the readings: they prove nothing.
    read = [s for s in run.sessions if s.monitor.steps and not s.releases.weights_move]
    each = [_proved_once(session, config, len(run.sessions), within) for session in read]
    largest = Proved() if not each else each[0]
    if len(each) > 1:
        largest = _largest(each, config.bound_significance)
    return Epsilons(claim, spent, largest, by_removal, composed, earlier)


def _proved_once(session: AuditSession, config: AuditConfig, *about: Any) -> Proved:
    """Return `_proved`; the training's end asks again for what its last epoch's end has proved."""
    known: dict[Any, Proved] = session.proved
    if (key := (session.monitor.steps, *about)) not in known:
        known = session.proved = {key: _proved(session.monitor, config, *about)}
    return known[key]


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
            *end_bound(monitor, delta, level),
            *mu_bound(monitor, delta, level),
            *literature_bounds(monitor, delta, level, config.bounds),
        ),
    )


def _largest(each: Sequence[Proved], significance: float) -> Proved:
    """Return the largest of several optimizers' bounds; all hold together at ``significance``."""
    surest = max(each, key=lambda proved: (_size(proved.sure_epsilon), proved.sure_ratio))
    named: dict[str, list[EpsilonBound]] = {}
    for bound in (bound for proved in each for bound in proved.bounds):
        named.setdefault(bound.name, []).append(bound)
    strongest = (max(bounds, key=_strength) for bounds in named.values())
    return Proved(
        max((proved.epsilon_lower for proved in each), key=_size),
        max((proved.mu_lower for proved in each), key=_size),
        surest.sure_ratio,
        surest.sure_epsilon,
        tuple(dataclasses.replace(bound, significance=significance) for bound in strongest),
    )


def _strength(bound: EpsilonBound) -> tuple[float, float]:
    return _size(bound.epsilon_lower), _size(bound.epsilon_step_lower)


def _size(value: float | None) -> float:
    return -1.0 if value is None else value


def epsilon_result(epsilons: Epsilons, config: AuditConfig) -> CheckResult:
    """Return the result of `epsilon`: does the lower bound exceed the claim?"""
    claimed_epsilon = epsilons.claimed_epsilon
    if config.mechanism_alone:
        return EPSILON.not_run(NOT_COMPOSED)
    if config.shuffled:
        return EPSILON.not_run("lower bounds are composed for Poisson batches only")
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
    found = EPSILON.judged(
        {
            "ratio_lower": proved.sure_ratio,
            "epsilon_lower": proved.sure_epsilon,
            "claimed_epsilon": claimed_epsilon,
        },
        message,
        what=message,
    )
    return dataclasses.replace(found, share=EPSILON.share)
