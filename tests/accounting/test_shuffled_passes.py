"""The epsilon of passes over shuffled batches: that of steps on all records."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence

import numpy as np
import pytest
from scipy.special import ndtr

from lightning_audit import PrivacyClaim
from lightning_audit.accounting.composition import (
    PassCounter,
    epsilon_of_history,
    epsilon_of_passes,
    passes_of,
    passes_taken,
)
from lightning_audit.accounting.history import Phase

DELTA = 1e-5


@pytest.mark.parametrize("sigma", [0.6, 1.0, 3.0])
@pytest.mark.parametrize("passes", [1, 7, 100])
def test_delta_at_the_epsilon_is_that_of_the_gaussian_mechanism(sigma: float, passes: int) -> None:
    epsilon = epsilon_of_passes(sigma, passes, DELTA)
    mu = math.sqrt(passes) / sigma
    delta = ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu)
    assert delta == pytest.approx(DELTA, rel=1e-4)


def test_it_is_the_composition_of_steps_on_all_records_and_more_than_that_of_poisson_ones() -> None:
    for adjacency in ("add_remove", "replace_one"):
        found = epsilon_of_passes(1.0, 5, DELTA, adjacency)
        assert found == pytest.approx(
            epsilon_of_history([Phase(1.0, 1.0, 5)], DELTA, adjacency=adjacency)
        )
        assert found > epsilon_of_history([Phase(1.0, 0.01, 500)], DELTA, adjacency=adjacency)


def test_without_noise_nothing_is_private() -> None:
    assert epsilon_of_passes(0.0, 1, DELTA) == math.inf


@pytest.mark.parametrize(
    ("arguments", "named"), [((-1.0, 1, DELTA), "noise_multiplier"), ((1.0, 0, DELTA), "passes")]
)
def test_bad_input_is_named(arguments: tuple[float, int, float], named: str) -> None:
    with pytest.raises(ValueError, match=f"{named}="):
        epsilon_of_passes(*arguments)


@pytest.mark.parametrize(
    ("steps", "passes"), [([(1 / 28, 28)], 1), ([(0.25, 5)], 2), ([(0.5, 2), (0.25, 8)], 3)]
)
def test_steps_make_passes_by_their_rate(steps: list[tuple[float, int]], passes: int) -> None:
    assert passes_of(Phase(1.0, rate, count) for rate, count in steps) == passes


def test_a_training_costs_the_least_noise_and_the_passes_that_anyone_knows_of() -> None:
    taken = [Phase(2.0, None, 10), Phase(1.5, None, 2)]
    assert passes_taken(taken, (), 3) == Phase(1.5, 1.0, 3)
    assert passes_taken(taken, [Phase(1.2, 0.1, 50)], 3) == Phase(1.2, 1.0, 5)
    assert passes_taken(taken, (), 0) == Phase(1.5, 1.0, 1)


def test_a_claim_composes_its_passes() -> None:
    stated = {"delta": DELTA, "noise_multiplier": 2.0, "sample_rate": 0.1, "steps": 30}
    for adjacency in ("add_remove", "replace_one"):
        claim = PrivacyClaim(**stated, sampling="shuffled", adjacency=adjacency)
        assert claim.composed_epsilon() == epsilon_of_passes(2.0, 3, DELTA, adjacency)
    poisson = PrivacyClaim(**stated, sampling="poisson").composed_epsilon()
    assert poisson == PrivacyClaim(**stated).composed_epsilon()


def test_a_claim_of_another_sampling_is_refused_and_so_is_one_of_correlated_noise() -> None:
    with pytest.raises(ValueError, match="sampling='fixed' must be one of"):
        PrivacyClaim(sampling="fixed")
    with pytest.raises(ValueError, match="contradicts noise_coefficients"):
        PrivacyClaim(sampling="shuffled", noise_coefficients=(1.0, -0.5))


def counted(passes: Sequence[Sequence[Sequence[int]]]) -> PassCounter:
    """What was counted of passes of batches of the steps that each optimizer takes on them."""
    counter, steps = PassCounter(), []
    for batches in passes:
        counter.start_pass(steps)
        for taken in batches:
            counter.start_batch(steps)
            steps = [a + b for a, b in itertools.zip_longest(steps, taken, fillvalue=0)]
    counter.start_pass(steps)
    return counter


ONE = [1]


@pytest.mark.parametrize(
    ("passes", "count"),
    [
        ([], 0),
        ([[ONE] * 100], 1),
        ([[ONE] * 100] * 3, 3),
        ([[ONE] * 49 + [[10]] + [ONE] * 49 + [[10]]] * 2, 20),  # ten steps on two batches of 100
        ([[[3]] * 5, [ONE] * 5], 4),
        ([[[0], [0], ONE] * 4] * 2, 2),  # a step for three batches
        ([[[1, 2]] * 4], 3),
        ([[[1, 0], [0, 1]] * 4], 2),
        ([[ONE] * 4, [[1, 5]] * 4], 7),  # a second optimizer joins
        ([[[0]] * 4], 0),
    ],
)
def test_of_each_pass_the_batch_of_most_steps_counts(
    passes: list[list[list[int]]], count: int
) -> None:
    counter = counted(passes)
    steps = [sum(each) for each in itertools.zip_longest(*itertools.chain(*passes), fillvalue=0)]
    assert counter.passes(steps) == count


def test_no_record_enters_more_steps_than_are_counted() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        passes = rng.integers(0, 4, size=(rng.integers(1, 4), 6, 2))
        entered = np.zeros(6, dtype=int)  # by record, each a batch of its own
        for batches in passes:
            entered += rng.permutation(batches.sum(axis=1))
        counter = counted(passes.tolist())
        assert entered.max() <= counter.passes(passes.sum(axis=(0, 1)).tolist())


def test_a_batch_counts_while_it_lasts() -> None:
    counter = PassCounter()
    counter.start_pass([])
    counter.start_batch([])
    assert counter.passes([4]) == 4
    counter.start_batch([4])
    assert counter.passes([6]) == 4
    assert counter.passes([10]) == 6


def test_a_pass_that_is_begun_again_after_a_stop_counts_twice() -> None:
    counter = PassCounter()
    counter.start_pass([0])
    counter.start_batch([0])
    kept = json.loads(json.dumps(counter.state([2])))
    again = PassCounter()
    again.start_pass([])  # before the checkpoint's optimizers are there
    again.load(kept)
    assert again.passes([2]) == 2
    again.start_pass([2])
    again.start_batch([2])
    assert again.passes([3]) == 3
