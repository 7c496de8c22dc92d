from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refused_calls import refusals
from scipy import optimize, special, stats

from lightning_audit.stats.gaussian import (
    mu_noncentral_t_from_scores,
    mu_white_box,
    mu_white_box_from_scores,
)


def naive(inside: np.ndarray, outside: np.ndarray, significance: float) -> float:
    """Both facts of the module, one after the other: the least shift that is not rejected."""
    z = np.concatenate([inside, outside])
    signs = np.repeat([1.0, -1.0], [len(inside), len(outside)])
    x = stats.norm.isf(significance / 2 * 4 * stats.norm.sf(math.sqrt(2)))

    def excess(shift: float) -> float:
        y = z - shift * (signs > 0)
        return signs @ (y - y.mean()) - x * np.linalg.norm(y - y.mean())

    within = sum(np.sum((g - g.mean()) ** 2) for g in (inside, outside))
    sigma = math.sqrt(within / stats.chi2.ppf(significance / 2, len(z) - 2))
    if excess(0.0) <= 0:
        return 0.0
    difference = inside.mean() - outside.mean()
    return optimize.brentq(excess, 0.0, difference, xtol=1e-13) / sigma


@given(st.integers(0, 2**32), st.integers(2, 60), st.integers(2, 60), st.sampled_from([0.5, 3.0]))
def test_bound_is_the_least_shift_not_rejected_over_the_largest_noise(
    seed: int, n_in: int, n_out: int, mu: float
) -> None:
    rng = np.random.default_rng(seed)
    inside, outside = mu + rng.standard_normal(n_in), rng.standard_normal(n_out)
    for significance in (1e-3, 0.05, 0.3):
        bound = mu_white_box_from_scores(inside, outside, significance)
        assert bound == pytest.approx(naive(inside, outside, significance), rel=1e-8, abs=1e-9)
        assert bound <= mu_noncentral_t_from_scores(inside, outside, significance) + 1e-9
        moved = mu_white_box_from_scores(7 + 3 * inside, 7 + 3 * outside, significance)
        assert moved == pytest.approx(bound, rel=1e-6, abs=1e-9)


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=9).filter(lambda w: max(w) > 1e-3))
def test_tail_of_a_sum_of_fair_signs_is_below_its_gaussian_bound(weights: list[float]) -> None:
    w = np.array(weights) / np.linalg.norm(weights)
    sums = np.array(list(itertools.product([-1.0, 1.0], repeat=len(w)))) @ w
    for x in (1.0, math.sqrt(2) - 1e-9, 1.7, 2.0, 2.4):
        assert np.mean(sums >= x) <= special.ndtr(-x) / (4 * special.ndtr(-math.sqrt(2))) + 1e-9


def test_bound_nears_mu_with_many_canaries() -> None:
    for n, least in ((50, 0.3), (500, 0.8), (500_000, 0.99)):
        assert least < mu_white_box(n, n, 1.0, 2 * n - 2, 0.05) < 1.0


@given(st.integers(1, 500), st.floats(-2, 3), st.floats(0.1, 100), st.sampled_from([1e-6, 0.05]))
def test_bound_rises_with_the_shift_and_the_significance(n, difference, squares, level) -> None:
    bound = mu_white_box(n, n, difference, squares, level)
    assert bound >= 0
    assert mu_white_box(n, n, difference + 0.1, squares, level) >= bound
    assert mu_white_box(n, n, difference, squares, 2 * level) >= bound
    assert mu_white_box(n, n, difference, 2 * squares, level) <= bound


def test_few_canaries_prove_nothing() -> None:
    assert mu_white_box(0, 5, 1.0, 1.0, 0.05) == mu_white_box(1, 1, 1.0, 0.0, 0.05) == 0.0
    assert mu_white_box(3, 3, 100.0, 1e-6, 1e-3) == 0.0
    assert mu_white_box_from_scores([], [1.0], 0.05) == 0.0


test_arguments_out_of_range_are_refused = refusals(
    (lambda: mu_white_box(-1, 5, 1.0, 1.0, 0.05), "n_in=-1 must be a whole number"),
    (lambda: mu_white_box(5, 2.5, 1.0, 1.0, 0.05), r"n_out=2\.5 must be a whole number"),
    (lambda: mu_white_box(5, 5, math.inf, 1.0, 0.05), "difference=inf must be finite"),
    (lambda: mu_white_box(5, 5, 1.0, 0.0, 0.05), r"sum_squares=0\.0 must be finite and > 0"),
    (lambda: mu_white_box(5, 5, 1.0, 1.0, 1.0), r"significance=1\.0"),
    (lambda: mu_white_box_from_scores([math.inf], [0.0], 0.05), "scores_in holds infinity"),
    (lambda: mu_white_box_from_scores([[1.0]], [0.0], 0.05), "scores_in has shape"),
)


#: What the data give along the directions, by the number of canaries.
DATA = {
    "none": lambda m: np.zeros(m),
    "three far out": lambda m: np.where(np.arange(m) < 3, 1e4, 0.0),
    "six far out": lambda m: np.where(np.arange(m) < 6, 1e4, 0.0),
    "heavy": lambda m: np.geomspace(0.01, 1e3, m),
    "two clusters": lambda m: 20.0 * (np.arange(m) % 2),
}


def missed(data: str, m: int, mu: float, repetitions: int) -> tuple[float, float]:
    """Failures of this bound and of the noncentral t."""
    rng = np.random.default_rng([len(data), m, round(10 * mu)])
    a, found = DATA[data](m), np.zeros(2)
    for _ in range(repetitions):
        coins = rng.random(m) < 0.5
        if not 0 < coins.sum() < m:
            continue
        z = a + mu * coins + rng.standard_normal(m)
        for i, bound in enumerate((mu_white_box_from_scores, mu_noncentral_t_from_scores)):
            found[i] += bound(z[coins], z[~coins], 0.05) > mu
    return tuple(found / repetitions)


def test_data_along_few_directions_deceive_the_noncentral_t_and_not_this_bound() -> None:
    this, student = missed("three far out", 300, 0.0, 1500)
    assert student > 0.09  # all three are in with probability 1/8
    assert this <= 0.05


@pytest.mark.heavy
@pytest.mark.parametrize("data", list(DATA))
@pytest.mark.parametrize("mu", [0.0, 1.0, 5.0])
@pytest.mark.heavy_one_in(6)
def test_bound_fails_no_more_often_than_it_says_whatever_the_data(data: str, mu: float) -> None:
    for m in (20, 300):
        this, student = missed(data, m, mu, 700)
        print(f"\n{data} m={m} mu={mu}: missed {this}, noncentral t {student}")
        assert this <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 700)
