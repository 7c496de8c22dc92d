from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from known_mechanisms import MECHANISMS, gaussian, plane
from refused_calls import refusals

from lightning_audit.stats.output_estimates import (
    DEFAULT_THRESHOLDS,
    GridRatio,
    estimate_by_kernel,
    estimate_by_neighbours,
    exceedance,
)
from lightning_audit.stats.tradeoff import GaussianTradeoff

ALPHA = np.linspace(0, 1, 2001)


def naive_exceedance(ratios, weights, thresholds, smoothing):
    if smoothing == 0:
        above = ratios > thresholds[:, None]
    else:
        above = np.clip((ratios - thresholds[:, None]) / smoothing + 0.5, 0, 1)
    return above @ weights


def distance(estimate, truth) -> float:
    return float(np.max(np.abs(estimate(ALPHA) - truth(ALPHA))))


def reference_errors(name: str, n: int, draws: int, rng) -> list[float]:
    sampler, claim = MECHANISMS[name]
    return [distance(estimate_by_kernel(*sampler(rng, n)), claim(1.0)) for _ in range(draws)]


@pytest.mark.heavy
def test_errors_of_the_reference_table_to_the_digits() -> None:
    """Drawn as the reference drew them: one generator, the rows one after the other."""
    rng = np.random.default_rng(0)
    found = []
    for name in MECHANISMS:
        for n, draws in ((1000, 30), (10_000, 20), (100_000, 10)):
            errors = reference_errors(name, n, draws, rng)
            found.append((round(float(np.mean(errors)), 4), round(max(errors), 4)))
    mean, largest = zip(*found, strict=True)
    assert list(mean) == [0.0333, 0.0103, 0.0040, 0.0401, 0.0175, 0.0062]
    assert largest == pytest.approx([0.077, 0.020, 0.0088, 0.091, 0.040, 0.0087], abs=6e-4)


@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize(("n", "most"), [(1000, 0.13), (100_000, 0.02)])
def test_both_estimates_approach_the_true_curve(name: str, n: int, most: float) -> None:
    sampler, claim = MECHANISMS[name]
    p, q = sampler(np.random.default_rng([n, len(name)]), n)
    assert distance(estimate_by_kernel(p, q), claim(1.0)) < most
    assert distance(estimate_by_neighbours(p, q), claim(1.0)) < most


@pytest.mark.heavy
def test_estimates_in_the_plane_approach_the_true_curve() -> None:
    p, q = plane(np.random.default_rng(3), 8000)
    for estimate in (estimate_by_kernel(p, q), estimate_by_neighbours(p, q)):
        assert distance(estimate, GaussianTradeoff(1.0)) < 0.04


def test_ten_dimensions_are_estimated_by_neighbours() -> None:
    rng = np.random.default_rng(4)
    p, q = rng.normal(0, 1, (4000, 10)), rng.normal(1 / np.sqrt(10), 1, (4000, 10))
    estimate = estimate_by_neighbours(p, q, neighbours=401)
    assert distance(estimate, GaussianTradeoff(1.0)) < 0.08


@given(st.integers(1, 60), st.integers(0, 10**6), st.sampled_from([0.0, 0.1, 2.0]))
def test_exceedance_is_the_sum_over_all_pairs(n: int, seed: int, smoothing: float) -> None:
    rng = np.random.default_rng(seed)
    ratios, weights = rng.exponential(2, n), rng.random(n)
    ratios[rng.random(n) < 0.2] = 1e10  # where a density is at its floor
    thresholds = rng.exponential(2, 15)
    assert exceedance(ratios, weights, thresholds, smoothing) == pytest.approx(
        naive_exceedance(ratios, weights, thresholds, smoothing), abs=1e-10
    )


def test_points_are_integrals_over_the_grid() -> None:
    p, q = gaussian(np.random.default_rng(7), 3000)
    ratio, estimate = GridRatio(p, q), estimate_by_kernel(p, q)
    for mass, rate in ((ratio.p, estimate.alpha), (ratio.q, 1 - estimate.beta)):
        naive = naive_exceedance(ratio.ratios, mass, DEFAULT_THRESHOLDS, 0.1)
        assert rate == pytest.approx(naive, abs=1e-12)


@pytest.mark.parametrize("estimator", [estimate_by_kernel, estimate_by_neighbours])
def test_error_rates_move_with_the_threshold(estimator) -> None:
    estimate = estimator(*gaussian(np.random.default_rng(8), 2000))
    assert (np.diff(estimate.alpha) <= 1e-12).all()
    assert (np.diff(estimate.beta) >= -1e-12).all()
    assert estimate(0.0) == 1 or estimate.alpha.min() == 0
    assert estimate(1.0) == pytest.approx(0)


@pytest.mark.parametrize("estimator", [estimate_by_kernel, estimate_by_neighbours])
def test_estimate_is_the_same_in_every_unit(estimator) -> None:
    p, q = gaussian(np.random.default_rng(9), 1000)
    one, other = estimator(p, q), estimator(3 - 1000 * p, 3 - 1000 * q)
    assert one.alpha == pytest.approx(other.alpha, abs=1e-9)


@pytest.mark.parametrize("estimator", [estimate_by_kernel, estimate_by_neighbours])
def test_a_mechanism_without_noise_has_no_errors(estimator) -> None:
    estimate = estimator(np.zeros(400), np.ones(400))
    assert estimate.convex()(0.01) < 0.01
    assert estimate.convex().epsilon_at(1e-3) > 5


@pytest.mark.parametrize("estimator", [estimate_by_kernel, estimate_by_neighbours])
def test_equal_worlds_are_guessed_by_tossing_a_coin(estimator) -> None:
    values = np.random.default_rng(10).normal(size=4000)
    estimate = estimator(values[::2], values[1::2])
    assert distance(estimate, GaussianTradeoff(0.0)) < 0.06


def test_convex_hull_lies_on_or_below_the_estimate() -> None:
    estimate = estimate_by_kernel(*gaussian(np.random.default_rng(11), 500))
    assert (estimate.convex()(ALPHA) <= estimate(ALPHA) + 1e-12).all()
    assert estimate.samples == (500, 500)


def test_a_hundred_thousand_samples_take_less_than_fifty_milliseconds() -> None:
    p, q = gaussian(np.random.default_rng(12), 100_000)
    times = []
    for _ in range(10):
        start = time.thread_time()
        estimate_by_kernel(p, q)
        times.append(time.thread_time() - start)
    assert min(times) < 0.05


test_arguments_out_of_range_are_refused = refusals(
    (lambda: estimate_by_kernel([1, 2], [1, 2], smoothing=-1), "smoothing=-1 must be a finite"),
    (lambda: estimate_by_kernel([1, 2], [1, 2], thresholds=[]), r"thresholds=\[\] must hold"),
    (lambda: estimate_by_kernel([1, 2], [1, 2], thresholds=[-1.0]), "thresholds=.*must hold"),
    (lambda: estimate_by_neighbours([1, 2], [1, 2]), "must hold at least 4 samples"),
    (lambda: estimate_by_kernel(np.eye(4), np.eye(4), bandwidth=1), "bandwidth=1 must be None"),
    (lambda: estimate_by_kernel([1, 2], [1, 2])(1.5), "alpha=1.5 must be"),
)
