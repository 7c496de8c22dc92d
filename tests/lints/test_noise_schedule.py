"""Noise that follows a scheduler of Opacus, and noise that only looks like it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from opacus.optimizers import DPOptimizer
from opacus.schedulers import ExponentialNoise, LambdaNoise, StepNoise

from lightning_audit.accounting.history import Phase
from lightning_audit.lints.settings import changes_of_noise, follows_a_scheduler

Changes = list[tuple[float, int]]


def private(noise_multiplier: float = 2.0) -> DPOptimizer:
    inner = torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=0.1)
    return DPOptimizer(
        inner, noise_multiplier=noise_multiplier, max_grad_norm=1.0, expected_batch_size=4
    )


def run(optimizer: DPOptimizer, steps: int, is_due: Callable[[int], bool], scheduler: Any):
    """The noise of steps, where the scheduler is stepped behind those that are due, from 1."""
    runs = []
    for number in range(1, steps + 1):
        runs.append(Phase(optimizer.noise_multiplier, 0.1, 1))
        if is_due(number):
            scheduler.step()
    return changes_of_noise(runs)


SCHEDULERS = [
    lambda o: ExponentialNoise(o, gamma=0.9),
    lambda o: LambdaNoise(o, noise_lambda=lambda e: 1.0 / (1.0 + e // 2)),
    lambda o: StepNoise(o, step_size=3, gamma=0.8),
]


@pytest.mark.parametrize("each", [1, 7])
@pytest.mark.parametrize("make", SCHEDULERS)
def test_a_scheduler_stepped_at_a_fixed_distance_is_followed(make: Any, each: int) -> None:
    optimizer = private()
    scheduler = make(optimizer)
    changes = run(optimizer, 60, lambda number: number % each == 0, scheduler)
    assert len(changes) > 1
    assert follows_a_scheduler(changes, optimizer)


@pytest.mark.parametrize("make", SCHEDULERS)
def test_a_scheduler_stepped_where_something_else_decides_is_not(make: Any) -> None:
    optimizer = private()
    scheduler = make(optimizer)
    odd = {7, 14, 15, 28, 36, 40, 41, 44, 52}
    changes = run(optimizer, 60, odd.__contains__, scheduler)
    assert not follows_a_scheduler(changes, optimizer)


def test_a_lambda_that_gives_another_value_when_it_is_asked_again_is_not_followed() -> None:
    optimizer, losses = private(), iter(range(100))
    scheduler = LambdaNoise(optimizer, noise_lambda=lambda _: 1.0 / (1.0 + next(losses)))
    changes = run(optimizer, 20, lambda _: True, scheduler)
    assert not follows_a_scheduler(changes, optimizer)


def test_a_lambda_that_fails_is_not_followed() -> None:
    optimizer = private()
    scheduler = LambdaNoise(optimizer, noise_lambda=lambda e: 1.0 / (1.0 + e))
    changes = run(optimizer, 20, lambda _: True, scheduler)

    def fails(_: int) -> float:
        raise IndexError

    scheduler.noise_lambda = fails
    assert not follows_a_scheduler(changes, optimizer)


class ByTheLoss(ExponentialNoise):
    """A subclass may go by anything."""


@pytest.mark.parametrize("kind", [None, ByTheLoss])
def test_changes_without_a_known_scheduler_follow_none(kind: Any) -> None:
    optimizer, others = private(), private()
    ExponentialNoise(others, gamma=0.9)
    scheduler = kind and kind(optimizer, gamma=0.9)
    changes: Changes = [(2.0, 5), (2.0 * 0.9, 5)]
    assert not follows_a_scheduler(changes, optimizer)
    assert scheduler is None or scheduler.last_epoch == 0


def test_a_change_beside_the_scheduler_is_not_followed() -> None:
    optimizer = private()
    scheduler = ExponentialNoise(optimizer, gamma=0.9)
    changes = run(optimizer, 30, lambda number: number % 5 == 0, scheduler)
    assert follows_a_scheduler(changes, optimizer)
    lowered = [
        (sigma * (0.7 if n == 3 else 1.0), steps) for n, (sigma, steps) in enumerate(changes)
    ]
    assert not follows_a_scheduler(lowered, optimizer)


def test_equal_noise_at_other_rates_is_no_change() -> None:
    runs = [Phase(1.0, 0.1, 3), Phase(1.0, 0.2, 4), Phase(0.5, 0.2, 1)]
    assert changes_of_noise(runs) == [(1.0, 7), (0.5, 1)]
