"""The number of steps that a training may still take within a claimed epsilon."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace

from lightning_audit import _validate
from lightning_audit.accounting.composition import Adjacency
from lightning_audit.accounting.margin import exceeds
from lightning_audit.accounting.phases import Phase
from lightning_audit.accounting.spending import composed_epsilon

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
            found.append(composed_epsilon([*before, *rounds], delta, adjacency))
        return max(math.inf if one is None else one for one in found)

    if any(phase.sample_rate is None for course in courses for part in course for phase in part):
        return None
    if planned is not None and not exceeds(epsilon(planned), claimed_epsilon):
        return planned
    end = 1
    while end < most and epsilon(end) <= claimed_epsilon:
        end *= 8
    begin, numbers = end // 8, range(end // 8 + 1, min(end, most) + 1)
    return begin + bisect_left(numbers, True, key=lambda times: epsilon(times) > claimed_epsilon)
