"""All generators are set at the places of a step, and marks tell how many numbers were drawn."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from lightning_audit.replay.step_replay import RandomPlaces, Replay, same_numbers
from lightning_audit.replay.training_state import TrainingState

OWN = SimpleNamespace(
    torch=torch.Generator().manual_seed(1),
    numpy=np.random.default_rng(1),
    legacy=np.random.RandomState(1),
    python=random.Random(1),
    system=random.SystemRandom(),
)
DRAWS: dict[str, Callable[[], Any]] = {
    "torch": lambda: torch.rand(1).item(),
    "NumPy": lambda: np.random.rand(),
    "random": lambda: random.random(),
    "an own torch.Generator": lambda: torch.rand(1, generator=OWN.torch).item(),
    "an own numpy.random.Generator": lambda: OWN.numpy.random(),
    "an own numpy.random.RandomState": lambda: OWN.legacy.rand(),
    "an own random.Random": lambda: OWN.python.random(),
    "an own random.SystemRandom": lambda: OWN.system.random(),
    "os.urandom": lambda: os.urandom(4),
}


def replayed(draw: Callable[[], Any], before: int, after: int, seed: int = 3) -> Any:
    """What is drawn at the cut, and the replay, where so many were drawn before."""
    state, found = TrainingState([OWN]), Replay(releases=[torch.zeros(1)])
    places = RandomPlaces(state, seed, found)
    with state.entropy:
        places.begin()
        for _ in range(before):
            draw()
        places.passes("clipping")
        clipped = draw()
        for _ in range(after):
            draw()
        places.passes("cut")
        drawn = clipped, draw()
    state.put_back()
    return drawn, found


@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.parametrize("counts", [(1, 0), (0, 1)])
def test_one_more_draw_shows_and_moves_nothing_behind_the_place(
    name: str, counts: tuple[int, int]
) -> None:
    usual, one = replayed(DRAWS[name], 2, 2)
    more, other = replayed(DRAWS[name], 2 + counts[0], 2 + counts[1])
    assert usual == more
    assert not same_numbers(one, other)
    assert same_numbers(one, replayed(DRAWS[name], 2, 2)[1])
    assert usual != replayed(DRAWS[name], 2, 2, seed=4)[0]
    assert one.drew
    assert not replayed(DRAWS[name], 0, 2)[1].drew


def test_a_place_that_counts_once_sets_and_marks_nothing_the_second_time() -> None:
    state, found = TrainingState([]), Replay()
    places = RandomPlaces(state, 1, found)
    places.begin()
    places.passes("clipping", once=True)
    first = torch.rand(2)
    places.passes("clipping", once=True)
    assert not torch.equal(first, torch.rand(2))
    assert [place for place, _ in found.marks] == ["start", "clipping"]


def test_a_second_step_has_its_own_numbers_whatever_the_first_drew() -> None:
    seen = []
    for draws in (0, 3):
        found = Replay()
        places = RandomPlaces(TrainingState([]), 1, found)
        places.begin()
        torch.rand(1 + draws)
        places.passes("cut")
        places.begin_second()
        seen.append(torch.rand(2).tolist())
        places.passes("cut")
        seen[-1] += torch.rand(2).tolist()
        assert [place for place, _ in found.marks] == ["start", "cut"]
    assert seen[0] == seen[1]


def test_other_numbers_before_the_cut_leave_those_behind_it() -> None:
    seen = []
    for others in ({}, {"clipping": 1, "noise": 1}, {"clipping": 2, "noise": 2}):
        places = RandomPlaces(TrainingState([]), 1, Replay(), others)
        places.begin()
        drawn = [torch.rand(1).item()]
        for place in ("clipping", "noise", "cut"):
            places.passes(place)
            drawn.append(torch.rand(1).item())
        places.begin_second()
        places.passes("noise")
        seen.append([*drawn, torch.rand(1).item()])
    usual, same, other = seen
    assert usual == same
    assert [a == b for a, b in zip(usual, other, strict=True)] == [True, False, False, True, True]


def test_a_step_that_is_not_taken_is_compared_up_to_where_it_went() -> None:
    one = Replay(releases=[torch.zeros(1)], marks=[("start", 1), ("clipping", 2), ("cut", 3)])
    assert same_numbers(one, Replay(marks=[("start", 1), ("clipping", 2)]))
    assert not same_numbers(one, Replay(marks=[("start", 1), ("clipping", 4)]))
