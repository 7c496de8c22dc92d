from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refused_calls import refusals
from scipy import integrate, stats

from lightning_audit.stats.divergences import gaussian_pair_delta, gaussian_pair_epsilon
from lightning_audit.stats.tradeoff import gaussian_delta, gaussian_epsilon

shifts = st.floats(-50.0, 50.0)
ratios = st.floats(-3.0, 3.0).map(math.exp)
deltas = st.floats(-12, math.log10(0.5)).map(lambda power: 10.0**power)


def integrated(epsilon: float, m1: float, s1: float, m0: float, s0: float) -> float:
    """The positive part of p - e^epsilon q, by the trapezoid rule."""
    x = np.linspace(m1 - 12 * s1, m1 + 12 * s1, 400_001)
    excess = stats.norm.pdf(x, m1, s1) - math.exp(epsilon) * stats.norm.pdf(x, m0, s0)
    return float(integrate.trapezoid(np.maximum(excess, 0.0), x))


def exact(epsilon: float, d: float, r: float) -> mpmath.mpf:
    """The two probabilities of the set itself, in 60 digits."""
    with mpmath.workdps(60):
        e, d, r = mpmath.mpf(epsilon), mpmath.mpf(d), mpmath.mpf(r)

        def above(x, mean, std):
            return mpmath.erfc((x - mean) / (std * mpmath.sqrt(2))) / 2

        square, linear = (1 - 1 / r**2) / 2, d / r**2
        rest = -mpmath.log(r) - linear * d / 2 - e
        if (root := linear**2 - 4 * square * rest) <= 0:
            return mpmath.mpf(0)
        ends = sorted((-linear + sign * mpmath.sqrt(root)) / (2 * square) for sign in (-1, 1))
        p, q = (
            [above(x, mean, std) for x in ends] + [above(-ends[0], -mean, std)]
            for mean, std in ((d, r), (mpmath.mpf(0), mpmath.mpf(1)))
        )
        if r < 1:
            return p[0] - p[1] - mpmath.exp(e) * (q[0] - q[1])
        return p[2] + p[1] - mpmath.exp(e) * (q[2] + q[1])


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 2.0])
@pytest.mark.parametrize("m1", [0.0, 0.01, -1.0, 4.0])
@pytest.mark.parametrize(
    ("s1", "s0"), [(1.0, 1.0), (1.5, 1.0), (1.0, 1.5), (0.3, 1.2), (7.0, 7.01)]
)
def test_divergence_is_the_integral_of_the_excess_of_the_density(epsilon, m1, s1, s0) -> None:
    value = gaussian_pair_delta(epsilon, m1, s1, 0.5, s0)
    assert value == pytest.approx(integrated(epsilon, m1, s1, 0.5, s0), rel=1e-6, abs=1e-9)


def test_divergence_has_ten_digits() -> None:
    rng = np.random.default_rng(0)
    worst, seen = 0.0, 0
    for _ in range(1500):
        d = 10 ** rng.uniform(-4, 2) * (rng.random() < 0.9)
        r = math.exp(rng.choice([-1, 1]) * 10 ** rng.uniform(-4, math.log10(6.9)))
        x = d + r * rng.uniform(-3, 8)
        epsilon = max(-math.log(r) + (x * x - ((x - d) / r) ** 2) / 2, 0.0)
        if (truth := exact(epsilon, d, r)) < 1e-12:
            continue
        value = gaussian_pair_delta(epsilon, d, r, 0.0, 1.0)
        worst, seen = max(worst, abs(float(value / truth) - 1)), seen + 1
    assert seen > 1000
    assert worst < 1e-10


@given(shifts, ratios, deltas)
def test_epsilon_is_the_least_one_that_is_enough_in_both_directions(d, r, delta) -> None:
    epsilon = gaussian_pair_epsilon(d, r, 0.0, 1.0, delta)
    there = [gaussian_pair_delta(epsilon, *p) for p in ((d, r, 0.0, 1.0), (0.0, 1.0, d, r))]
    # Rounding of epsilon moves the logarithm of delta by as much as its slope.
    slack = 1e-9 + 1e-15 * epsilon * (1 + abs(d) / min(r, 1.0)) ** 2
    if epsilon > 0:
        assert max(there) == pytest.approx(delta, rel=slack)
    else:
        assert max(there) <= delta * (1 + 1e-9)


