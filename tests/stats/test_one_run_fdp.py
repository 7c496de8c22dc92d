from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
from coin_mechanisms import gaussian, null, response, shared_failure
from hypothesis import given, settings
from hypothesis import strategies as st
from refused_calls import refusals
from scipy import optimize, special, stats

from lightning_audit.stats.one_run import (
    epsilon_one_run,
    epsilon_one_run_fdp,
    epsilon_one_run_fdp_from_scores,
    mu_one_run,
    mu_one_run_from_scores,
    one_run_fdp_p_value,
    parameter_one_run,
)
from lightning_audit.stats.tradeoff import (
    ApproxDPTradeoff,
    GaussianTradeoff,
    PiecewiseTradeoff,
    gaussian_epsilon,
    gaussian_mu,
)


@pytest.mark.parametrize(
    ("canaries", "guesses", "correct", "epsilon", "mu", "of_any"),
    # Epsilon of mu and mu agreed to five digits with another implementation, at significance .05
    # and delta 1e-5; for every mechanism as docs/estimators/one-run.md has them, of this one.
    [
        (1000, 1000, 1000, 12.33457, 2.3681, 5.80900),
        (1000, 1000, 900, 3.77934, 0.8804, 2.01312),
        (1000, 1000, 750, 1.81890, 0.4606, 0.97050),
        (1000, 100, 100, 5.54903, 1.2255, 3.49232),
        (1000, 20, 20, 2.36337, 0.5822, 1.81929),
        (10000, 1000, 950, 3.80244, 0.8851, 2.69127),
        (100000, 1000, 990, 4.85677, 1.0936, 4.04306),
        (100, 100, 100, 8.21619, 1.7032, 3.49290),
        # More canaries do not sharpen the bound where all of them are guessed.
        (5000, 5000, 3500, 1.37609, 0.3582, None),
        (10000, 10000, 7000, 1.37609, 0.3582, None),
    ],
)
def test_reference_bounds(
    canaries: int, guesses: int, correct: int, epsilon: float, mu: float, of_any: float | None
) -> None:
    bound = mu_one_run(correct, guesses, canaries, 0.05)
    assert bound == pytest.approx(mu, abs=6e-5)
    assert gaussian_epsilon(bound, 1e-5) == pytest.approx(epsilon, abs=6e-6)
    if of_any is not None:
        found = epsilon_one_run_fdp(correct, guesses, canaries, 1e-5, 0.05)
        assert found == pytest.approx(of_any, abs=6e-6)


def extreme_probability(v: int, r: int, m: int, lines: list[tuple[float, float]]) -> float:
    """Largest Pr[W >= v] of any law of W that keeps every condition, as a linear programme.

    The trade-off function is the maximum of the lines (intercept, slope) and 0.
    """
    j = np.arange(r + 1)
    rows, limits = [], []
    for c in range(1, r + 1):
        right = np.where(j >= c, j / m, 0.0)
        wrong = np.where(j >= c - 1, (r - j) / m, 0.0)
        for intercept, slope in lines:  # wrong >= intercept + slope (1 - right)
            rows.append(-slope * right - wrong)
            limits.append(-intercept - slope)
    found = optimize.linprog(
        -(j >= v).astype(float), np.array(rows), limits, np.ones((1, r + 1)), [1.0]
    )
    assert found.status == 0
    return -found.fun


sizes = st.tuples(st.integers(1, 9), st.integers(0, 6), st.integers(0, 30)).map(
    lambda t: (t[0], t[0] + t[1], t[0] + t[1] + t[2])
)


@given(sizes, st.floats(0, 4), st.sampled_from([0.0, 1e-3, 0.1]))
@settings(max_examples=60)
def test_p_value_is_that_of_the_worst_law_under_approximate_dp(
    vrm: tuple[int, int, int], epsilon: float, delta: float
) -> None:
    lines = [
        (1 - delta, -math.exp(epsilon)),
        (math.exp(-epsilon) * (1 - delta), -math.exp(-epsilon)),
    ]
    p = one_run_fdp_p_value(*vrm, ApproxDPTradeoff(epsilon, delta))
    assert p == pytest.approx(extreme_probability(*vrm, lines), rel=1e-6, abs=1e-8)


