import math
from functools import partial

import numpy as np
import pytest
from refused_calls import refusals, refused

from lightning_audit import _validate
from lightning_audit.stats._arguments import (
    ConfusionCounts,
    delta_or_zero,
    each,
    least_nonnegative,
    like_input,
    non_negative,
    places,
    significance_level,
    whole_counts,
)

test_impossible_counts_are_refused = refused(
    whole_counts,
    (-1, 5, r"successes=-1 must be a whole number >= 0"),
    (0.5, 5, r"successes=0\.5 must be a whole number >= 0; pass event counts"),
    (1, float("inf"), r"trials=inf must be a whole number"),
    (6, 5, r"successes=6 must be at most trials=5"),
    (np.array([True]), 5, r"successes has dtype bool"),
)


@pytest.mark.parametrize("at", range(5))
@pytest.mark.parametrize("wrong", [np.nan, -1.0])
def test_one_wrong_element_anywhere_is_refused(at, wrong):
    values = np.array([3.0, 0.0, 9.0, 1.0, np.inf])
    assert each(non_negative, "mu", values) is not None
    values[at] = wrong
    with pytest.raises(ValueError, match="mu="):
        each(non_negative, "mu", values)


def test_shapes_are_kept_and_only_numbers_become_floats():
    for value, shape in ((2, ()), (np.array(2), ()), (np.ones((2, 0)), (2, 0))):
        assert each(_validate.non_negative, "mu", value).shape == shape
    assert type(like_input(np.array(2.0))) is float
    assert like_input(np.ones(1)).shape == (1,)


def test_places_count_the_wrong_elements_and_name_the_first():
    assert places(np.array([False, True, True])) == "2 of 3, the first at index 1"
    assert places(np.eye(2, dtype=bool)[::-1]) == "2 of 4, the first at index (0, 1)"


PURE = r"delta=.* must be in \(0, 1\); or 0 for pure DP"
test_impossible_significance_and_delta_are_refused = refusals(
    *(
        (partial(significance_level, level), r"significance=.* must be in \(0, 1\); it is the prob")
        for level in (0.0, 1.0, -0.1, float("nan"), "0.05")
    ),
    *((partial(delta_or_zero, delta), PURE) for delta in (False, 1.0, -1e-9)),
)


def test_a_delta_of_zero_is_pure():
    assert delta_or_zero(0) == 0.0


def test_scores_above_the_threshold_are_guessed_in():
    rng = np.random.default_rng(0)
    inside, outside = rng.integers(0, 9, 50) / 2, rng.integers(0, 7, 40) / 2
    cuts = np.array([[0.0, 1.5], [2.25, -1.0]])
    counts = ConfusionCounts.from_scores(inside, outside, cuts)
    assert (counts.tp == np.sum(inside > cuts[..., None], axis=-1)).all()
    assert (counts.fp == np.sum(outside > cuts[..., None], axis=-1)).all()
    assert counts.shape == (2, 2)
    assert np.all(counts.n_in == 50)
    assert np.all(counts.n_out == 40)


def test_counts_are_equal_by_value_and_have_no_hash():
    counts = ConfusionCounts([1, 2], 3, 4, 5)
    assert counts == ConfusionCounts([1, 2], [3, 3], 4, 5)
    assert counts != ConfusionCounts([1, 3], 3, 4, 5)
    assert counts != (1, 3, 4, 5)
    with pytest.raises(TypeError, match="unhashable"):
        hash(counts)


def test_counts_cannot_be_changed_after_the_check():
    with pytest.raises(ValueError, match="read-only"):
        ConfusionCounts(np.array([1, 2]), 3, 4, 5).fn[0] = -1


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


def test_large_arguments_are_shown_in_a_line():
    with pytest.raises(ValueError, match=r"^fp=.* must ") as caught:
        ConfusionCounts(1, 1, np.full(500, 0.5), 1)
    assert len(str(caught.value)) < 250
    assert "\n" not in str(caught.value)


def test_roots_at_zero_and_far_away_are_found():
    targets = np.array([-1.0, 0.0, 1e-12, 3.0, 1e6])
    with np.errstate(divide="ignore"):
        roots = least_nonnegative(
            lambda x, rows: (np.log1p(x) - np.log1p(targets[rows]), 1 / (1 + x)), np.ones(5)
        )
    assert roots == pytest.approx([0.0, 0.0, 1e-12, 3.0, 1e6], rel=1e-9, abs=1e-15)


def test_a_root_that_is_not_there_is_an_error():
    with np.errstate(all="ignore"), pytest.raises(RuntimeError, match="1 of 1 roots not found"):
        least_nonnegative(lambda x, rows: (np.full(1, -1.0), np.full(1, 1e-9)), np.ones(1))


def test_a_slope_that_points_nowhere_is_bracketed():
    # A step, whose slope is zero on either side: halving alone has to find it.
    found = least_nonnegative(
        lambda x, rows: (np.where(x < 7.0, -1.0, 1.0), np.zeros(x.size)), np.ones(2)
    )
    assert found == pytest.approx([7.0, 7.0], rel=1e-15)
