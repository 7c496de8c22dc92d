"""The noise's e-value: against a naive twin, in expectation, and at its ends."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from coin_steps import normal_mean
from hypothesis import given
from hypothesis import strategies as st

from lightning_audit.stats.evalues.noise_scale import NOISE_PRECISIONS, NOISE_WEIGHTS, noise_log_e


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
