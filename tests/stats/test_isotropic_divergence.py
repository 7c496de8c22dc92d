from __future__ import annotations

import itertools
import math
import re

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from places import DOCS

from lightning_audit.stats.divergences import (
    gaussian_pair_delta,
    gaussian_pair_epsilon,
    isotropic_pair_delta,
    isotropic_pair_epsilon,
)
from lightning_audit.stats.tradeoff import gaussian_delta, gaussian_epsilon

ratios = st.floats(-1.5, 1.5).map(math.exp)
coordinates = st.integers(0, 9).map(lambda power: 10**power)
deltas = st.floats(-10, math.log10(0.5)).map(lambda power: 10.0**power)


def exact(epsilon: float, ratio: float, n: int) -> mpmath.mpf:
    """Both probabilities of the best set, by incomplete gamma functions in 60 digits."""
    with mpmath.workdps(60):
        e, r = mpmath.mpf(epsilon), mpmath.mpf(ratio)
        square = 2 * (n * mpmath.log(r) - e) / (1 - r**-2)
        if square <= 0:
            return mpmath.mpf(0)
        ends = (square / 2, mpmath.inf) if r < 1 else (0, square / 2)
        other = [end / r**2 for end in ends]
        half = mpmath.mpf(n) / 2
        p, q = (mpmath.gammainc(half, *pair, regularized=True) for pair in (ends, other))
        return p - mpmath.exp(e) * q


@pytest.mark.parametrize("ratio", [0.5, 0.9, 0.9999, 1.0001, 1.01, 16 / 15, 2.0])
@pytest.mark.parametrize("n", [1, 2, 3, 10, 999, 1000, 100_000])
def test_epsilon_solves_the_exact_divergence(ratio: float, n: int) -> None:
    for delta in (0.3, 1e-3, 1e-5, 1e-10):
        epsilon = isotropic_pair_epsilon(ratio, n, delta)
        larger = max(exact(epsilon, ratio, n), exact(epsilon, float(1 / ratio), n))
        if epsilon:
            assert float(larger / delta) == pytest.approx(1.0, abs=1e-9)
        else:
            assert larger <= delta


@given(ratio=ratios, delta=deltas, epsilon=st.floats(0.0, 20.0))
def test_one_coordinate_is_the_pair_of_two_gaussians(ratio, delta, epsilon) -> None:
    assert isotropic_pair_delta(epsilon, ratio, 1) == pytest.approx(
        gaussian_pair_delta(epsilon, 0.0, 1.0, 0.0, ratio), rel=1e-7, abs=1e-14
    )
    assert isotropic_pair_epsilon(ratio, 1, delta) == pytest.approx(
        gaussian_pair_epsilon(0.0, 1.0, 0.0, ratio, delta), rel=1e-7, abs=1e-9
    )


def test_divergence_is_the_mean_of_what_the_ratio_lacks_over_drawn_vectors() -> None:
    rng = np.random.default_rng(0)
    n, ratio, epsilon = 40, 0.8, 1.5
    squares = np.sum(rng.standard_normal((100_000, n)) ** 2, axis=1)
    log_ratio = n * math.log(ratio) - 0.5 * (1 - ratio**-2) * squares
    lack = np.maximum(-np.expm1(epsilon - log_ratio), 0.0)
    error = float(lack.std()) / math.sqrt(lack.size)
    assert isotropic_pair_delta(epsilon, ratio, n) == pytest.approx(lack.mean(), abs=4 * error)


@pytest.mark.parametrize("mu", [0.1, 1.0, 5.0])
def test_many_coordinates_of_nearly_one_scale_tend_to_gaussian_dp_as_their_root(mu: float) -> None:
    numbers = [10**power for power in (6, 8, 10, 12)]
    above = []
    for n in numbers:
        log_ratio = mu / math.sqrt(2 * n)
        epsilon = isotropic_pair_epsilon(math.exp(log_ratio), n, 1e-5)
        delta = isotropic_pair_delta(0.5, math.exp(-log_ratio), n)
        above.append((epsilon - gaussian_epsilon(mu, 1e-5), delta - gaussian_delta(0.5, mu)))
    assert np.array(above[:-1]) / above[1:] == pytest.approx(10.0, rel=0.04)
    assert np.all(np.array(above) > 0)