@given(sizes, st.lists(st.tuples(st.floats(0.05, 0.9), st.floats(0.02, 0.9)), max_size=4))
@settings(max_examples=60)
def test_p_value_is_that_of_the_worst_law_under_any_trade_off_function(
    vrm: tuple[int, int, int], points: list[tuple[float, float]]
) -> None:
    f = PiecewiseTradeoff([a for a, _ in points], [b for _, b in points])
    slopes = np.diff(f.betas) / np.diff(f.alphas)
    lines = list(zip(f.betas[:-1] - slopes * f.alphas[:-1], slopes, strict=True))
    p = one_run_fdp_p_value(*vrm, f)
    assert p == pytest.approx(extreme_probability(*vrm, lines), rel=1e-6, abs=1e-8)


def test_fast_bounds_are_those_of_their_families() -> None:
    for vrm in ((18, 20, 50), (20, 20, 20), (60, 90, 400)):
        mu = parameter_one_run(*vrm, lambda mu: GaussianTradeoff(mu).__call__, 0.05)
        assert mu_one_run(*vrm, 0.05) == pytest.approx(mu, rel=1e-9)
        epsilon = parameter_one_run(*vrm, lambda e: ApproxDPTradeoff(e, 1e-3), 0.05)
        assert epsilon_one_run_fdp(*vrm, 1e-3, 0.05) == pytest.approx(epsilon, rel=1e-9)


numbers = st.tuples(st.integers(0, 40), st.integers(0, 25), st.integers(0, 200)).map(
    lambda t: (t[0], t[0] + t[1], t[0] + t[1] + t[2])
)


@given(numbers, st.sampled_from([1e-6, 0.05, 0.5]))
def test_bound_is_where_the_p_value_exceeds_the_significance(
    vrm: tuple[int, int, int], significance: float
) -> None:
    mu = mu_one_run(*vrm, significance)
    if mu > 0:
        p = one_run_fdp_p_value(*vrm, GaussianTradeoff(mu))
        assert p == pytest.approx(significance, rel=1e-5)
        assert one_run_fdp_p_value(*vrm, GaussianTradeoff(0.9 * mu)) < significance
    else:
        assert one_run_fdp_p_value(*vrm, GaussianTradeoff(0.0)) >= significance * (1 - 1e-9)


@given(numbers, st.floats(0, 3))
def test_p_value_covers_the_law_of_independent_gaussian_canaries(
    vrm: tuple[int, int, int], mu: float
) -> None:
    v, r, _ = vrm
    tail = stats.binom.sf(v - 1, r, special.ndtr(mu / 2))
    assert one_run_fdp_p_value(v, r, r, GaussianTradeoff(mu)) >= tail * (1 - 1e-6)


@given(numbers)
def test_bound_rises_with_correct_guesses_and_significance_and_falls_with_canaries(
    vrm: tuple[int, int, int],
) -> None:
    v, r, m = vrm
    for bound in (mu_one_run, lambda *a: epsilon_one_run_fdp(*a[:3], 1e-4, a[3])):
        value = bound(v, r, m, 0.05)
        if v < r:
            assert bound(v + 1, r, m, 0.05) >= value - 1e-9
        assert bound(v, r, m, 0.1) >= value - 1e-9
        assert bound(v, r, 3 * m, 0.05) <= value + 1e-9


def test_many_canaries_cost_little_where_the_first_bound_pays_for_all_their_deltas() -> None:
    first, second = epsilon_one_run, epsilon_one_run_fdp
    assert first(990, 1000, 100_000, 1e-5, 0.05) == pytest.approx(3.21505, abs=6e-6)
    assert second(990, 1000, 100_000, 1e-5, 0.05) == pytest.approx(4.043, abs=1e-3)
    # Without delta both are nearly the same.
    for vrm in ((900, 1000, 1000), (100, 100, 1000), (160_000, 250_000, 1_000_000)):
        assert second(*vrm, 0.0, 0.05) == pytest.approx(first(*vrm, 0.0, 0.05), rel=0.01)


