"""Weights that move between updates as by noise, and all that moves them otherwise."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from lightning_audit.hooks.gradient_tap import Moves, WeightWatch
from lightning_audit.hooks.update_tap import MovesOutside

INDEX = {0: np.arange(0, 40), 1: np.array([0, 2])}


def moved(change, steps: int = 20) -> bool:
    """Steps of SGD with a gradient of the data alone, and ``change`` of the weights after each."""
    torch.manual_seed(0)
    weights = [nn.Parameter(torch.randn(8, 10)), nn.Parameter(torch.randn(3))]
    watch, seen = WeightWatch(weights, INDEX), MovesOutside()
    rng = torch.Generator().manual_seed(1)
    for step in range(steps):
        watch.start()
        with torch.no_grad():
            for w in weights:
                w -= 0.01 * 0.1 * torch.randn(w.shape, generator=rng)
        moves = watch.end()
        seen.update(moves, 0.1 * np.ones(42))
        with torch.no_grad():
            change(weights, rng, step)
    return seen.like_noise


def test_noise_on_the_weights_is_seen() -> None:
    def noise(weights, rng, step):
        for w in weights:
            w -= 0.01 * torch.randn(w.shape, generator=rng)

    assert moved(noise)


@pytest.mark.parametrize(
    "change",
    [
        lambda weights, rng, step: None,
        lambda weights, rng, step: [w.mul_(0.99) for w in weights],
        lambda weights, rng, step: [w.mul_(1.0) for w in weights],
        lambda weights, rng, step: [w.add_(0.3) for w in weights] if step % 5 == 0 else None,
    ],
    ids=["nothing", "decay", "same", "sometimes"],
)
def test_what_else_moves_weights_is_not_taken_for_noise(change) -> None:
    assert not moved(change)


def test_few_steps_tell_nothing_and_one_that_is_not_finite_is_not_counted() -> None:
    seen = MovesOutside()
    shaken = Moves(np.ones(4), np.array([1.0, 0.0, 0.0, 0.0]), np.array([0.0, 3.0, -3.0, 3.0]))
    for _ in range(2):
        seen.update(shaken, np.ones(4))
    seen.update(shaken, np.array([1.0, 1.0, 1.0, np.nan]))
    assert not seen.like_noise
    seen.update(shaken, np.ones(4))
    assert seen.like_noise
