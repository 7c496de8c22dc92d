from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from refused_calls import refusals

from lightning_audit.stats.tradeoff import gaussian_delta, gaussian_epsilon, gaussian_mu

mus = st.floats(1e-3, 50)
deltas = st.floats(-12, math.log10(0.5)).map(lambda power: 10.0**power)
epsilons = st.floats(0, 100)

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


# Reference numbers, to the digits given.


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


test_arguments_out_of_range_are_refused = refusals(
    (lambda: gaussian_delta(-1.0, 1.0), r"epsilon=-1\.0 must be a finite number >= 0"),
    (lambda: gaussian_delta(1.0, math.nan), "mu=nan must be"),
    (lambda: gaussian_delta("1", 1.0), "epsilon='1' must be"),
    (lambda: gaussian_epsilon(np.array([1.0, -2.0]), 1e-5), r"mu=-2\.0 must be"),
    (lambda: gaussian_epsilon(np.array([1.0, math.nan]), 1e-5), "mu=nan must be"),
    (lambda: gaussian_epsilon(1.0, 0.0), r"delta=0\.0 must be in \(0, 1\); Gaussian noise"),
    (lambda: gaussian_mu(1.0, np.array([0.5, 1.0])), r"delta=1\.0 must be in \(0, 1\)"),
)
