from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
import torch

from lightning_audit.replay.records import examine_independence, largest_change
from lightning_audit.replay.step_replay import Replay

#: Gradients of four copies of a record, and of a batch with two copies, sorted by the user's code.
COPIES = torch.tensor([[3.0, 4.0], [3.0, 4.0], [3.0, 4.0], [3.0, 4.0]])
MIXED = torch.tensor([[9.0, 0.0], [3.0, 4.0], [-2.0, 1.0], [3.0, 4.0]])


def test_a_record_that_stays_what_it_is_changes_by_nothing_wherever_it_lies() -> None:
    assert largest_change(COPIES, MIXED, 2) == 0.0
    assert largest_change(COPIES, MIXED.flip(0), 2) == 0.0


def test_the_larger_change_of_two_copies_counts_in_units_of_the_norm() -> None:
    moved = MIXED.clone()
    moved[3] = torch.tensor([3.0, 4.5])
    norm = math.hypot(3.0, 4.5)
    assert largest_change(COPIES, moved, 2) == pytest.approx(0.5 / norm)
    assert largest_change(COPIES, moved, 1) == 0.0


def test_a_small_gradient_is_compared_in_units_of_the_usual_one() -> None:
    copies, mixed = 5.0 * torch.eye(4), 5.0 * torch.eye(4)
    copies[0], mixed[0] = 0.0, 0.0
    mixed[0, 0] = 1e-6
    assert largest_change(copies, mixed, 4) == pytest.approx(2e-7, rel=1e-3)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_gradients_that_are_not_finite_tell_of_copies_alone(value: float) -> None:
    broken = COPIES.clone()
    broken[1, 1] = value
    assert largest_change(broken, MIXED, 2) == math.inf
    assert largest_change(COPIES, broken, 2) is None
    assert largest_change(0 * COPIES, 0 * MIXED, 2) is None


class _Draws:
    """Replays whose records' gradients are drawn, as many numbers as ``counts`` says of a seed."""

    sizes = (2,)

    def __init__(self, counts: Callable[[int, bool], int]) -> None:
        self._counts, self.steps = counts, 0

    def allow(self, steps: int) -> None:
        pass

    def run(self, batches: Sequence[torch.Tensor], seed: int, *, keep: int) -> Replay:
        (x,) = batches
        self.steps += 1
        mixed = bool((x != x[0]).any())
        marks = [("start", 0), ("clipping", self._counts(seed, mixed))]
        draw = torch.Generator().manual_seed(seed + mixed)
        return Replay(rows=len(x), gradients=[torch.randn(len(x), 2, generator=draw)], marks=marks)


@pytest.mark.parametrize(
    ("counts", "found"),
    [
        (lambda seed, mixed: 8, True),
        # Draws that follow the data, as by rejection, are as many under the first seed by chance.
        (lambda seed, mixed: 8 + mixed * (seed != 3), False),
        (lambda seed, mixed: 8 + mixed, False),
    ],
)
def test_draws_that_follow_the_data_are_no_coupling_where_they_are_as_many_by_chance(
    counts: Callable[[int, bool], int], *, found: bool
) -> None:
    batch = torch.arange(16.0).reshape(8, 2)
    answer = examine_independence(_Draws(counts), batch, 0.01, seed=3)
    assert bool(answer.findings) == found
    assert bool(answer.reason) != found
