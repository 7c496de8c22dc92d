"""The epsilons of a run, and the steps that it may still take within a claimed epsilon."""

from __future__ import annotations

import copy
import logging
import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakKeyDictionary

import numpy as np
import scipy

from lightning_audit import _validate
from lightning_audit.accounting.composition import (
    RESOLUTION,
    Adjacency,
    epsilon_of_history,
    exceeds,
)
from lightning_audit.accounting.history import (
    Phase,
    StepHistory,
    compress,
    leaking,
    merge,
    rates_known,
)
from lightning_audit.stats._arguments import Floats
from lightning_audit.stats.canary_bets import LeastLogs, ProvedPart, score_mu
from lightning_audit.stats.divergences import RENYI_ORDERS, renyi_divergence, renyi_slope

if TYPE_CHECKING:
    from lightning_audit.dpsgd.opacus import AccountantLink

# --- The least privacy cost of steps, given what a bet proves about their sum.

#: Signal over noise: the table in which the cheapest value of each group of steps is searched.
_MU: Floats = np.geomspace(1e-4, 60.0, 1200)
#: Narrowings of the Lagrange multiplier's range, and the number of parts of each.
_NARROWINGS, _PARTS = 10, 64
#: Largest factor by which steps are scaled to what is needed, as a log.
_SLACK = 1.0
#: Times that steps between those of two orders are tried.
_REFINEMENTS = 2


def cheapest(
    proved: LeastLogs, taken: Sequence[Phase], orders: Sequence[int] = RENYI_ORDERS
) -> list[list[Phase]]:
    r"""Return the steps of least cost that a bet admits, for each of several costs.

    These are the signals over noise ``mu_g`` of the groups of steps that minimize

    .. math:: \sum_g n_g\, c_\alpha(\mu_g, q_g) \quad\text{subject to}\quad
        \sum_g m_g \log(1 + \kappa_g f G_g(\mu_g)) \ge \text{needed}

    with the cost ``c_alpha`` of `renyi_divergence`, m_g the steps with canaries and n_g all steps
    of the group. The logs are concave in ``mu^2`` and the cost is convex in it, so equal steps
    within a group cost least at every order, and a Lagrange multiplier finds the rest.

    Proved (own proof, above): no admitted sequence mu_t costs less, if steps without canaries leak
    on average as much as steps with canaries of the same claim.

    Args:
        proved: What the bet proves; its ``needed`` is positive.
        taken: All steps, by their claims.
        orders: Orders of the Rényi divergence that is the cost of a step.

    Returns:
        For each order the phases with these noise multipliers, without steps whose claim had no
        canaries.
    """
    counts = _all_steps(proved, taken)
    found = _of_table(proved, counts, orders)
    return [_phases(proved, counts, _scaled(proved, mu)) for mu in found]


def _phases(proved: LeastLogs, counts: Floats, mu: Floats) -> list[Phase]:
    steps = np.floor(counts + 1e-9).astype(int).tolist()
    parts = zip(mu.tolist(), proved.sample_rates.tolist(), steps, strict=True)
    return merge(Phase(1.0 / each, rate, n) for each, rate, n in parts if n and each > 0)


def _of_table(proved: LeastLogs, counts: Floats, orders: Sequence[int]) -> list[Floats]:
    """Return the cheapest signal over noise of each group up to the table's error, by order."""
    table = np.broadcast_to(_MU, (len(counts), len(_MU)))
    logs = proved.logs(table) * proved.steps[:, None]
    slopes = np.log(np.maximum(proved.steps[:, None] * proved.slopes(table), 1e-300))
    found = []
    for order in orders:
        rates = proved.sample_rates.tolist()
        price = counts[:, None] * np.array([_prices(rate, order) for rate in rates])
        # Increase of the logs per unit of cost: it falls in mu.
        worth = np.minimum.accumulate(slopes - np.log(price), axis=1)
        found.append(_bought(worth, logs, proved.needed))
    return found


@lru_cache(maxsize=1024)
def _prices(sample_rate: float, order: int) -> Floats:
    """Return the derivative of a step's cost at each mu of the table, ``[n]``."""
    return renyi_slope(_MU, sample_rate, order)


