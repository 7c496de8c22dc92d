from __future__ import annotations

import math
import subprocess
import sys

import mpmath
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import optimize, special

from lightning_audit.stats.tradeoff import (
    ApproxDPTradeoff,
    GaussianTradeoff,
    TradeoffFunction,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_mu,
)

mus = st.floats(1e-3, 50)
deltas = st.floats(-12, math.log10(0.5)).map(lambda power: 10.0**power)
epsilons = st.floats(0, 100)
alphas = st.floats(0, 1)

MUS = [1e-3, 3e-3, 0.01, 0.0999999, 0.1, 0.1000001, 0.33307, 1.0, 2.0, 3.0, 10.0, 27.0, 50.0]
DELTAS = [1e-12, 1e-9, 1e-5, 1e-3, 0.1, 0.5]


def exact_delta(epsilon, mu):
    epsilon, mu = mpmath.mpf(epsilon), mpmath.mpf(mu)
    a, b = mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu
    return mpmath.ncdf(a) - mpmath.exp(epsilon) * mpmath.ncdf(b)


def exact_root(function, delta, start):
    with mpmath.workdps(40):
        bracket = (mpmath.mpf(start), mpmath.mpf(start) * (1 + mpmath.mpf(10) ** -9))
        return mpmath.findroot(lambda x: mpmath.log(function(x) / mpmath.mpf(delta)), bracket)


def relative_error(value, exact):
    return float(abs(mpmath.mpf(value) / exact - 1))


# STATISTICS.md, sections 0 and E.


@pytest.mark.parametrize(
    ("mu", "delta", "epsilon"),
    [
        (0.01, 1e-5, 0.0272194198),
        (0.1, 1e-5, 0.340669365),
        (0.3, 1e-5, 1.13177490),
        (1, 1e-5, 4.37717810),
        (3, 1e-5, 16.6754944),
        (10, 1e-5, 91.8172896),
        (50, 1e-5, 1462.28502),
        (1e-3, 1e-12, 0.00569954647),
        (1, 1e-12, 7.23849442),
        (50, 1e-12, 1600.78866),
        (6.11902, 1e-5, 44.061),
        (5.97274, 1e-5, 42.557),
    ],
)
def test_reference_epsilons_of_mu(mu: float, delta: float, epsilon: float) -> None:
    digits = 2e-5 if epsilon in (44.061, 42.557) else 5e-9
    assert gaussian_epsilon(mu, delta) == pytest.approx(epsilon, rel=digits)


@pytest.mark.parametrize(
    ("epsilon", "mu", "digits"),
    [
        (1, 0.2681, 4),
        (1.27, 0.33307, 5),
        (1.57, 0.40348, 5),
        (4, 0.9249, 4),
        (8, 1.6660, 4),
    ],
)
def test_reference_mus_of_epsilon(epsilon: float, mu: float, digits: int) -> None:
    assert gaussian_mu(epsilon, 1e-5) == pytest.approx(mu, abs=0.51 * 10**-digits)


def test_reference_noise_multiplier_of_the_claim() -> None:
    assert 1 / gaussian_mu(1.27, 1e-5) == pytest.approx(3.0023, abs=6e-5)
    assert gaussian_epsilon(0.25, 1e-5) == pytest.approx(0.926, abs=6e-4)


# Naive twins.


@pytest.mark.parametrize("mu", MUS)
def test_delta_has_twelve_digits(mu: float) -> None:
    with mpmath.workdps(60):
        for delta in DELTAS:
            epsilon = gaussian_epsilon(mu, delta)
            for point in {epsilon, 0.3 * epsilon, 0.0, 0.1 * mu}:
                exact = exact_delta(point, mu)
                if exact >= 1e-12:
                    assert relative_error(gaussian_delta(point, mu), exact) < 1e-12


@pytest.mark.parametrize("mu", MUS)
def test_epsilon_has_twelve_digits(mu: float) -> None:
    for delta in DELTAS:
        epsilon = gaussian_epsilon(mu, delta)
        if epsilon == 0:
            assert exact_delta(0, mu) <= delta
            continue
        exact = exact_root(lambda eps: exact_delta(eps, mu), delta, epsilon)
        assert relative_error(epsilon, exact) < 1e-12


