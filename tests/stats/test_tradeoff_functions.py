from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from refused_calls import refusals
from scipy import special

from lightning_audit.stats.tradeoff import (
    ApproxDPTradeoff,
    GaussianTradeoff,
    SubsampledGaussianTradeoff,
    TradeoffFunction,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_mu,
)

epsilons = st.floats(0, 100)
alphas = st.floats(0, 1)
deltas = st.floats(-12, math.log10(0.5)).map(lambda power: 10.0**power)


test_arguments_out_of_range_are_refused = refusals(
    (lambda: GaussianTradeoff(-1.0), r"mu=-1\.0 must be"),
    (lambda: GaussianTradeoff(math.inf), "mu=inf must be a finite number"),
    (lambda: ApproxDPTradeoff(-1.0, 0.1), r"epsilon=-1\.0 must be"),
    (lambda: ApproxDPTradeoff(1.0, 1.0), r"delta=1\.0 must be in \(0, 1\); or 0 for pure DP"),
    (lambda: GaussianTradeoff(1.0)(1.1), r"alpha=1\.1 must be in \(0, 1\]"),
    (lambda: ApproxDPTradeoff(1.0, 0.1)(np.array([0.5, -0.1])), r"alpha=-0\.1 must be"),
    (lambda: ApproxDPTradeoff(1.0, 0.1).epsilon_at(0.0), r"delta=0\.0 must be in \(0, 1\)"),
)


functions = st.one_of(
    st.builds(GaussianTradeoff, st.floats(0, 10)),
    st.builds(ApproxDPTradeoff, st.floats(0, 10), st.floats(0, 0.9)),
)
subsampled = st.builds(
    SubsampledGaussianTradeoff,
    st.floats(0.1, 20),
    st.floats(1e-4, 1),
    st.sampled_from(["both", "remove", "add"]),
)


@given(st.one_of(functions, subsampled), alphas, alphas, st.floats(0, 1))
def test_is_a_tradeoff_function(
    f: TradeoffFunction, alpha: float, other: float, weight: float
) -> None:
    assert isinstance(f, TradeoffFunction)
    beta, other_beta = f(alpha), f(other)
    assert 0 <= beta <= 1 - alpha + 1e-12
    if alpha <= other:
        assert beta >= other_beta - 1e-12
    between = f(min(weight * alpha + (1 - weight) * other, 1.0))
    assert between <= weight * beta + (1 - weight) * other_beta + 1e-12


@given(functions, alphas)
def test_is_symmetric(f: TradeoffFunction, alpha: float) -> None:
    beta = f(alpha)
    # f is its own inverse where it is positive and strictly falling.
    assume(1e-9 < beta < 1 - 1e-9 and 1e-9 < alpha < 1 - 1e-9)
    assert f(beta) == pytest.approx(alpha, rel=1e-5)


@pytest.mark.parametrize(
    "f", [GaussianTradeoff(0.3), GaussianTradeoff(2.0), ApproxDPTradeoff(1.0, 0.05)]
)
@pytest.mark.parametrize("epsilon", [0.0, 0.5, 1.0, 3.0])
def test_privacy_curve_is_the_conjugate(f: TradeoffFunction, epsilon: float) -> None:
    # delta = max over alpha of 1 - f(alpha) - e^epsilon alpha, here by brute force.
    alpha = np.concatenate([[0.0], np.geomspace(1e-12, 1, 200_001)])
    brute = np.max(1 - f(alpha) - math.exp(epsilon) * alpha)
    assert f.delta_at(epsilon) == pytest.approx(brute, abs=1e-5)
    assert f.delta_at(epsilon) >= brute - 1e-12


@given(st.floats(0, 10), st.floats(0, 0.9), st.floats(0, 12))
def test_approx_dp_curve_and_its_inverse(epsilon: float, delta: float, other: float) -> None:
    f = ApproxDPTradeoff(epsilon, delta)
    assert f.delta_at(epsilon) == delta
    reached = f.delta_at(other)
    assert delta <= reached <= 1
    assume(reached > 0)
    assert f.epsilon_at(reached) <= other + 1e-9
    if other < epsilon and reached > delta:
        # One rounding error of delta is worth so much epsilon.
        error = 1e-15 * (1 + math.exp(epsilon)) / ((1 - delta) * math.exp(other))
        assert f.epsilon_at(reached) == pytest.approx(other, abs=1e-12 + error)


def test_approx_dp_below_its_delta_has_no_epsilon() -> None:
    f = ApproxDPTradeoff(1.0, 0.1)
    assert f.epsilon_at(np.array([0.05, 0.1, 0.9])).tolist() == [math.inf, 1.0, 0.0]


def test_gaussian_curve_is_the_conversion() -> None:
    f = GaussianTradeoff(1)
    assert f.delta_at(2.0) == gaussian_delta(2.0, 1.0)
    assert f.epsilon_at(1e-5) == gaussian_epsilon(1.0, 1e-5)


def test_named_points() -> None:
    assert GaussianTradeoff(0.0)(0.3) == pytest.approx(0.7, rel=1e-15)
    assert GaussianTradeoff(2.0)(np.array([0.0, 1.0])).tolist() == [1.0, 0.0]
    # Total variation: alpha + beta is smallest where both are equal, at Phi(-mu / 2).
    assert GaussianTradeoff(2.0)(float(special.ndtr(-1.0))) == pytest.approx(special.ndtr(-1.0))
    assert ApproxDPTradeoff(0.0, 0.2)(np.array([0.0, 0.5, 0.8, 1.0])) == pytest.approx(
        [0.8, 0.3, 0.0, 0.0]
    )
    assert ApproxDPTradeoff(1000.0, 0.2)(np.array([0.0, 0.5])).tolist() == [0.8, 0.0]
    # Reference: epsilon 6.9533 at 1e-5 as a Gaussian has FNR .4204 at FPR .1.
    assert GaussianTradeoff(gaussian_mu(6.9533, 1e-5))(0.1) == pytest.approx(0.4204, abs=6e-5)
