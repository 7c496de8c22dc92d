"""Does the noise of steps follow a scheduler of Opacus, stepped at a fixed number of steps?"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from opacus.schedulers import ExponentialNoise, LambdaNoise, StepNoise

from lightning_audit.accounting.phases import Phase
from lightning_audit.dpsgd.opacus import chain
from lightning_audit.taps.boundary import raised_in_audit

_KNOWN = (ExponentialNoise, LambdaNoise, StepNoise)


def changes_of_noise(runs: Iterable[Phase]) -> list[tuple[float, int]]:
    """The noise multipliers of steps in their order, each with the number of its steps.

    Args:
        runs: of equal steps.
    """
    by_noise = groupby(runs, key=lambda phase: phase.noise_multiplier)
    return [(sigma, sum(phase.steps for phase in phases)) for sigma, phases in by_noise]


def follows_a_scheduler(changes: Sequence[tuple[float, int]], optimizer: Any) -> bool:
    """Whether the noise of all steps is what a scheduler makes of the number of steps.

    A subclass may go by anything, and so may the function of a `LambdaNoise`: asked again, it must
    give what it gave.

    Args:
        changes: noise multipliers in their order, each with the number of its steps.
        optimizer: the private optimizer.
    """
    own = {id(each) for each in chain(optimizer)}
    # By the type alone: objects of others may answer for what they stand for.
    known = [each for each in gc.get_objects() if type(each) in _KNOWN]
    return any(_follows(changes, each) for each in known if id(each.optimizer) in own)


def _follows(changes: Sequence[tuple[float, int]], scheduler: Any) -> bool:
    try:
        planned = _planned(scheduler, changes[0][0])
    except Exception as error:  # of a function of the user's
        if raised_in_audit(error):
            raise
        return False
    steps = sum(number for _, number in changes)
    first = next((n for n, sigma in enumerate(planned) if sigma != planned[0]), 0)
    each, rest = divmod(changes[0][1], first) if first else (0, 1)
    if rest:
        return False
    expected = [(planned[n // each], 1) for n in range(min(steps, len(planned) * each))]
    merged = [
        (sigma, len(list(same))) for sigma, same in groupby(expected, key=lambda pair: pair[0])
    ]
    return len(expected) == steps and merged == list(changes)


def _planned(scheduler: Any, first: float) -> list[float]:
    """The noise multipliers that a scheduler has set, in their order, from its first on."""
    numbers = range(scheduler.last_epoch + 1)
    if type(scheduler) is LambdaNoise:
        return [scheduler.base_noise_multiplier * scheduler.noise_lambda(n) for n in numbers]
    every = scheduler.step_size if type(scheduler) is StepNoise else 1
    planned = [first]
    for number in numbers[1:]:
        planned.append(planned[-1] * (1.0 if number % every else scheduler.gamma))
    return planned