def _bought(worth: Floats, logs: Floats, needed: float) -> Floats:
    """Return the least mu of equal worth in all groups at which the logs suffice, ``[g]``."""
    low, high = float(worth.min()), float(worth.max())
    for _ in range(_NARROWINGS):
        levels = np.linspace(low, high, _PARTS + 1)
        places = [np.interp(-levels, -of_it, _MU) for of_it in worth]
        added = sum(np.interp(mu, _MU, of_it) for mu, of_it in zip(places, logs, strict=True))
        last = max(int(np.sum(added >= needed)) - 1, 0)  # the sum falls in the level
        low, high = levels[last], levels[min(last + 1, _PARTS)]
    return np.array([np.interp(-low, -of_it, _MU) for of_it in worth])


def _scaled(proved: LeastLogs, mu: Floats) -> Floats:
    """Return mu scaled so that the logs add up to exactly what is needed."""

    def missing(log_factor: float) -> float:
        logs = proved.logs(mu[:, None] * np.exp(log_factor))[:, 0]
        return float(proved.steps @ logs) - proved.needed

    if missing(-_SLACK) >= 0.0 or missing(_SLACK) <= 0.0:  # at an end of the table
        return mu
    return np.asarray(mu * np.exp(scipy.optimize.brentq(missing, -_SLACK, _SLACK, xtol=1e-13)))


def _all_steps(proved: LeastLogs, taken: Sequence[Phase]) -> Floats:
    """Return the steps of each group, with and without canaries, ``[g]``."""
    keys = list(zip(proved.mus.tolist(), proved.sample_rates.tolist(), strict=True))
    inside: Counter[tuple[float, float]] = Counter()
    for key, steps in zip(keys, proved.steps.tolist(), strict=True):
        inside[key] += steps
    all_steps: Counter[tuple[float, float]] = Counter()
    for phase in taken:
        if phase.noise_multiplier > 0:
            all_steps[score_mu(phase.noise_multiplier), phase.known_rate] += phase.steps
    return np.asarray(proved.steps * [all_steps[key] / inside[key] for key in keys])


# --- The epsilons of a run: claimed, spent and proved.

_log = logging.getLogger(__name__)

#: Number of parts of a run that are composed for one lower bound.
MOST_COMPOSED = 3

#: Limits on the steps for which Opacus' prv accountant is called, and that a lower bound composes.
_LONGEST_ASKED, _LONGEST_PROVED = 10**7, 10**6


@dataclass(frozen=True)
class EpsilonClaim:
    """The claimed epsilon, None if nothing is claimed, and the source of the claim as text."""

    claimed_epsilon: float | None
    source: str


_NOBODY = EpsilonClaim(None, "nobody")


def epsilon_claim(
    claimed_epsilon: float | None,
    links: Sequence[AccountantLink],
    delta: float,
    *,
    optimizers: int = 1,
    items: int = 1,
) -> EpsilonClaim:
    """Return the epsilon claimed by the user, else by the accountants for the steps so far.

    Opacus' prv accountants compose as `epsilon_spent` does, but slower: their histories are
    composed here, which agrees with their epsilon to within a percent. So are those of its gdp
    accountants, whose limit theorem bounds nothing, as `opacus_defects` says.

    Several accountants are treated as one: all histories are given to an accountant of their
    kind. If their kinds differ, or their kind cannot compose different steps, their epsilons at
    equal shares of delta are summed.

    Args:
        claimed_epsilon: The user's claim; None to query the accountants.
        links: The accountants.
        delta: Delta of the claim, in (0, 1).
        optimizers: Number of private optimizers.
        items: Items of a record. Accountants state the epsilon of one; that of several is composed
            from their histories.

    Returns:
        The claim; its epsilon is None if no one states one.
    """
    if claimed_epsilon is not None:
        return EpsilonClaim(claimed_epsilon, "the claim")
    asked = [link.accountant for link in links if link.accountant.history]
    if not asked:
        return _NOBODY
    if any(_takes_too_long(a) and not _is_of_opacus(a) for a in asked):
        _log.warning(
            "Opacus' prv accountant is not queried for the epsilon of more than %g steps, which "
            "would take minutes; set claimed_epsilon",
            _LONGEST_ASKED,
        )
        return _NOBODY
    kinds = sorted({accountant.mechanism() for accountant in asked})
    if items > 1 or ((kinds == ["prv"] or "gdp" in kinds) and all(map(_is_of_opacus, asked))):
        epsilon = composed_epsilon(_steps_of(asked), delta, items=items)
        if epsilon is not None:
            return EpsilonClaim(epsilon, f"the history of Opacus' {' and '.join(kinds)} accountant")
    name = f"Opacus' {kinds[0]} accountant"
    if len(asked) > 1:
        name = f"the history of Opacus' {len(asked)} {' and '.join(kinds)} accountants"
    try:
        if optimizers == 1:
            return EpsilonClaim(_epsilon_of(asked[0], delta), name)
        merged = _steps_of(asked)
        if len(asked) > 1 and (len(kinds) > 1 or (kinds == ["gdp"] and len(merged) > 1)):
            share = delta / len(asked)
            return EpsilonClaim(sum(float(a.get_epsilon(share)) for a in asked), name)
        # Alternating steps make a phase each, which some accountants take minutes to compose.
        together = copy.copy(asked[0])
        together.history = [astuple(phase) for phase in merged]
        return EpsilonClaim(float(together.get_epsilon(delta)), name)
    except Exception as error:  # some accountants fail on short histories; training continues
        _log.warning("%s gave no epsilon: %s", name, error)
        return _NOBODY


