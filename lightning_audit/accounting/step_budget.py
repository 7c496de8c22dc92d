"""How many more steps a claimed epsilon leaves to a training."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace

from lightning_audit import _validate
from lightning_audit.accounting.composition import Adjacency
from lightning_audit.accounting.margin import exceeds
from lightning_audit.accounting.phases import Phase
from lightning_audit.accounting.spending import composed_epsilon

#: Steps of which more are not asked for where nobody says how many are planned.
_LONGEST = 10**6


def steps_within(
    claimed_epsilon: float,
    delta: float,
    history: Sequence[Phase],
    coming: Sequence[Phase],
    *,
    planned: int | None = None,
    adjacency: Adjacency = "add_remove",
) -> int | None:
    """How many times ``coming`` may follow a history until the claimed epsilon is exceeded.

    Args:
        claimed_epsilon: what all steps together may cost, > 0.
        delta: its delta, in (0, 1).
        history: the steps so far.
        coming: what comes next, again and again: a step of each private optimizer.
        planned: how often it is planned to come, >= 1; no larger number is looked for, and none
            above a million where it is None.
        adjacency: see `lightning_audit.accounting.composition.epsilon_of_history`.

    Returns:
        The number, 0 where the next one is too much, ``planned`` where all fit; None where a sample
        rate is unknown.

    Raises:
        ValueError: ``planned`` is no whole number >= 1.

    Example:
        >>> steps_within(1.0, 1e-5, (), [Phase(1.0, 0.01, 1)], planned=100)
        100
        >>> steps_within(1.0, 1e-5, (), [Phase(0.5, 0.5, 1)], planned=100)
        0
    """
    most = _LONGEST if planned is None else _validate.positive_int("planned", planned)

    def beyond(times: int) -> bool:
        rounds = [replace(phase, steps=phase.steps * times) for phase in coming]
        epsilon = composed_epsilon([*history, *rounds], delta, adjacency)
        return epsilon is not None and exceeds(epsilon, claimed_epsilon)

    if any(phase.sample_rate is None for phase in (*history, *coming)):
        return None
    if planned is not None and not beyond(planned):
        return planned
    end = 1
    while end < most and not beyond(end):
        end *= 8
    begin = end // 8
    return begin + bisect_left(range(begin + 1, min(end, most) + 1), True, key=beyond)
