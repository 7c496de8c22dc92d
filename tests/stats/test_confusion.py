from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from refused_calls import refusals

from lightning_audit.stats._arguments import ConfusionCounts


def test_scores_above_the_threshold_are_guessed_in() -> None:
    rng = np.random.default_rng(0)
    inside, outside = rng.integers(0, 9, 50) / 2, rng.integers(0, 7, 40) / 2
    cuts = np.array([[0.0, 1.5], [2.25, -1.0]])
    counts = ConfusionCounts.from_scores(inside, outside, cuts)
    assert counts.shape == (2, 2)
    for i, j in itertools.product(range(2), range(2)):
        assert counts.tp[i, j] == np.sum(inside > cuts[i, j])
        assert counts.fp[i, j] == np.sum(outside > cuts[i, j])
    assert np.all(counts.n_in == 50)
    assert np.all(counts.n_out == 40)


def test_counts_cannot_be_changed_after_the_check() -> None:
    counts = ConfusionCounts(np.array([1, 2]), 3, 4, 5)
    with pytest.raises(ValueError, match="read-only"):
        counts.fn[0] = -1


def test_counts_are_equal_by_value_and_have_no_hash() -> None:
    counts = ConfusionCounts([1, 2], 3, 4, 5)
    assert counts == ConfusionCounts([1, 2], [3, 3], 4, 5)
    assert counts != ConfusionCounts([1, 3], 3, 4, 5)
    assert counts != (1, 3, 4, 5)
    with pytest.raises(TypeError, match="unhashable"):
        hash(counts)


test_what_cannot_be_counted_is_refused = refusals(
    (lambda: ConfusionCounts(-1, 2, 3, 4), "fn=-1 must be a whole number >= 0; pass event"),
    (lambda: ConfusionCounts(1, 0.5, 3, 4), r"tp=0\.5 must hold whole numbers >= 0; pass"),
    (lambda: ConfusionCounts(1, 2, 3, [True]), r"tn=\[True\] must hold whole numbers"),
    (
        lambda: ConfusionCounts.from_scores([1.0, math.nan], [0.0], 0.5),
        "scores_in holds nan, must hold numbers; a failed reading",
    ),
    (
        lambda: ConfusionCounts.from_scores([1.0], [[0.0]], 0.5),
        r"scores_out has shape \(1, 1\), must be one vector of scores; pool",
    ),
)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda many: ConfusionCounts(many, 1, 1, 1), "fn"),
        (lambda many: ConfusionCounts(1, 1, np.full(500, 0.5), 1), "fp"),
    ],
)
def test_large_arguments_are_shown_in_a_line(call, name: str) -> None:
    many = ConfusionCounts(*(np.arange(500) + i for i in range(4)))
    with pytest.raises(ValueError, match=f"^{name}=.* must ") as caught:
        call(many)
    assert len(str(caught.value)) < 250
    assert "\n" not in str(caught.value)
