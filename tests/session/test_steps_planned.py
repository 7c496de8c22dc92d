from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from lightning_audit.dpsgd.protocol import StepClaim
from lightning_audit.layout import Direction, Part
from lightning_audit.record.store import DROPPED, EARLIER, INJECTED, NOT_PLANNED
from lightning_audit.session.step import Located, PlannedStep

HALF = 0.5**0.5
#: Two canaries over six entries: the first and the third; the second.
LOCATED = Located(np.array([0, 0, 1]), np.array([0, 2, 1]), np.array([HALF, -HALF, 1.0]))
DIRECTIONS = [
    Direction((Part(0, np.array([0, 2]), np.array([HALF, -HALF])),)),
    Direction((Part(0, np.array([1]), np.array([1.0])),)),
]
CLAIM = StepClaim(noise_multiplier=1.0, max_grad_norm=3.0, scale=8.0)
PLAN = PlannedStep(CLAIM, np.array([1.0, 0.0]), DIRECTIONS, INJECTED, LOCATED)


def test_what_canaries_add_is_the_clipping_norm_over_the_divisor_along_those_that_are_in() -> None:
    added = PLAN.amounts(2.0, 4)
    assert added == pytest.approx([1.5 * HALF, 0.0, -1.5 * HALF, 0.0])
    assert replace(PLAN, status=DROPPED).amounts(2.0, 4) is None
    assert replace(PLAN, coins=np.zeros(2)).amounts(2.0, 4) is None


def test_a_canary_that_was_taken_out_counts_as_read_where_it_came_out() -> None:
    values = np.array([0.4, 7.0, 0.2, 5.0])
    rest = [HALF * 0.2, 7.0]
    assert PLAN.readings(values, None) == pytest.approx([1.0 + rest[0], rest[1]])
    dead = np.array([False, False, True, True])
    assert PLAN.readings(values, dead) == pytest.approx([0.5 + rest[0], rest[1]])
    assert replace(PLAN, status=NOT_PLANNED).readings(values, None).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("adds", [True, False])
def test_only_what_this_process_added_is_taken_out_of_its_sums(adds: bool) -> None:
    sums = [torch.zeros(4)]
    replace(PLAN, adds=adds).take_out(sums)
    taken = [-3.0 * HALF, 0.0, 3.0 * HALF, 0.0] if adds else [0.0] * 4
    assert sums[0].tolist() == pytest.approx(taken)


def test_rows_turn_and_the_middle_one_is_shorter() -> None:
    directions = [Direction((Part(0, np.array([i]), np.ones(1)),)) for i in range(4)]
    coins = np.array([1.0, 0.0, 1.0, 1.0])
    plan = PlannedStep(CLAIM, coins, directions, INJECTED, turn=4, shorter=0.25)
    at = [(int(row.parts[0].index[0]), row.norm()) for row in plan.rows]
    assert at == [(2, 1.0), (3, 0.25), (0, 1.0)]
    # What is taken out of the clipped sum is the clipping norm of each, in the same order.
    assert [d.norm() for d in plan.chosen] == [1.0, 1.0, 1.0]
    assert replace(plan, adds=False).rows == []
    assert replace(plan, coins=np.zeros(4)).rows == []


@pytest.mark.parametrize(
    ("status", "meant", "recorded"),
    [(INJECTED, False, INJECTED), (INJECTED, True, EARLIER), (DROPPED, True, DROPPED)],
)
def test_the_record_says_which_part_was_drawn_and_not_which_one_was_entered(
    status: int, meant: bool, recorded: int
) -> None:
    for earlier in (False, True):
        plan = replace(PLAN, status=status, earlier=earlier, meant=meant)
        assert plan.recorded == recorded
