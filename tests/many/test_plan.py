"""Coins are fair and each training's own; seeds are distinct; blocks are part of the plan."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from lightning_audit.many.store import Plan, block_size


def test_a_plan_depends_on_its_seed_alone():
    assert Plan(3, 10, 2).training(7) == Plan(3, 1000, 50).training(7)
    one, other = Plan(3, 64, 2), Plan(4, 64, 2)
    assert any(one.training(n).coins != other.training(n).coins for n in range(64))


@pytest.mark.parametrize("seed", [0, 1, 12345678901234567890])
def test_coins_are_fair_and_a_coin_says_nothing_about_the_next(seed):
    plan = Plan(seed, 4000, 20, canaries=2)
    coins = np.array([plan.training(n).coins for n in range(4000)])
    assert stats.binomtest(int(coins.sum()), coins.size).pvalue > 1e-4
    for one, other in ((coins[:-1, 0], coins[1:, 0]), (coins[:, 0], coins[:, 1])):
        assert stats.binomtest(int((one == other).sum()), one.size).pvalue > 1e-4


def test_coins_do_not_follow_from_the_seeds_of_trainings():
    trainings = [Plan(0, 4000, 20).training(n) for n in range(4000)]
    for bit in range(32):
        same = sum((t.seed >> bit & 1) == t.coins[0] for t in trainings)
        assert stats.binomtest(same, 4000).pvalue > 1e-5


def test_no_two_trainings_have_one_seed_and_every_library_takes_it():
    plan = Plan(5, 10**6, 20)
    # Numbers of one high half, and of many high halves.
    numbers = [*range(70_000), *range(70_000, 2**32, 2**17)]
    seeds = {plan._seed(number) for number in numbers}
    assert len(seeds) == len(numbers)
    assert 0 <= min(seeds) < max(seeds) < 2**32


@pytest.mark.parametrize(
    ("trainings", "size"), [(2, 1), (39, 1), (100, 5), (1000, 20), (10**5, 20)]
)
def test_a_block_is_at_most_a_twentieth_of_the_plan(trainings, size):
    assert block_size(trainings) == size


def test_blocks_hold_each_training_once():
    plan = Plan(0, 11, 4)
    assert [[t.number for t in block] for block in plan.blocks()] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9, 10],
    ]
