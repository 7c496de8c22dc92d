from __future__ import annotations

import numpy as np
import pytest

from lightning_audit import _validate
from lightning_audit.stats._arguments import (
    delta_or_zero,
    each,
    like_input,
    non_negative,
    places,
    significance_level,
    whole_counts,
)


@pytest.mark.parametrize(
    ("successes", "trials", "message"),
    [
        (-1, 5, r"successes=-1 must be a whole number >= 0"),
        (0.5, 5, r"successes=0\.5 must be a whole number >= 0; pass event counts"),
        (float("nan"), 5, r"successes=nan must be a whole number"),
        (1, float("inf"), r"trials=inf must be a whole number"),
        (6, 5, r"successes=6 must be at most trials=5"),
        (np.array([1, 6]), np.array([2, 5]), r"successes=6 must be at most trials=5"),
        (np.array([True]), 5, r"successes has dtype bool"),
    ],
)
def test_impossible_counts_are_refused(successes, trials, message) -> None:
    with pytest.raises(ValueError, match=message):
        whole_counts(successes, trials)


@pytest.mark.parametrize("significance", [0.0, 1.0, -0.1, float("nan"), "0.05"])
def test_impossible_significance_is_refused(significance) -> None:
    with pytest.raises(ValueError, match=r"significance=.* must be in \(0, 1\); it is the prob"):
        significance_level(significance)


@pytest.mark.parametrize("at", range(5))
@pytest.mark.parametrize("wrong", [np.nan, -1.0])
def test_one_wrong_element_anywhere_is_refused(at: int, wrong: float) -> None:
    values = np.array([3.0, 0.0, 9.0, 1.0, np.inf])
    assert each(non_negative, "mu", values) is not None
    values[at] = wrong
    with pytest.raises(ValueError, match="mu="):
        each(non_negative, "mu", values)


def test_shapes_are_kept_and_only_numbers_become_floats() -> None:
    for value, shape in ((2, ()), (np.array(2), ()), (np.ones((2, 0)), (2, 0))):
        assert each(_validate.non_negative, "mu", value).shape == shape
    assert type(like_input(np.array(2.0))) is float
    assert like_input(np.ones(1)).shape == (1,)


def test_places_count_the_wrong_elements_and_name_the_first() -> None:
    assert places(np.array([False, True, True])) == "2 of 3, the first at index 1"
    assert places(np.eye(2, dtype=bool)[::-1]) == "2 of 4, the first at index (0, 1)"


def test_a_delta_of_zero_is_pure_and_false_is_none() -> None:
    assert delta_or_zero(0) == 0.0
    for delta in (False, 1.0, -1e-9):
        with pytest.raises(ValueError, match=r"delta=.* must be in \(0, 1\); or 0 for pure DP"):
            delta_or_zero(delta)
