"""The epsilons of a run: claimed, spent, proved."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakKeyDictionary

import numpy as np

from lightning_audit.accounting.composition import Adjacency, epsilon_of_history
from lightning_audit.accounting.least_cost import cheapest
from lightning_audit.accounting.margin import RESOLUTION
from lightning_audit.accounting.phases import Phase, compress, leaking, merge, rates_known
from lightning_audit.accounting.step_history import StepHistory
from lightning_audit.stats.evalues.leakage_bet import ProvedPart
from lightning_audit.stats.tradeoff.renyi import renyi_divergence

if TYPE_CHECKING:
    from lightning_audit.dpsgd.accountant_link import AccountantLink

_log = logging.getLogger(__name__)

#: Parts of a run that are composed for one lower bound.
MOST_COMPOSED = 3
#: Orders of the Rényi divergences by which they are chosen.
_ORDERS = (2, 4, 8, 16, 32)

#: Steps of which Opacus' prv accountant is asked, and of which lower bounds are composed, at most.
_LONGEST_ASKED, _LONGEST_PROVED = 10**7, 10**6


@dataclass(frozen=True)
class EpsilonClaim:
    """The claimed epsilon, None if nobody claims one, and in words who claims it."""

    claimed_epsilon: float | None
    source: str


_NOBODY = EpsilonClaim(None, "nobody")


def epsilon_claim(
    claimed_epsilon: float | None,
    links: Sequence[AccountantLink],
    delta: float,
    *,
    optimizers: int = 1,
) -> EpsilonClaim:
    """What is claimed: by the user, else by the accountants for the steps so far.

    Opacus' prv accountants compose as `epsilon_spent` does, and slower: their histories are
    composed here, to within a percent of what they say.

    Several accountants are one: the history of all of them, given to an accountant of their kind.
    Where they differ in kind, or are of a kind that cannot compose different steps, their epsilons
    at equal shares of delta are summed.

    Args:
        claimed_epsilon: the user's claim, None to ask the accountants.
        links: the accountants.
        delta: the delta of the claim.
        optimizers: number of private optimizers.
    """
    if claimed_epsilon is not None:
        return EpsilonClaim(claimed_epsilon, "the claim")
    asked = [link.accountant for link in links if link.accountant.history]
    if any(_takes_too_long(a) and not _is_of_opacus(a) for a in asked):
        _log.warning(
            "Opacus' prv accountant is not asked for the epsilon of more than %g steps, which "
            "would take minutes; claimed_epsilon states one",
            _LONGEST_ASKED,
        )
        return _NOBODY
    if not asked:
        return _NOBODY
    kinds = sorted({accountant.mechanism() for accountant in asked})
    if kinds == ["prv"] and all(map(_is_of_opacus, asked)):
        epsilon = composed_epsilon(_steps_of(asked), delta)
        if epsilon is not None:
            return EpsilonClaim(epsilon, "the history of Opacus' prv accountant")
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
        # Steps taken in turn make a phase each, which some accountants take minutes to compose.
        together = copy.copy(asked[0])
        together.history = [astuple(phase) for phase in merged]
        return EpsilonClaim(float(together.get_epsilon(delta)), name)
    except Exception as error:  # some accountants fail on short histories; training goes on
        _log.warning("%s gave no epsilon: %s", name, error)
        return _NOBODY


def _is_of_opacus(accountant: Any) -> bool:
    """Whether it is as Opacus made it, and not the user's own."""
    return type(accountant).__module__.startswith("opacus.")


def _takes_too_long(accountant: Any) -> bool:
    steps = sum(int(count) for *_, count in accountant.history)
    return bool(accountant.mechanism() == "prv" and steps > _LONGEST_ASKED)


#: What accountants said last, for which history and delta.
_last_epsilons: WeakKeyDictionary[Any, tuple[object, float]] = WeakKeyDictionary()


def _epsilon_of(accountant: Any, delta: float) -> float:
    """Ask an accountant once for a history: a training ends where its last epoch did."""
    asked = (tuple(accountant.history), delta)
    known = _last_epsilons.get(accountant)
    if known is None or known[0] != asked:
        known = _last_epsilons[accountant] = (asked, float(accountant.get_epsilon(delta)))
    return known[1]


def steps_told(links: Iterable[AccountantLink]) -> list[Phase]:
    """The steps that accountants were told of, with equal phases added up."""
    return _steps_of(link.accountant for link in links)


def _steps_of(accountants: Iterable[Any]) -> list[Phase]:
    told = (phase for accountant in accountants for phase in accountant.history)
    # Opacus tells of a rate above one where more batches are added up than a pass has.
    return merge(Phase(sigma, min(rate, 1.0), int(steps)) for sigma, rate, steps in told if rate)


