from __future__ import annotations

import math

import numpy as np
import pytest
from coin_mechanisms import gaussian, leaking, null, response, shared_failure
from hypothesis import given
from hypothesis import strategies as st
from refused_calls import refusals
from scipy import stats

from lightning_audit.stats.one_run import (
    default_guesses,
    epsilon_one_run,
    epsilon_one_run_from_scores,
    one_run_p_value,
)


@pytest.mark.parametrize(
    ("canaries", "guesses", "correct", "pure", "approximate"),
    # Agreed to five digits with another implementation; the approximate ones at delta 1e-5.
    [
        (1000, 1000, 1000, 5.80907, 5.78228),
        (1000, 1000, 900, 2.02123, 2.02065),
        (1000, 1000, 750, 0.97667, 0.97637),
        (1000, 100, 100, 3.49297, 3.46538),
        (1000, 20, 20, 1.82272, 1.79128),
        (10000, 1000, 950, 2.70186, 2.69100),
        (100000, 1000, 990, 4.06321, 3.21505),
        (100, 100, 100, 3.49297, 3.49022),
    ],
)
def test_reference_bounds(
    canaries: int, guesses: int, correct: int, pure: float, approximate: float
) -> None:
    for delta, expected in ((0.0, pure), (1e-5, approximate)):
        bound = epsilon_one_run(correct, guesses, canaries, delta, 0.05)
        assert bound == pytest.approx(expected, abs=6e-6)


def naive_p_value(v: int, r: int, m: int, epsilon: float, delta: float) -> float:
    q = math.exp(epsilon) / (1 + math.exp(epsilon))
    at_least = sum(stats.binom.pmf(k, r, q) for k in range(v, r + 1))
    parts = [sum(stats.binom.pmf(k, r, q) for k in range(v - i, v)) / i for i in range(1, v + 1)]
    return min(1.0, at_least + 2 * m * delta * max(parts, default=0.0))


numbers = st.tuples(st.integers(0, 25), st.integers(0, 15), st.integers(0, 40)).map(
    lambda t: (t[0], t[0] + t[1], t[0] + t[1] + t[2])
)


@given(numbers, st.floats(0, 8), st.sampled_from([0.0, 1e-6, 1e-3, 0.1]))
def test_p_value_agrees_with_sums_over_the_binomial_law(
    vrm: tuple[int, int, int], epsilon: float, delta: float
) -> None:
    expected = naive_p_value(*vrm, epsilon, delta)
    assert one_run_p_value(*vrm, epsilon, delta) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0, 3.0])
@pytest.mark.parametrize(("v", "r"), [(4000, 4000), (2100, 4000), (3000, 4000), (1500, 4000)])
def test_p_value_of_many_guesses_leaves_no_count_out(v: int, r: int, epsilon: float) -> None:
    j = np.arange(v)
    at_least = stats.binom.sf(np.arange(v) - 1, r, 1 / (1 + math.exp(-epsilon)))
    tail = stats.binom.sf(v - 1, r, 1 / (1 + math.exp(-epsilon)))
    expected = min(1.0, tail + 2e-5 * r * np.max((at_least - tail) / (v - j)))
    assert one_run_p_value(v, r, r, epsilon, 1e-5) == pytest.approx(expected, rel=1e-9)


@given(numbers, st.sampled_from([0.0, 1e-5, 1e-3]), st.sampled_from([1e-6, 0.05, 0.5]))
def test_bound_is_where_the_p_value_exceeds_the_significance(
    vrm: tuple[int, int, int], delta: float, significance: float
) -> None:
    bound = epsilon_one_run(*vrm, delta, significance)
    if bound > 0:
        assert one_run_p_value(*vrm, bound, delta) == pytest.approx(significance, rel=1e-6)
        smaller = [one_run_p_value(*vrm, share * bound, delta) for share in (0.0, 0.3, 0.9)]
        assert max(smaller) <= significance
    else:
        assert vrm[0] == 0 or one_run_p_value(*vrm, 0.0, delta) >= significance


@given(numbers, st.sampled_from([0.0, 1e-5, 1e-3]))
def test_bound_rises_with_correct_guesses_and_significance_and_falls_with_delta(
    vrm: tuple[int, int, int], delta: float
) -> None:
    v, r, m = vrm
    bound = epsilon_one_run(v, r, m, delta, 0.05)
    if v < r:
        assert epsilon_one_run(v + 1, r, m, delta, 0.05) >= bound - 1e-9
    assert epsilon_one_run(v, r, m, delta, 0.1) >= bound - 1e-9
    assert epsilon_one_run(v, r, m, 2 * delta, 0.05) <= bound + 1e-9


def test_no_scores_prove_nothing() -> None:
    for scores in (([], []), ([1.0], []), ([], [1.0]), ([1.0], [0.0])):
        assert epsilon_one_run_from_scores(*scores, 1e-5, 0.05).value == 0.0


def test_default_guesses_depend_on_the_number_of_canaries_only() -> None:
    assert default_guesses(10_000) == (5000, 1250, 312)
    assert [default_guesses(m) for m in (0, 1, 10, 479)] == [(), (), (5,), (239,)]
    assert [default_guesses(m) for m in (480, 1920)] == [(240, 60), (960, 240, 60)]
    assert default_guesses(10_000, "in") == (2500, 625, 156)
    assert [default_guesses(m, "in") for m in (0, 1, 10)] == [(), (), (2,)]


test_arguments_out_of_range_are_refused = refusals(
    (lambda: epsilon_one_run(3, 2, 5, 0.0, 0.05), "correct=3, guesses=2 and canaries=5 must"),
    (lambda: epsilon_one_run(1.5, 2, 5, 0.0, 0.05), "whole numbers with 0 <= correct"),
    (lambda: epsilon_one_run(1, 2, 5, 1.0, 0.05), r"delta=1\.0 must be in"),
    (lambda: epsilon_one_run(1, 2, 5, 0.0, 0.0), r"significance=0\.0 must be in \(0, 1\)"),
    (lambda: one_run_p_value(1, 2, 5, -1.0, 0.0), r"epsilon=-1\.0 must be"),
)


# Coverage: coins, scores of all canaries, and the mechanism's epsilon at its delta.

CANARIES, REPETITIONS = 400, 4000


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("mechanism", "epsilon", "delta"),
    [
        (null, 0.0, 1e-5),
        (gaussian, 2.0, 1e-5),
        (response, 1.0, 0.0),
        (leaking, 1.0, 0.01),
        (shared_failure, 0.0, 0.01),
    ],
)
@pytest.mark.parametrize(("guesses", "sides"), [(None, "both"), ([100], "both"), ([100], "in")])
@pytest.mark.heavy_one_in(6)
def test_bound_fails_no_more_often_than_it_says(mechanism, epsilon, delta, guesses, sides) -> None:
    rng = np.random.default_rng([len(mechanism.__name__), 0 if guesses is None else 1])
    missed = 0
    for _ in range(REPETITIONS):
        coins = rng.random(CANARIES) < 0.5
        scores = mechanism(rng, coins)
        bound = epsilon_one_run_from_scores(
            scores[coins], scores[~coins], delta, 0.05, guesses=guesses, sides=sides
        )
        missed += bound.value > epsilon + 1e-9
    print(f"\n{mechanism.__name__} {guesses} {sides}: missed {missed / REPETITIONS}")
    assert missed / REPETITIONS <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / REPETITIONS)
    if mechanism is response and guesses:
        assert missed / REPETITIONS > 0.02  # nothing is given away on the mechanism that attains it
