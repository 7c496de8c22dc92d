"""Tests whether the steps' noise follows an Opacus scheduler, stepped every n steps."""

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
    """Return consecutive noise multipliers, each with its number of steps.

    Args:
        runs: phases of equal steps, in order.
    """
    by_noise = groupby(runs, key=lambda phase: phase.noise_multiplier)
    return [(sigma, sum(phase.steps for phase in phases)) for sigma, phases in by_noise]


def follows_a_scheduler(changes: Sequence[tuple[float, int]], optimizer: Any) -> bool:
    """Return whether a scheduler gives the noise of all steps from the number of steps alone.

    Subclasses of Opacus' schedulers are not accepted, since they may use other data. The function
    of a `LambdaNoise` is evaluated again and must return the same values.

    Args:
        changes: noise multipliers in order, each with its number of steps.
        optimizer: the private optimizer.
    """
    own = {id(each) for each in chain(optimizer)}
    # `type`, not `isinstance`: a proxy may imitate the class of its object.
    known = [each for each in gc.get_objects() if type(each) in _KNOWN]
    return any(_follows(changes, each) for each in known if id(each.optimizer) in own)


def _follows(changes: Sequence[tuple[float, int]], scheduler: Any) -> bool:
    try:
        planned = _planned(scheduler, changes[0][0])
    except Exception as error:  # raised by the user's function
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
    """Return the noise multipliers that a scheduler has set so far, in order."""
    numbers = range(scheduler.last_epoch + 1)
    if type(scheduler) is LambdaNoise:
        return [scheduler.base_noise_multiplier * scheduler.noise_lambda(n) for n in numbers]
    every = scheduler.step_size if type(scheduler) is StepNoise else 1
    planned = [first]
    for number in numbers[1:]:
        planned.append(planned[-1] * (1.0 if number % every else scheduler.gamma))
    return planned
