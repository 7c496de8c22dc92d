"""Lower bounds on the run's epsilon: the anytime bound, and the literature's bounds by name."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lightning_audit.accounting.phases import Phase, rates_known
from lightning_audit.accounting.spending import epsilon_at_ratio, epsilon_of_parts
from lightning_audit.checks.monitor import AuditMonitor
from lightning_audit.record.store import RecordHeader
from lightning_audit.results.audit_report import EpsilonBound
from lightning_audit.run.details.circumstances import proved_mu
from lightning_audit.stats.bounds.named_bounds import BOUND_NAMES, METHODS, BoundMethod
from lightning_audit.stats.bounds.subsampled_counts import (
    subsampled_epsilon_clopper_pearson,
    subsampled_epsilon_of_mu,
)
from lightning_audit.stats.tradeoff.gdp import gaussian_epsilon, gaussian_mu

_GAUSSIAN = (
    "epsilon of the run from mu of a step: Gaussian noise, independent steps, Poisson sampling at "
    "the stated rate"
)
_COMPOSED = f"{_GAUSSIAN}, the same leakage over claim in every step"
#: Assumption of a bound on all steps up to a look; see `accounting.least_cost.cheapest`.
_OF_A_PART = (
    f"{_GAUSSIAN}; composed over the steps up to a look, at the least cost that the guesses of "
    "their coins admit; least-cost allocation: exact for full batches, by simulation for others"
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
    return EpsilonBound(
        name="betting",
        epsilon_lower=epsilon_of_parts(claims, front, delta),
        delta=delta,
        mu_lower=mu,
        significance=significance,
        interpretation="confidence",
        threshold="fixed",
        looks="anytime",
        assumptions=(
            _coins(monitor.header),
            *_game(monitor.header),
            _OF_A_PART,
            *((_WITHOUT,) if monitor.canary_steps < monitor.steps else ()),
        ),
        epsilon_step_lower=_step_epsilon(monitor.header, mu, delta),
    )


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
    return (
        EpsilonBound(
            name="mu",
            epsilon_lower=_composed(monitor.history, found.ratio_lower, mu, delta),
            delta=delta,
            mu_lower=mu,
            significance=significance,
            interpretation="confidence",
            threshold="fixed",
            looks="single",
            assumptions=(
                _coins(monitor.header),
                *_game(monitor.header),
                limits,
                _SO_FAR,
                "Gaussian noise, of one size over its claim in all coordinates",
                _COMPOSED,
            ),
            epsilon_step_lower=_step_epsilon(monitor.header, mu, delta),
        ),
    )


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
    else:
        if method.quantity == "mu":
            mu, step = value, _step_epsilon(header, value, delta)
            assumptions += _game(header)
        else:
            mu = float(gaussian_mu(value, delta)) if value > 0 else 0.0
            assumptions += (_OF_A_STEP, *_game(header))
            if header.game == "subsampled":
                rate = header.coin_probability
                step = subsampled_epsilon_clopper_pearson(counts, rate, delta, significance)
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