def costlier(
    history: Sequence[Phase],
    told: Sequence[Phase],
    delta: float,
    adjacency: Adjacency = "add_remove",
) -> Sequence[Phase]:
    """Return the steps from which the spent epsilon is composed: the history that costs more.

    The accountants' history is longer if the model was trained before. It is shorter, or has too
    much noise, if the accountants are wrong.

    Args:
        history: phases that the audit saw.
        told: phases of the accountants, see `steps_told`.
        delta: the delta.
        adjacency: see `lightning_audit.accounting.composition.epsilon_of_history`.

    Returns:
        One of the two; ``history`` if a sample rate is unknown.
    """
    if not told or set(told) == set(merge(history)):
        return history
    seen, recorded = (composed_epsilon(steps, delta, adjacency) for steps in (history, told))
    return history if seen is None or recorded is None or recorded <= seen else told


def epsilon_at_ratio(
    history: Sequence[Phase],
    ratio: float,
    delta: float,
    adjacency: Adjacency = "add_remove",
    *,
    lower: bool = True,
) -> float | None:
    """Epsilon of a history whose every noise multiplier is divided by ``ratio``.

    Args:
        history: phases in any order.
        ratio: a lower bound on leakage over claim, as the betting test gives it; 0 gives 0.
        delta: the delta.
        adjacency: see `accounting.composition.epsilon_of_history`; a lower bound for
            "add_remove" is one for "replace_one" as well.
        lower: whether a lower bound is asked for, on the low side of each approximation; of more
            than a million steps it is that of the first million.

    Returns:
        Epsilon, None where a sample rate is unknown.
    """
    if ratio == 0.0:
        return 0.0 if rates_known(history) else None
    composed = _first_steps(history) if lower else history
    return composed_epsilon(leaking(composed, ratio), delta, adjacency, "up" if lower else "mean")


def epsilon_of_parts(
    claims: StepHistory, front: Sequence[ProvedPart], delta: float
) -> float | None:
    """The largest epsilon of a first part of the run, at the least cost that is proved of it.

    Not of a ratio over the whole run: what a look proves says nothing of the steps after it, and
    steps of unlike claims may have leaked at unlike ratios; see `cheapest`. Composing takes 10 to
    400 ms, so that it is done for the `MOST_COMPOSED` parts of the largest epsilon by Rényi
    divergences at `ratio`, which order parts nearly as epsilon does; one left out proves less.

    Args:
        claims: what was claimed of the steps.
        front: what is proved, and of how many steps.
        delta: the delta.

    Returns:
        Epsilon, 0 where nothing is proved, None where a sample rate is unknown.
    """
    runs = claims.runs()
    if not rates_known(runs):
        return None
    sigma, rate, counts = (
        np.array([astuple(run) for run in runs], dtype=np.float64).reshape(-1, 3).T
    )
    begins = np.cumsum(counts) - counts

    def estimate(part: ProvedPart) -> float:
        mu = part.ratio / np.maximum(sigma, 1e-9)
        steps = np.clip(part.steps - begins, 0.0, counts)
        return min(
            float(steps @ renyi_divergence(mu, rate, order)) - math.log(delta) / (order - 1.0)
            for order in _ORDERS
        )

    largest = sorted(front, key=estimate, reverse=True)[:MOST_COMPOSED]
    found = (_least_epsilon(claims.phases(part.steps), part, delta) for part in largest)
    return max(found, default=0.0)


def _least_epsilon(taken: Sequence[Phase], part: ProvedPart, delta: float) -> float:
    """Epsilon of the cheapest steps that the bets admit, or of steps that leak alike, if less."""
    courses = [cheapest(part.logs(), taken)]
    if len(courses[0]) > 1:  # steps that leak alike are admitted by the same proof
        courses.append([p for p in leaking(taken, part.ratio) if p.noise_multiplier > 0])
    composed = (composed_epsilon(_first_steps(each), delta, rounding="up") for each in courses)
    return min(epsilon for epsilon in composed if epsilon is not None)


def _first_steps(history: Sequence[Phase]) -> list[Phase]:
    """As many steps as can be composed in seconds: they leak no more than all of them."""
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
) -> float | None:
    """Epsilon of a history, of which many noise multipliers are rounded; see `compress`.

    Args:
        history: phases in any order.
        delta: the delta.
        adjacency: see `lightning_audit.accounting.composition.epsilon_of_history`.
        rounding: "mean" for an epsilon spent, "up" for a lower bound.
        resolution: see `lightning_audit.accounting.composition.epsilon_of_history`.

    Returns:
        Epsilon, None where a sample rate is unknown.
    """
    if not rates_known(history):
        return None
    # Twelve buckets round a noise schedule's epsilon, of a steep one by about a percent.
    short = compress(history, max_phases=12, rounding=rounding)
    lower = rounding == "up"
    return epsilon_of_history(short, delta, adjacency=adjacency, lower=lower, resolution=resolution)
