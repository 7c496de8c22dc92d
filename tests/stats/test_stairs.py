from __future__ import annotations

import numpy as np
import pytest
from corner_bound import bound, mu_of_counts
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_audit.stats.counts import ConfusionCounts
from lightning_audit.stats.thresholds import (
    Fixed,
    Maximum,
    MultiSplit,
    Simultaneous,
    Split,
    Stairs,
    ThresholdChoice,
    threshold_bound,
)


def test_a_part_and_the_rest_are_all_scores_at_every_threshold() -> None:
    rng = np.random.default_rng(0)
    inside, outside = np.sort(rng.normal(1, 1, 30)), np.sort(rng.normal(0, 1, 40))
    stairs = Stairs.of(inside, outside, np.linspace(-3, 4, 9))
    part = stairs.part(rng, 0.3)
    assert (part.n_in, part.n_out) == (9, 12)
    for i in range(9):
        rest, every = stairs.without(part, i), stairs.counts([i], [i])
        assert (rest.n_in[0], rest.n_out[0]) == (21, 28)
        assert rest.fn + part.counts(i, i).fn == every.fn == np.sum(inside <= stairs.thresholds[i])
        assert rest.fp + part.counts(i, i).fp == every.fp == np.sum(outside > stairs.thresholds[i])


def test_equal_counts_stand_for_their_lowest_threshold() -> None:
    stairs = Stairs.of(np.array([1.0]), np.array([2.0]), np.array([0.0, 0.5, 1.0, 1.5, 2.0]))
    assert [stairs.first_like(i) for i in range(5)] == [0, 0, 2, 2, 4]


@given(
    st.integers(0, 2**32),
    st.sampled_from([0.0, 0.3, 2.0]),
    st.sampled_from([Maximum(), Simultaneous("dkw"), Split(), MultiSplit(splits=2)]),
)
@settings(max_examples=30)
def test_leaving_out_thresholds_that_cannot_win_changes_nothing(
    seed: int, mu: float, choice: ThresholdChoice
) -> None:
    rng = np.random.default_rng(seed)
    # Rounded to thousandths: ties within and between the groups, and thousands of thresholds.
    inside, outside = (mu + rng.standard_normal(3000)).round(3), rng.standard_normal(4000).round(3)
    every, some = (bound(inside, outside, choice, monotone=monotone) for monotone in (False, True))
    assert every == some


@pytest.mark.parametrize("mu", [0.0, 1.0, 4.0])
def test_few_of_many_thresholds_are_looked_at(mu: float) -> None:
    rng = np.random.default_rng(0)
    n, looked_at = 100_000, 0

    def counted(counts: ConfusionCounts, significance: float) -> np.ndarray:
        nonlocal looked_at
        looked_at += counts.fn.size
        return mu_of_counts(counts, significance)

    scores = mu + rng.standard_normal(n), rng.standard_normal(n)
    result = threshold_bound(*scores, Maximum(), counted, 0.05, monotone=True)
    assert result.value >= bound(*scores, Fixed(mu / 2)).value
    assert looked_at < 0.05 * 2 * n