def _is_of_opacus(accountant: Any) -> bool:
    """Return whether this is one of Opacus' accountants, and not the user's own."""
    return type(accountant).__module__.startswith("opacus.")


def _takes_too_long(accountant: Any) -> bool:
    steps = sum(int(count) for *_, count in accountant.history)
    return bool(accountant.mechanism() == "prv" and steps > _LONGEST_ASKED)


#: The last result of each accountant, with the history and delta that gave it.
_last_epsilons: WeakKeyDictionary[Any, tuple[object, float]] = WeakKeyDictionary()


def _epsilon_of(accountant: Any, delta: float) -> float:
    """Return an accountant's epsilon, cached: the end of a run repeats its last epoch's call."""
    asked = (tuple(accountant.history), delta)
    known = _last_epsilons.get(accountant)
    if known is None or known[0] != asked:
        known = _last_epsilons[accountant] = (asked, float(accountant.get_epsilon(delta)))
    return known[1]


def steps_told(links: Iterable[AccountantLink]) -> list[Phase]:
    """Return the steps in the accountants' histories, with equal phases added up."""
    return _steps_of(link.accountant for link in links)


def _steps_of(accountants: Iterable[Any]) -> list[Phase]:
    recorded = (phase for accountant in accountants for phase in accountant.history)
    # Opacus records a rate above one if more batches are accumulated than a pass has.
    return merge(Phase(sigma, min(rate, 1.0), int(n)) for sigma, rate, n in recorded if rate)


def costlier(
    history: Sequence[Phase],
    told: Sequence[Phase],
    delta: float,
    adjacency: Adjacency = "add_remove",
    items: int = 1,
) -> Sequence[Phase]:
    """Return the steps from which the spent epsilon is composed: the history that costs more.

    The accountants' history is longer if the model was trained before. It is shorter, or has too
    much noise, if the accountants are wrong.

    Args:
        history: phases that the audit saw.
        told: phases of the accountants, see `steps_told`.
        delta: the delta.
        adjacency: see `lightning_audit.accounting.composition.epsilon_of_history`.
        items: see `lightning_audit.accounting.composition.epsilon_of_history`.

    Returns:
        One of the two; ``history`` if a sample rate is unknown.
    """
    if not told or set(told) == set(merge(history)):
        return history
    seen, recorded = (
        composed_epsilon(steps, delta, adjacency, items=items) for steps in (history, told)
    )
    return history if seen is None or recorded is None or recorded <= seen else told


def epsilon_at_ratio(
    history: Sequence[Phase], ratio: float, delta: float, adjacency: Adjacency = "add_remove"
) -> float | None:
    """Return a lower bound on the epsilon of a history, each noise multiplier over ``ratio``.

    Each approximation is rounded down; with more than a million steps it is that of the first
    million.

    Args:
        history: Phases in any order.
        ratio: Lower bound on leakage over claim from the betting test; 0 gives 0.
        delta: Delta in (0, 1).
        adjacency: See `accounting.composition.epsilon_of_history`; a lower bound for
            "add_remove" is also one for "replace_one".

    Returns:
        Epsilon; None if a sample rate is unknown.
    """
    if ratio == 0.0:
        return 0.0 if rates_known(history) else None
    return composed_epsilon(leaking(_first_steps(history), ratio), delta, adjacency, "up")


