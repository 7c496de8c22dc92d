from __future__ import annotations

import math

import pytest
from corner_bound import CHOICES
from refused_calls import refusals

from lightning_audit.stats.thresholds import (
    Fixed,
    Grid,
    MultiSplit,
    Simultaneous,
    Split,
    assumptions_of,
    words_of,
)


def test_labels_say_what_may_be_claimed() -> None:
    assert [choice.label for choice in CHOICES] == ["fixed"] + 6 * ["searched"]
    assert [choice.valid for choice in CHOICES] == 6 * [True] + [False]


def test_the_words_tell_every_choice_from_the_others_and_one_from_a_bound() -> None:
    words = [words_of(choice) for choice in CHOICES]
    assert len(set(words)) == len(CHOICES)
    wrong = [choice for choice in CHOICES if "NOT valid" in words_of(choice)]
    assert wrong == [choice for choice in CHOICES if not choice.valid] != []
    assert words_of(Split(fraction=0.2)).startswith("chosen on a random 20 % of the scores")
    with pytest.raises(TypeError, match=r"threshold choice 0\.5 must be Fixed"):
        words_of(0.5)  # type: ignore[arg-type]


test_choices_that_are_none_are_refused = refusals(
    (lambda: Fixed(math.nan), "threshold holds nan"),
    (lambda: Grid([]), r"thresholds=\(\) must hold at least one number"),
    (lambda: Grid([0.0, math.nan]), r"thresholds holds nan.* \(1 of 2, the first at index 1\)"),
    (lambda: Split(fraction=1.0), r"fraction=1\.0 must be in \(0, 1\)"),
    (lambda: Split(seed=-1), "seed=-1 must be a whole number"),
    (lambda: MultiSplit(splits=1), "splits=1 must be a whole number >= 2; use Split"),
    (lambda: MultiSplit(fraction=0.0), r"fraction=0\.0 must be in \(0, 1\)"),
    (lambda: MultiSplit(seed=-1), "seed=-1 must be a whole number"),
    (lambda: Simultaneous("ks"), "band='ks' must be one of"),
)


def test_repeated_thresholds_of_a_grid_count_once_in_their_order() -> None:
    assert Grid([1.5, 0.5, 1.5]).thresholds == (0.5, 1.5)


def test_only_what_a_caller_gives_rests_on_when_it_was_chosen() -> None:
    given = [choice for choice in (*CHOICES, Fixed(0.5, given=False)) if assumptions_of(choice)]
    assert {type(choice) for choice in given} == {Fixed, Grid}
    assert Fixed(0.5, given=False) not in given
    assert words_of(Fixed(0.5, given=False)) == "half way between out and in"