@pytest.mark.parametrize("epsilon", [0.0, 1e-6, 1e-3, 0.1, 1.0, 8.0, 100.0, 1600.0])
def test_mu_has_twelve_digits(epsilon: float) -> None:
    for delta in DELTAS:
        mu = gaussian_mu(epsilon, delta)
        exact = exact_root(lambda m: exact_delta(epsilon, m), delta, mu)
        assert relative_error(mu, exact) < 1e-12


@pytest.mark.parametrize("mu", [0.05, 0.5, 2.0, 5.0])
def test_agrees_with_textbook_formula_and_bracketing(mu: float) -> None:
    def textbook(epsilon: float) -> float:
        a, b = mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu
        return float(special.ndtr(a) - math.exp(epsilon) * special.ndtr(b))

    twin = optimize.brentq(lambda epsilon: textbook(epsilon) - 1e-4, 0, 100, xtol=1e-14)
    assert gaussian_epsilon(mu, 1e-4) == pytest.approx(twin, rel=1e-9)
    assert gaussian_delta(twin, mu) == pytest.approx(1e-4, rel=1e-9)


@pytest.mark.parametrize("delta", [1e-300, 1e-100])
@pytest.mark.parametrize("mu", [1e-6, 0.01, 1.0, 50.0])
def test_tiny_deltas_keep_ten_digits(mu: float, delta: float) -> None:
    epsilon = gaussian_epsilon(mu, delta)
    with mpmath.workdps(400):
        assert relative_error(gaussian_delta(epsilon, mu), exact_delta(epsilon, mu)) < 1e-10
    assert gaussian_mu(epsilon, delta) == pytest.approx(mu, rel=1e-10)


# Laws.


@given(mus, deltas)
def test_mu_undoes_epsilon(mu: float, delta: float) -> None:
    epsilon = gaussian_epsilon(mu, delta)
    # Where delta is above delta(0) there is nothing to undo, and next to it mu is ill-conditioned.
    assume(epsilon > 1e-3 * mu)
    assert gaussian_mu(epsilon, delta) == pytest.approx(mu, rel=1e-11)
    assert gaussian_delta(epsilon, mu) == pytest.approx(delta, rel=1e-11)


@given(epsilons, deltas)
def test_epsilon_undoes_mu(epsilon: float, delta: float) -> None:
    mu = gaussian_mu(epsilon, delta)
    assert gaussian_epsilon(mu, delta) == pytest.approx(epsilon, rel=1e-9, abs=1e-12 * mu)


@given(mus, deltas, st.floats(1.001, 10))
def test_epsilon_rises_with_mu_and_falls_with_delta(mu: float, delta: float, factor: float) -> None:
    epsilon = gaussian_epsilon(mu, delta)
    assert gaussian_epsilon(mu * factor, delta) >= epsilon
    assert gaussian_epsilon(mu, delta / factor) >= epsilon


@given(epsilons, mus, st.floats(1.001, 10))
def test_delta_rises_with_mu_and_falls_with_epsilon(
    epsilon: float, mu: float, factor: float
) -> None:
    delta = gaussian_delta(epsilon, mu)
    assert 0 <= delta <= 1
    assert gaussian_delta(epsilon, mu * factor) >= delta * (1 - 1e-14)
    assert gaussian_delta(epsilon * factor, mu) <= delta * (1 + 1e-14)


def test_ends_of_the_range() -> None:
    assert gaussian_epsilon(0.0, 1e-5) == 0.0
    assert gaussian_epsilon(math.inf, 1e-5) == math.inf
    assert gaussian_epsilon(1e200, 1e-5) == math.inf
    assert gaussian_epsilon(1e8, 1e-5) == pytest.approx(5e15, rel=1e-6)
    assert gaussian_mu(math.inf, 1e-5) == math.inf
    assert gaussian_mu(1e300, 1e-5) == pytest.approx(math.sqrt(2e300), rel=1e-12)
    assert gaussian_delta(0.0, 0.0) == 0.0
    assert gaussian_delta(math.inf, 1.0) == 0.0
    assert gaussian_delta(3.0, math.inf) == 1.0
    assert gaussian_delta(0.0, 1e-200) == pytest.approx(1e-200 / math.sqrt(2 * math.pi))
    assert gaussian_delta(5.0, 1e5) == 1.0