@given(shifts, ratios, deltas, st.floats(0.01, 100.0), st.floats(-1e3, 1e3))
def test_epsilon_is_that_of_the_swapped_the_mirrored_and_the_rescaled_pair(
    d, r, delta, scale, offset
) -> None:
    epsilon = gaussian_pair_epsilon(d, r, 0.0, 1.0, delta)
    for pair in (
        (0.0, 1.0, d, r),
        (-d, r, 0.0, 1.0),
        (offset + scale * d, scale * r, offset, scale),
    ):
        assert gaussian_pair_epsilon(*pair, delta) == pytest.approx(epsilon, rel=1e-6, abs=1e-6)


@given(shifts, ratios, deltas, st.floats(0.01, 10.0))
def test_epsilon_falls_with_delta_with_noise_on_both_and_with_nearer_means(
    d, r, delta, noise
) -> None:
    epsilon = gaussian_pair_epsilon(d, r, 0.0, 1.0, delta) * (1 + 1e-12) + 1e-9
    assert gaussian_pair_epsilon(d, r, 0.0, 1.0, min(1.1 * delta, 0.9)) <= epsilon
    noisy = gaussian_pair_epsilon(d, math.hypot(r, noise), 0.0, math.hypot(1.0, noise), delta)
    assert noisy <= epsilon
    assert gaussian_pair_epsilon(0.9 * d, r, 0.0, 1.0, delta) <= epsilon


@given(st.floats(0.0, 100.0), st.floats(0.1, 10.0), deltas, st.floats(0.0, 20.0))
def test_equal_variances_are_gaussian_dp(mu, std, delta, epsilon) -> None:
    shift = mu / std
    assert gaussian_pair_epsilon(mu, std, 0.0, std, delta) == gaussian_epsilon(shift, delta)
    assert gaussian_pair_delta(epsilon, mu, std, 0.0, std) == gaussian_delta(epsilon, shift)
    near = gaussian_pair_epsilon(mu, std * (1 + 1e-12), 0.0, std, delta)
    assert near == pytest.approx(gaussian_epsilon(shift, delta), rel=1e-7, abs=1e-7)


def test_arrays_are_taken_element_by_element() -> None:
    means, stds = np.array([[0.0], [2.0]]), np.array([0.5, 1.0, 2.0])
    epsilon = gaussian_pair_epsilon(means, stds, 0.0, 1.0, 1e-5)
    delta = gaussian_pair_delta(1.0, means, stds, 0.0, 1.0)
    assert epsilon.shape == delta.shape == (2, 3)
    for i, mean in enumerate(means[:, 0]):
        for j, std in enumerate(stds):
            assert epsilon[i, j] == gaussian_pair_epsilon(float(mean), float(std), 0.0, 1.0, 1e-5)
            assert delta[i, j] == gaussian_pair_delta(1.0, float(mean), float(std), 0.0, 1.0)


def test_extremes_have_an_answer() -> None:
    assert gaussian_pair_delta(math.inf, 3.0, 2.0, 0.0, 1.0) == 0.0
    assert gaussian_pair_delta(0.0, 1e9, 2.0, 0.0, 1.0) == 1.0
    # The narrower one exceeds the other by no more than the ratio of the standard deviations.
    assert gaussian_pair_delta(math.log(2), 0.0, 1.0, 0.0, 2.0) == 0.0
    assert gaussian_pair_epsilon(1e6, 2.0, 0.0, 1.0, 1e-5) == pytest.approx(5e11, rel=1e-4)
    assert gaussian_pair_epsilon(0.0, 1e8, 0.0, 1.0, 0.1) == pytest.approx(1.353e16, rel=1e-3)
    assert gaussian_pair_epsilon(0.0, 1e200, 0.0, 1.0, 0.5) == math.inf
    assert gaussian_pair_epsilon(0.0, 1e-200, 0.0, 1.0, 0.5) == math.inf
    assert gaussian_pair_epsilon(0.1, 1.01, 0.0, 1.0, 0.5) == 0.0


test_arguments_out_of_range_are_refused = refusals(
    (lambda: gaussian_pair_delta(-1.0, 0.0, 1.0, 0.0, 1.0), r"epsilon=-1\.0 must be"),
    (lambda: gaussian_pair_delta(1.0, math.nan, 1.0, 0.0, 1.0), "mean_p=nan must be"),
    (lambda: gaussian_pair_delta(1.0, 0.0, 0.0, 0.0, 1.0), r"std_p=0\.0 must be a finite numb"),
    (lambda: gaussian_pair_epsilon(0.0, 1.0, math.inf, 1.0, 1e-5), "mean_q=inf must be"),
    (lambda: gaussian_pair_epsilon(0.0, 1.0, 0.0, -1.0, 1e-5), r"std_q=-1\.0 must be a finite"),
    (lambda: gaussian_pair_epsilon(0.0, 1.0, 0.0, 1.0, 0.0), r"delta=0\.0 must be in \(0, 1\)"),
)
