"""The noise's e-value: against a naive twin, in expectation, and at its ends."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from coin_steps import normal_mean
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from lightning_audit.stats.noise_tests import (
    INTERVAL_SIGNIFICANCE,
    NOISE_PRECISIONS,
    NOISE_WEIGHTS,
    chosen_upper,
    interval_in_words,
    limits_of_each,
    noise_interval,
    noise_log_e,
    noise_lower,
    rounded_down,
    rounded_up,
    units_upper,
)


@pytest.mark.parametrize("count", [1, 7, 60])
@pytest.mark.parametrize("scale", [0.1, 0.8, 1.0, 3.0])
def test_noise_log_e_equals_the_step_by_step_product(count: int, scale: float) -> None:
    x = scale * np.random.default_rng(count).standard_normal(count)
    with mpmath.workdps(40):
        products = []
        for tau in NOISE_PRECISIONS:
            product = mpmath.mpf(1)
            for value in x:
                tau_, value_ = mpmath.mpf(float(tau)), mpmath.mpf(float(value))
                product *= mpmath.sqrt(tau_) * mpmath.exp(-(tau_ - 1) * value_**2 / 2)
            products.append(product)
        expected = float(
            mpmath.log(sum(w * x for w, x in zip(NOISE_WEIGHTS, products, strict=True)))
        )
    assert float(noise_log_e(count, float(x @ x))) == pytest.approx(expected, rel=1e-11, abs=1e-11)


@given(st.integers(1, 10**6), st.floats(0, 4), st.floats(1e-6, 4))
def test_noise_log_e_decreases_in_the_sum_of_squares(
    count: int, mean_square: float, more: float
) -> None:
    smaller, larger = noise_log_e(count, [count * mean_square, count * (mean_square + more)])
    assert larger < smaller or smaller == larger == -math.inf


def test_residuals_of_the_claimed_size_are_no_evidence_of_small_noise() -> None:
    assert (noise_log_e([1, 100, 10**6], [1, 100, 10**6]) <= 0).all()


@pytest.mark.parametrize("actual", [1.0, 1.001, 1.1, 2.0, 10.0])
@pytest.mark.parametrize("data_term", [0.0, 0.05, -0.5, 1.0, 5.0])
def test_noise_factor_of_a_step_has_expectation_at_most_one(
    actual: float, data_term: float
) -> None:
    mean = normal_mean(lambda x: math.exp(float(noise_log_e(1, x * x))), data_term, actual)
    assert mean <= 1 + 1e-9
    if (actual, data_term) == (1.0, 0.0):
        assert mean == pytest.approx(1, abs=1e-9)  # nothing is given away at the claim itself


def test_too_small_a_noise_lets_the_noise_factor_grow_on_average() -> None:
    assert normal_mean(lambda x: math.exp(float(noise_log_e(1, x * x))), 0.0, 0.9) > 1.001


@pytest.mark.parametrize("count", [10**9, 10**12])
def test_huge_counts_give_finite_results(count: int) -> None:
    assert np.isfinite(noise_log_e(count, [0.0, 0.5 * count, 1.0 * count, 9.0 * count])).all()


# ------------------------------------------------------------------ how large the noise is


def _naive_interval(units: list[np.ndarray], significance: float) -> tuple[float, float]:
    """All ratios that no mixture of step-by-step products rejects, by bisection."""

    def rejected(ratio: float, precisions: list[float]) -> bool:
        together = np.concatenate(units)
        terms = [(0.5, together), *((0.5 / len(units), unit) for unit in units)]
        e = mpmath.mpf(0)
        for weight, readings in terms:
            for tau in precisions:
                product = mpmath.mpf(weight / len(precisions))
                for x in readings / ratio:
                    product *= mpmath.sqrt(tau) * mpmath.exp(-(tau - 1) * mpmath.mpf(x) ** 2 / 2)
                e += product
        return bool(e >= 2 / significance)

    def edge(inside: float, outside: float, precisions: list[float]) -> float:
        for _ in range(40):
            middle = math.sqrt(inside * outside)
            inside, outside = (
                (inside, middle) if rejected(middle, precisions) else (middle, outside)
            )
        return inside

    centre = math.sqrt(np.mean(np.concatenate(units) ** 2))
    small = [float(tau) for tau in NOISE_PRECISIONS]
    return (
        edge(centre, centre / 50, [1.0 / tau for tau in small]),
        edge(centre, centre * 50, small),
    )


@pytest.mark.parametrize("counts", [(6,), (9, 4)])
def test_the_interval_is_that_of_the_step_by_step_products(counts: tuple[int, ...]) -> None:
    rng = np.random.default_rng(len(counts))
    units = [0.5 * rng.standard_normal(n) for n in counts]
    found = noise_interval(counts, [float(u @ u) for u in units], 0.1)
    assert found == pytest.approx(_naive_interval(units, 0.1), rel=1e-6)


@pytest.mark.parametrize(
    ("count", "lower", "upper"),  # in 60 digits, by another program
    [
        (30, 0.32884113, 0.90353101),
        (300, 0.43077384, 0.59084492),
        (40_000, 0.49286743, 0.50733499),
    ],
)
def test_intervals_of_half_the_noise_have_these_ends(
    count: int, lower: float, upper: float
) -> None:
    found = noise_interval([count], [count * 0.25], 0.01)
    assert found == pytest.approx((lower, upper), rel=1e-6)
    # No narrower than the exact interval for a number that is fixed beforehand.
    exact = np.sqrt(count * 0.25 / stats.chi2.ppf([0.995, 0.005], count))
    assert found is not None
    assert found[0] < exact[0] < 0.5 < exact[1] < found[1]


@pytest.mark.parametrize("ratio", [0.5, 0.9, 1.0])
def test_the_interval_holds_at_the_look_whose_readings_are_furthest_off(ratio: float) -> None:
    """The step at which a run stops may be any; a chi-square interval fails at such a one."""
    rng, runs, looks = np.random.default_rng(3), 120, 400
    missed = fixed = 0
    for _ in range(runs):
        squares = ratio**2 * rng.chisquare(4, size=(looks, 2)).cumsum(axis=0)
        counts = 4.0 * np.arange(1, looks + 1)[:, None] * np.ones(2)
        n, s = counts.sum(1), squares.sum(1)
        ends = np.sqrt(s[:, None] / stats.chi2.ppf([0.95, 0.05], n[:, None]))
        fixed += bool(((ends[:, 0] > ratio) | (ends[:, 1] < ratio)).any())
        worst = int(np.abs((s / ratio**2 - n) / np.sqrt(2 * n)).argmax())
        found = noise_interval(counts[worst], squares[worst], 0.1)
        missed += found is None or not found[0] <= ratio <= found[1]
    assert missed <= 0.1 * runs
    assert fixed > 0.35 * runs


@pytest.mark.parametrize("ratio", [0.5, 0.8])
def test_the_interval_holds_where_the_finding_stops_the_run_and_the_quietest_reading_does_not(
    ratio: float,
) -> None:
    rng, runs = np.random.default_rng(4), 100
    missed = below = 0
    for _ in range(runs):
        counts, squares = np.zeros(3), np.zeros(3)
        while float(noise_log_e(counts.sum(), squares.sum())) < math.log(1e4):
            counts, squares = counts + 8, squares + ratio**2 * rng.chisquare(8, size=3)
        found = noise_interval(counts, squares, 0.01)
        missed += found is None or not found[0] <= ratio <= found[1]
        below += math.sqrt((squares / counts).min()) < ratio
    assert missed <= 0.01 * runs
    assert below > 0.8 * runs  # what was printed as "that or less"


def test_tensors_of_two_ratios_have_no_interval_and_the_smaller_one_a_limit() -> None:
    counts, squares = np.array([500.0, 500.0]), np.array([500 * 0.25, 500.0])
    assert noise_interval(counts, squares, 0.01) is None
    assert 0.5 < units_upper(counts, squares, 0.01) < 0.62
    assert noise_interval([0, 0], [0, 0], 0.01) == (0, math.inf)


@given(st.floats(1e-6, 1e3))
def test_ends_are_rounded_outwards(value: float) -> None:
    assert rounded_down(value) <= value * (1 + 1e-9)
    assert rounded_up(value) >= value * (1 - 1e-9)
    assert (rounded_up(value) < 1) == (value < 1) or value > 1 - 1e-6
    assert rounded_up(rounded_up(value)) == rounded_up(value)


def test_a_limit_that_shows_nothing_is_no_number() -> None:
    assert interval_in_words(None, math.inf).startswith("smaller than stated, by an amount")
    assert "at most 0.997 times" in interval_in_words(None, 0.9962)
    assert "0 to 0.011 times" in interval_in_words(0.0, 0.0101)


def test_limits_of_several_sums_are_those_of_each_alone() -> None:
    count = np.array([4000, 0, 64, 1856, 20, 9])
    squares = count * np.array([0.25, 1.0, 0.01, 1.3, 1.0, 4.0])
    lower, upper = limits_of_each(count, squares)
    for j, (n, s) in enumerate(zip(count, squares, strict=True)):
        share = INTERVAL_SIGNIFICANCE / len(count)
        assert lower[j] == pytest.approx(noise_lower([n], [s], [1.0], share), rel=1e-5)
        assert upper[j] == pytest.approx(chosen_upper(n, s, len(count)), rel=1e-5)