def test_numbers_give_floats_and_arrays_broadcast() -> None:
    assert type(gaussian_delta(1, 1)) is float
    assert type(gaussian_epsilon(np.float64(1), 1e-5)) is float
    assert type(gaussian_mu(1, 1e-5)) is float
    table = gaussian_epsilon(np.array([[0.5], [2.0]]), np.array([1e-9, 1e-5, 0.3]))
    assert table.shape == (2, 3)
    assert table[1, 0] == gaussian_epsilon(2.0, 1e-9)
    assert gaussian_mu(table, np.array([1e-9, 1e-5, 0.3]))[1] == pytest.approx(2.0, rel=1e-12)
    assert gaussian_delta(np.array([]), 1.0).shape == (0,)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: gaussian_delta(-1.0, 1.0), r"epsilon=-1\.0 must be a finite number >= 0"),
        (lambda: gaussian_delta(1.0, math.nan), "mu=nan must be"),
        (lambda: gaussian_delta("1", 1.0), "epsilon='1' must be"),
        (lambda: gaussian_epsilon(np.array([1.0, -2.0]), 1e-5), r"mu=-2\.0 must be"),
        (lambda: gaussian_epsilon(np.array([1.0, math.nan]), 1e-5), "mu=nan must be"),
        (lambda: gaussian_epsilon(1.0, 0.0), r"delta=0\.0 must be in \(0, 1\); Gaussian noise"),
        (lambda: gaussian_mu(1.0, np.array([0.5, 1.0])), r"delta=1\.0 must be in \(0, 1\)"),
        (lambda: GaussianTradeoff(-1.0), r"mu=-1\.0 must be"),
        (lambda: GaussianTradeoff(math.inf), "mu=inf must be a finite number"),
        (lambda: ApproxDPTradeoff(-1.0, 0.1), r"epsilon=-1\.0 must be"),
        (lambda: ApproxDPTradeoff(1.0, 1.0), r"delta=1\.0 must be in \(0, 1\); or 0 for pure DP"),
        (lambda: GaussianTradeoff(1.0)(1.1), r"alpha=1\.1 must be in \(0, 1\]"),
        (lambda: ApproxDPTradeoff(1.0, 0.1)(np.array([0.5, -0.1])), r"alpha=-0\.1 must be"),
        (lambda: ApproxDPTradeoff(1.0, 0.1).epsilon_at(0.0), r"delta=0\.0 must be in \(0, 1\)"),
    ],
)
def test_arguments_out_of_range_are_refused(call, message) -> None:
    with pytest.raises(ValueError, match=message):
        call()


# Trade-off functions.

functions = st.one_of(
    st.builds(GaussianTradeoff, st.floats(0, 10)),
    st.builds(ApproxDPTradeoff, st.floats(0, 10), st.floats(0, 0.9)),
)


@given(functions, alphas, alphas, st.floats(0, 1))
def test_is_a_tradeoff_function(
    f: TradeoffFunction, alpha: float, other: float, weight: float
) -> None:
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
    # STATISTICS.md, section E: epsilon 6.9533 at 1e-5 as a Gaussian has FNR .4204 at FPR .1.
    assert GaussianTradeoff(gaussian_mu(6.9533, 1e-5))(0.1) == pytest.approx(0.4204, abs=6e-5)


def test_both_functions_keep_the_protocol() -> None:
    assert isinstance(GaussianTradeoff(1.0), TradeoffFunction)
    assert isinstance(ApproxDPTradeoff(1.0, 0.0), TradeoffFunction)


def test_statistics_import_no_torch() -> None:
    code = (
        "import sys, lightning_audit.stats.intervals, lightning_audit.stats.tradeoff;"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
