from __future__ import annotations

import math

import pytest
import torch

from lightning_audit.examine.record_independence import largest_change

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