def epsilon_of_parts(
    claims: StepHistory, front: Sequence[ProvedPart], delta: float
) -> float | None:
    """Return the largest epsilon of an initial part of the run, at the least epsilon admitted.

    A ratio over the whole run would not be valid: what a look proves does not cover the steps
    after it, and steps of different claims may have leaked at different ratios. The least epsilon
    is that of the steps that `cheapest` finds at the orders of `RENYI_ORDERS`. Where all steps have
    the same claim, these are equal steps at every integer order. Where claims differ, that no other
    admitted steps have a smaller epsilon rests on simulation (benchmarks/leakage_laws.py).

    Composing takes 10 to 400 ms, so only `MOST_COMPOSED` parts are composed: those with the largest
    epsilon by Rényi divergences at `ratio`, which order parts nearly as epsilon does. Leaving a
    part out can only lower the bound.

    Args:
        claims: What was claimed of the steps.
        front: What is proved, and of how many steps.
        delta: Delta in (0, 1).

    Returns:
        Epsilon; 0 if nothing is proved, None if a sample rate is unknown.
    """
    runs = claims.runs()
    if not rates_known(runs):
        return None
    sigma, rate, counts = (
        np.array([astuple(run) for run in runs], dtype=np.float64).reshape(-1, 3).T
    )
    begins = np.cumsum(counts) - counts

    def estimate(part: ProvedPart) -> float:
        mu, steps = part.ratio / np.maximum(sigma, 1e-9), np.clip(part.steps - begins, 0.0, counts)
        return min(_renyi_epsilon(mu, rate, steps, delta, order) for order in RENYI_ORDERS)

    found = 0.0
    for part in sorted(front, key=estimate, reverse=True)[:MOST_COMPOSED]:
        found = max(found, _least_epsilon(claims.phases(part.steps), part, delta, found))
    return found


def _renyi_epsilon(mu: Floats, rate: Floats, steps: Floats, delta: float, order: int) -> float:
    cost = float(steps @ renyi_divergence(mu, rate, order))
    return cost - math.log(delta) / (order - 1.0)


def _least_epsilon(taken: Sequence[Phase], part: ProvedPart, delta: float, enough: float) -> float:
    """Return the least epsilon of the steps that are cheapest at any order, or leak equally.

    All bets hold, and the one of the largest epsilon counts. It is chosen by Rényi divergences, as
    composing the steps of all bets takes seconds. Steps between the best order and its neighbors
    are tried as well. An epsilon of at most ``enough`` ends the search.
    """
    bets = [bet for bet in part.logs() if bet.needed > 0.0]
    if not bets:
        return 0.0
    # The steps of a single group are the same at every order.
    orders = RENYI_ORDERS if len(bets[0].mus) > 1 else RENYI_ORDERS[:1]
    bet = max(bets, key=lambda each: _least_renyi_epsilon(each, taken, delta, orders))
    counts = _all_steps(bet, taken)

    def epsilon(history: Sequence[Phase]) -> float:
        found = composed_epsilon(_first_steps(history), delta, rounding="up")
        return math.inf if found is None else found

    def of_mu(mu: Floats) -> float:
        return epsilon(_phases(bet, counts, mu))

    if len(orders) == 1:
        return epsilon(*cheapest(bet, taken, orders))
    # The same proof admits steps that leak at equal ratios.
    least = epsilon([one for one in leaking(taken, part.ratio) if one.noise_multiplier > 0])
    courses = [_scaled(bet, mu) for mu in _of_table(bet, counts, orders)]
    found = []
    for mu in courses:
        found.append(of_mu(mu))
        if min(least, *found) <= enough:
            return enough
    for _ in range(_REFINEMENTS):
        best = int(np.argmin(found))
        for place in (best + 1, best):
            if 0 < place < len(courses):
                middle = _scaled(bet, np.sqrt(courses[place - 1] * courses[place]))
                courses.insert(place, middle)
                found.insert(place, of_mu(middle))
    return min(least, *found)


def _least_renyi_epsilon(
    bet: LeastLogs, taken: Sequence[Phase], delta: float, orders: Sequence[int]
) -> float:
    counts = _all_steps(bet, taken)
    courses = zip(orders, _of_table(bet, counts, orders), strict=True)
    return min(_renyi_epsilon(mu, bet.sample_rates, counts, delta, order) for order, mu in courses)


