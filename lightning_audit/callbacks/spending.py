"""The epsilons of a run: claimed, spent, proved."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lightning_audit.composition import Phase, compress, epsilon_of_history
from lightning_audit.dpsgd.opacus import AccountantLink

_log = logging.getLogger(__name__)

History = Sequence[tuple[float, float | None, int]]


@dataclass(frozen=True)
class ClaimedEpsilon:
    """The claim, and who makes it."""

    epsilon: float | None
    source: str


def claimed_epsilon(
    stated: float | None, link: AccountantLink | None, delta: float
) -> ClaimedEpsilon:
    """What is claimed: by the user, else by the accountant for the steps so far.

    Args:
        stated: the user's claim, None to ask the accountant.
        link: the accountant, None if there is none.
        delta: the delta of the claim.
    """
    if stated is not None:
        return ClaimedEpsilon(stated, "the claim")
    if link is None or not link.accountant.history:
        return ClaimedEpsilon(None, "nobody")
    name = f"Opacus' {link.accountant.mechanism()} accountant"
    try:
        return ClaimedEpsilon(float(link.accountant.get_epsilon(delta)), name)
    except Exception as error:  # some accountants fail on short histories; training goes on
        _log.warning("%s gave no epsilon: %s", name, error)
        return ClaimedEpsilon(None, "nobody")


def epsilon_spent(history: History, link: AccountantLink | None, delta: float) -> float | None:
    """Epsilon of all steps that ran, composed anew as privacy loss distributions.

    The larger of two: of the steps that this audit saw, and of the accountant's history, which is
    longer where the model was trained before, and shorter or of too much noise where it is wrong.

    Args:
        history: phases of (noise_multiplier, sample_rate, steps) that the audit saw.
        link: the accountant, None if there is none.
        delta: the delta.

    Returns:
        Epsilon, None where a sample rate is unknown.
    """
    seen = _composed(history, delta, "mean")
    recorded: Any = tuple(link.accountant.history) if link else ()
    if seen is None or _merged(recorded) in (set(), _merged(history)):
        return seen
    told = _composed(recorded, delta, "mean")
    return seen if told is None else max(seen, told)


def epsilon_at_ratio(history: History, ratio: float, delta: float) -> float | None:
    """Epsilon of a history whose every noise multiplier is divided by ``ratio``.

    Args:
        history: phases of (noise_multiplier, sample_rate, steps).
        ratio: a lower bound on leakage over claim, as the betting test gives it; 0 gives 0.
        delta: the delta.

    Returns:
        Epsilon, None where a sample rate is unknown.
    """
    if ratio == 0.0:
        return None if any(rate is None for _, rate, _ in history) else 0.0
    scaled = tuple((sigma / ratio, rate, steps) for sigma, rate, steps in history)
    return _composed(scaled, delta, "up")


def _composed(history: History, delta: float, rounding: Literal["mean", "up"]) -> float | None:
    if any(rate is None for _, rate, _ in history):
        return None
    # Twelve buckets leave a noise schedule's epsilon right to half a percent.
    short = compress(_phases(history), max_phases=12, rounding=rounding)
    return epsilon_of_history(short, delta)


def _merged(history: History) -> set[Phase]:
    """The phases with equal ones merged, in no order and without any rounding."""
    return set(compress(_phases(history), max_phases=max(len(history), 1)))


def _phases(history: History) -> list[Phase]:
    return [Phase(sigma, rate, int(steps)) for sigma, rate, steps in history if rate]