def test_without_bound_in_the_number_of_coordinates() -> None:
    found = [isotropic_pair_epsilon(1001 / 1000, 10**power, 1e-5) for power in range(3, 13)]
    assert all(low < high for low, high in itertools.pairwise(found))
    assert found[0] < 0.3
    assert found[-1] > 9e5


@given(ratio=ratios, n=coordinates, delta=deltas)
def test_it_does_not_matter_which_one_is_the_wider(ratio, n, delta) -> None:
    forward, backward = (isotropic_pair_epsilon(r, n, delta) for r in (ratio, 1 / ratio))
    assert forward == pytest.approx(backward, rel=1e-9, abs=1e-9)


@given(ratio=ratios, n=coordinates, delta=deltas)
def test_epsilon_falls_in_delta_and_rises_with_the_ratio(ratio, n, delta) -> None:
    here = isotropic_pair_epsilon(ratio, n, delta)
    assert isotropic_pair_epsilon(ratio, n, min(2 * delta, 0.9)) <= here
    assert isotropic_pair_epsilon(ratio**1.1, n, delta) >= here * (1 - 1e-9)


@given(ratio=ratios, n=coordinates, epsilon=st.floats(0.0, 1e3))
def test_delta_is_a_probability_that_falls_in_epsilon(ratio, n, epsilon) -> None:
    here = isotropic_pair_delta(epsilon, ratio, n)
    assert 0.0 <= isotropic_pair_delta(epsilon + 0.1, ratio, n) <= here <= 1.0


def test_the_table_of_the_page_is_computed() -> None:
    page = DOCS / "design-decisions.md"
    rows = re.findall(r"^\| (\d+) \| (\d+) \| (\d+) \| (\d+) \| (\S+) \|$", page.read_text(), re.M)
    assert len(rows) == 5
    for *numbers, printed in rows:
        divisor, other, parameters, steps = map(int, numbers)
        epsilon = isotropic_pair_epsilon(divisor / other, parameters * steps, 1e-5)
        assert f"{epsilon:.4g}" == printed


@pytest.mark.parametrize("n", [1, 1000, 10**9])
def test_the_least_deltas_have_a_finite_epsilon(n: int) -> None:
    found = [isotropic_pair_epsilon(1.1, n, delta) for delta in (1e-100, 1e-305)]
    assert found[0] < found[1] < math.inf


def test_equal_scales_are_not_told_apart() -> None:
    assert isotropic_pair_epsilon(1.0, 10**9, 1e-10) == 0.0
    assert isotropic_pair_delta(0.0, 1.0, 10**9) == 0.0
    assert isotropic_pair_delta(math.inf, 2.0, 10) == 0.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.0, 10, 1e-5), r"ratio=0\.0 must be a finite number > 0"),
        ((1e101, 10, 1e-5), r"ratio=1e\+101 must be in \[1e-100, 1e100\]"),
        ((1.1, 0, 1e-5), r"coordinates=0 must be a whole number >= 1; it is the number of param"),
        ((1.1, 2.5, 1e-5), r"coordinates=2\.5 must be a whole number"),
        ((1.1, 10, 0.0), r"delta=0\.0 must be in \(0, 1\)"),
    ],
)
def test_bad_arguments_are_named(arguments, message) -> None:
    with pytest.raises(ValueError, match=message):
        isotropic_pair_epsilon(*arguments)


def test_a_negative_epsilon_is_refused() -> None:
    with pytest.raises(ValueError, match=r"epsilon=-1 must be a finite number >= 0"):
        isotropic_pair_delta(-1, 1.1, 10)