def _first_steps(history: Sequence[Phase]) -> list[Phase]:
    """Return the first steps, as many as compose in seconds: they leak at most what all leak."""
    kept, left = [], _LONGEST_PROVED
    for phase in history:
        if left > 0:
            kept.append(phase if phase.steps <= left else replace(phase, steps=left))
        left -= phase.steps
    return kept


def composed_epsilon(
    history: Sequence[Phase],
    delta: float,
    adjacency: Adjacency = "add_remove",
    rounding: Literal["mean", "up"] = "mean",
    resolution: float = RESOLUTION,
    items: int = 1,
) -> float | None:
    """Return the epsilon of a history, with noise multipliers rounded if there are many.

    Args:
        history: phases in any order.
        delta: the delta.
        adjacency: see `lightning_audit.accounting.composition.epsilon_of_history`.
        rounding: "mean" for an epsilon spent, "up" for a lower bound.
        resolution: see `lightning_audit.accounting.composition.epsilon_of_history`.
        items: see `lightning_audit.accounting.composition.epsilon_of_history`.

    Returns:
        Epsilon; None if a sample rate is unknown.
    """
    if not rates_known(history):
        return None
    # Twelve buckets change the epsilon of a steep noise schedule by about a percent.
    short = compress(history, max_phases=12, rounding=rounding)
    lower = rounding == "up"
    return epsilon_of_history(
        short, delta, adjacency=adjacency, lower=lower, resolution=resolution, items=items
    )


# --- The number of steps that a training may still take within a claimed epsilon.

#: Largest number of steps that is searched if no number is planned: finding the end of many more
#: takes as long as a training.
MOST_ASKED = 4096


def steps_within(
    claimed_epsilon: float,
    delta: float,
    history: Sequence[Phase],
    coming: Sequence[Phase],
    *,
    told: tuple[Sequence[Phase], Sequence[Phase]] | None = None,
    planned: int | None = None,
    adjacency: Adjacency = "add_remove",
    items: int = 1,
) -> int | None:
    """Return how often ``coming`` may follow a history before the claimed epsilon is exceeded.

    The planned number fits if it exceeds the claim by no more than the error of composition,
    because the noise multiplier may have been calibrated to the claim. Every other number is
    compared with the claim itself.

    Args:
        claimed_epsilon: Epsilon that all steps together may cost, > 0.
        delta: Delta of the claim, in (0, 1).
        history: The steps so far.
        coming: What is repeated: one step of each private optimizer.
        told: ``history`` and ``coming`` as the accountants have them, if they differ; the more
            expensive pair counts.
        planned: How often ``coming`` is planned to repeat, >= 1, which bounds the search; None
            bounds it by `MOST_ASKED`.
        adjacency: See `lightning_audit.accounting.composition.epsilon_of_history`.
        items: See `lightning_audit.accounting.composition.epsilon_of_history`.

    Returns:
        The number: 0 if the next step is too much, ``planned`` if all fit, None if a sample rate
        is unknown.

    Raises:
        ValueError: If ``planned`` is not a whole number >= 1.

    Example:
        >>> steps_within(1.0, 1e-5, (), [Phase(1.0, 0.01, 1)], planned=100)
        100
        >>> steps_within(1.0, 1e-5, (), [Phase(0.5, 0.5, 1)], planned=100)
        0
    """
    most = MOST_ASKED if planned is None else _validate.positive_int("planned", planned)
    courses = [(history, coming), *([told] if told is not None else [])]

    def epsilon(times: int) -> float:
        found = []
        for before, each in courses:
            rounds = [replace(phase, steps=phase.steps * times) for phase in each]
            found.append(composed_epsilon([*before, *rounds], delta, adjacency, items=items))
        return max(math.inf if one is None else one for one in found)

    if not rates_known(phase for course in courses for part in course for phase in part):
        return None
    if planned is not None and not exceeds(epsilon(planned), claimed_epsilon):
        return planned
    end = 1
    while end < most and epsilon(end) <= claimed_epsilon:
        end *= 8
    begin, numbers = end // 8, range(end // 8 + 1, min(end, most) + 1)
    return begin + bisect_left(numbers, True, key=lambda times: epsilon(times) > claimed_epsilon)