@pytest.mark.parametrize("r", [5, 10, 25, 60, 300, 1000])
def test_without_delta_it_is_at_most_a_fiftieth_below_the_first_bound(r: int) -> None:
    for v in range(r // 2, r + 1, max(1, r // 40)):
        gap = epsilon_one_run(v, r, 4 * r, 0.0, 0.05) - epsilon_one_run_fdp(v, r, 4 * r, 0.0, 0.05)
        assert -1e-9 <= gap <= 0.0201


def test_nothing_correct_proves_nothing() -> None:
    assert mu_one_run(0, 0, 0, 0.05) == mu_one_run(0, 5, 9, 0.05) == 0.0
    assert one_run_fdp_p_value(0, 5, 9, GaussianTradeoff(1.0)) == 1.0
    assert epsilon_one_run_fdp(5, 10, 10, 1e-5, 0.05) == 0.0


def test_impossible_luck_has_a_small_p_value_and_not_none() -> None:
    assert one_run_fdp_p_value(5000, 5000, 5000, GaussianTradeoff(0.0)) == pytest.approx(1e-300)
    assert mu_one_run(10**6, 10**6, 10**6, 1e-6) > 2


test_arguments_out_of_range_are_refused = refusals(
    (lambda: mu_one_run(3, 2, 5, 0.05), "correct=3, guesses=2 and canaries=5 must"),
    (lambda: mu_one_run(True, 2, 5, 0.05), "correct=True"),
    (lambda: mu_one_run(1, 2, 5, 1.0), r"significance=1\.0 must be in \(0, 1\)"),
    (lambda: epsilon_one_run_fdp(1, 2, 5, 1.0, 0.05), r"delta=1\.0 must be in"),
    (
        lambda: parameter_one_run(50, 50, 50, lambda _: GaussianTradeoff(0.1), 0.05),
        "family must explain 50 correct guesses of 50",
    ),
)


# Coverage: a mechanism's scores from its coins, and its mu and epsilon at the delta.

CANARIES, REPETITIONS, DELTA = 400, 2000, 0.01


RESPONSE_MU = float(-2 * special.ndtri(1 / (1 + math.e)))


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("mechanism", "mu", "epsilon"),
    [
        (null, 0.0, 0.0),
        (partial(gaussian, delta=DELTA), gaussian_mu(2.0, DELTA), 2.0),
        (response, RESPONSE_MU, 1.0),
        (shared_failure, math.inf, 0.0),
    ],
)
@pytest.mark.parametrize(("guesses", "sides"), [(None, "both"), ([100], "both"), ([100], "in")])
@pytest.mark.heavy_one_in(6)
def test_bounds_fail_no_more_often_than_they_say(mechanism, mu, epsilon, guesses, sides) -> None:
    name = getattr(mechanism, "func", mechanism).__name__
    rng = np.random.default_rng([len(name), 0 if guesses is None else 1])
    ways = {"guesses": guesses, "sides": sides}
    missed = np.zeros(2)
    for _ in range(REPETITIONS):
        coins = rng.random(CANARIES) < 0.5
        scores = mechanism(rng, coins)
        groups = scores[coins], scores[~coins]
        missed[0] += mu_one_run_from_scores(*groups, 0.05, **ways).value > mu + 1e-9
        found = epsilon_one_run_fdp_from_scores(*groups, DELTA, 0.05, **ways)
        missed[1] += found.value > epsilon + 1e-9
    missed /= REPETITIONS
    print(f"\n{name} {guesses} {sides}: missed mu {missed[0]}, epsilon {missed[1]}")
    assert np.all(missed <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / REPETITIONS))
