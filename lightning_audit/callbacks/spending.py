"""The epsilons of a run: claimed, spent, proved."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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

    The accountant's history counts where it is longer than what this audit saw (an earlier
    training of the same model), and not where it lost steps.

    Args:
        history: phases of (noise_multiplier, sample_rate, steps) that the audit saw.
        link: the accountant, None if there is none.
        delta: the delta.

    Returns:
        Epsilon, None where a sample rate is unknown.
    """
    recorded: Any = tuple(link.accountant.history) if link else ()
    longer = sum(n for *_, n in recorded) >= sum(n for *_, n in history)
    return epsilon_at_ratio(recorded if recorded and longer else history, 1.0, delta)


def epsilon_at_ratio(history: History, ratio: float, delta: float) -> float | None:
    """Epsilon of a history whose every noise multiplier is divided by ``ratio``.

    Args:
        history: phases of (noise_multiplier, sample_rate, steps).
        ratio: a lower bound on leakage over claim, as the betting test gives it; 0 gives 0.
        delta: the delta.

    Returns:
        Epsilon, None where a sample rate is unknown.
    """
    if any(rate is None for _, rate, _ in history):
        return None
    if ratio == 0.0 or not history:
        return 0.0
    phases = [Phase(sigma / ratio, rate, int(n)) for sigma, rate, n in history if rate]
    return epsilon_of_history(compress(phases), delta)
