from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from lightning_audit.hooks.gradient_tap import WeightWatch

INDEX = {0: np.arange(0, 40), 1: np.array([0, 2])}


def params() -> list[nn.Parameter]:
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(8, 10)), nn.Parameter(torch.randn(3))]


def read(weights: list[nn.Parameter]) -> np.ndarray:
    pairs = zip(weights, INDEX.values(), strict=True)
    flat = [w.detach().flatten().double().numpy()[i] for w, i in pairs]
    return np.concatenate(flat)


@pytest.mark.parametrize("contiguous", [True, False])
def test_moves_are_those_of_the_update_and_those_between_updates(contiguous: bool) -> None:
    weights = params()
    if not contiguous:
        weights[0] = nn.Parameter(torch.randn(10, 8).t())
    watch = WeightWatch(weights, INDEX)
    first = read(weights)
    watch.start()
    with torch.no_grad():
        weights[0] += 1.0
    moves = watch.end()
    assert moves.outside is None
    assert moves.start == pytest.approx(first)
    assert moves.update == pytest.approx(read(weights) - first)
    with torch.no_grad():
        weights[1] -= 0.5
    watch.start()
    outside = watch.end().outside
    assert outside[:40] == pytest.approx(0.0)
    assert outside[40:] == pytest.approx(-0.5)


def test_later_steps_are_watched_now_and_then_and_say_nothing_of_what_is_between() -> None:
    watch = WeightWatch(params(), INDEX)
    seen = []
    for _ in range(140):
        watch.start()
        seen.append(watch.end())
    assert all(moves is not None for moves in seen[:100])
    assert [i for i, moves in enumerate(seen[100:], 100) if moves] == [104, 112, 120, 128, 136]
    assert all(moves.outside is None for moves in seen[100:] if moves)
