import math
import re

import dp_accounting
import mpmath
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant
from gaussian_pairs import gaussian_pair_delta, gaussian_pair_epsilon
from hypothesis import given
from hypothesis import strategies as st
from places import DOCS
from refused_calls import refusals

from lightning_audit.stats.divergences import (
    HockeySticks,
    isotropic_pair_delta,
    isotropic_pair_epsilon,
    renyi_divergence,
    renyi_slope,
    sharpest_score,
    sign_score,
)
from lightning_audit.stats.tradeoff import gaussian_delta, gaussian_epsilon

shifts = st.floats(-50.0, 50.0)
ratios = st.floats(-3.0, 3.0).map(math.exp)
deltas = st.floats(-12, math.log10(0.5)).map(lambda power: 10.0**power)
MUS = [0.02, 0.1, 0.5, 1.0, 2.0, 4.0, 50.0]
coordinates = st.integers(0, 9).map(lambda power: 10**power)


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


def test_divergence_has_ten_digits():
    rng, worst, seen = np.random.default_rng(0), 0.0, 0
    for _ in range(600):
        d = 10 ** rng.uniform(-4, 2) * (rng.random() < 0.9)
        r = math.exp(rng.choice([-1, 1]) * 10 ** rng.uniform(-4, math.log10(6.9)))
        x = d + r * rng.uniform(-3, 8)
        epsilon = max(-math.log(r) + (x * x - ((x - d) / r) ** 2) / 2, 0.0)
        if (truth := exact(epsilon, d, r)) < 1e-12:
            continue
        value = gaussian_pair_delta(epsilon, d, r, 0.0, 1.0)
        worst, seen = max(worst, abs(float(value / truth) - 1)), seen + 1
    assert seen > 400
    assert worst < 1e-10


@given(shifts, ratios, deltas)
def test_epsilon_is_the_least_one_that_is_enough_in_both_directions(d, r, delta):
    epsilon = gaussian_pair_epsilon(d, r, 0.0, 1.0, delta)
    there = [gaussian_pair_delta(epsilon, *p) for p in ((d, r, 0.0, 1.0), (0.0, 1.0, d, r))]
    # Rounding of epsilon moves the logarithm of delta by as much as its slope.
    slack = 1e-9 + 1e-15 * epsilon * (1 + abs(d) / min(r, 1.0)) ** 2
    if epsilon > 0:
        assert max(there) == pytest.approx(delta, rel=slack)
    else:
        assert max(there) <= delta * (1 + 1e-9)


@given(st.floats(0.0, 100.0), st.floats(0.1, 10.0), deltas)
def test_nearly_equal_variances_are_gaussian_dp(mu, std, delta):
    shift = mu / std
    near = gaussian_pair_epsilon(mu, std * (1 + 1e-12), 0.0, std, delta)
    assert near == pytest.approx(gaussian_epsilon(shift, delta), rel=1e-7, abs=1e-7)


def test_extremes_have_an_answer():
    assert gaussian_pair_delta(0.0, 1e9, 2.0, 0.0, 1.0) == 1.0
    # The narrower one exceeds the other by no more than the ratio of the standard deviations.
    assert gaussian_pair_delta(math.log(2), 0.0, 1.0, 0.0, 2.0) == 0.0
    assert gaussian_pair_epsilon(1e6, 2.0, 0.0, 1.0, 1e-5) == pytest.approx(5e11, rel=1e-4)
    assert gaussian_pair_epsilon(0.0, 1e8, 0.0, 1.0, 0.1) == pytest.approx(1.353e16, rel=1e-3)
    assert gaussian_pair_epsilon(0.0, 1e200, 0.0, 1.0, 0.5) == math.inf
    assert gaussian_pair_epsilon(0.0, 1e-200, 0.0, 1.0, 0.5) == math.inf
    assert gaussian_pair_epsilon(0.1, 1.01, 0.0, 1.0, 0.5) == 0.0


# --- Scores of a guess made of hockey sticks.
def naive_score(sticks: HockeySticks, x: float, b: float) -> float:
    total = 0.0
    for c, t, eps in zip(sticks.weights, sticks.thresholds, sticks.epsilons, strict=True):
        if x > t:
            total += c * (b - np.exp(eps) * (1 - b))
        if x < -t:
            total += c * ((1 - b) - np.exp(eps) * b)
    return total


@pytest.mark.parametrize("mu", MUS)
def test_score_is_the_sum_of_its_sticks(mu):
    rng = np.random.default_rng(0)
    x, b = rng.normal(size=200), rng.integers(0, 2, 200).astype(float)
    for sticks in (sharpest_score(mu), sign_score(mu)):
        naive = [naive_score(sticks, *pair) for pair in zip(x, b, strict=True)]
        assert sticks.score(x, b) == pytest.approx(naive)
        assert sticks.score(x, b).min() >= -sticks.largest_loss - 1e-12


@pytest.mark.parametrize("mu", MUS)
def test_most_is_above_the_divergences_and_concave_in_the_square_of_mu(mu):
    sticks = sharpest_score(mu)
    square = np.linspace(1e-6, 9.0, 20_000) * max(mu, 0.05) ** 2
    most = sticks.most(np.sqrt(square))
    exact = gaussian_delta(sticks.epsilons, np.sqrt(square)[:, None]) @ sticks.weights
    assert (most >= exact).all()
    assert (np.diff(most) >= 0).all()
    rises = np.diff(most[::50])
    assert (np.diff(rises) <= 1e-3 * rises[:-1]).all()  # the hull is that of a grid
    # At the step that it is made for little is given away, of common noise multipliers nothing.
    made_for = min(max(mu, 0.05), 4.0)
    least = float(gaussian_delta(sticks.epsilons, made_for) @ sticks.weights)
    assert float(sticks.most(np.asarray(made_for))) / least - 1.0 < (1e-9 if mu >= 0.1 else 0.03)


@pytest.mark.parametrize("mu", [0.1, 1.0, 3.0])
def test_slope_is_the_derivative_of_most(mu):
    for sticks in (sharpest_score(mu), sign_score(mu)):
        at = np.geomspace(0.01, 5.0, 200)
        h = 1e-6 * at
        numeric = (sticks.most(at + h) - sticks.most(at - h)) / (2 * h)
        assert sticks.slope(at) == pytest.approx(numeric, rel=1e-3, abs=1e-7)


@pytest.mark.parametrize("mu", [0.3, 1.0, 2.5])
def test_mean_and_variance_are_those_of_the_gaussian_step(mu):
    rng = np.random.default_rng(1)
    b = rng.integers(0, 2, 400_000).astype(float)
    x = mu * (b - 0.5) + rng.standard_normal(len(b))
    for sticks in (sharpest_score(mu), sign_score(mu)):
        values = sticks.score(x, b)
        assert values.mean() == pytest.approx(sticks.mean, abs=5 * values.std() / len(b) ** 0.5)
        assert sticks.mean == pytest.approx(float(sticks.most(np.asarray(mu))), rel=1e-6)
        assert values.var() == pytest.approx(sticks.variance, rel=0.02)


def test_the_sharpest_score_tells_nearly_as_much_as_the_likelihood_ratio():
    def information(sticks: HockeySticks, mu: float) -> float:
        return float(sticks.slope(np.asarray(mu)) * mu) ** 2 / sticks.variance

    # Of mu^2 / 4 that the likelihood ratio has.
    assert information(sharpest_score(1.0), 1.0) == pytest.approx(0.2154, abs=2e-4)
    assert information(sign_score(1.0), 1.0) == pytest.approx(0.1452, abs=2e-4)
    for mu in (0.1, 0.5, 2.0):
        assert information(sharpest_score(mu), mu) > 1.3 * information(sign_score(mu), mu)


def test_the_mean_of_any_private_pair_is_below_most():
    """What post-processing makes of a Gaussian step."""
    sticks = sharpest_score(1.0)
    rng = np.random.default_rng(2)
    b = rng.integers(0, 2, 400_000).astype(float)
    noise = rng.standard_normal(len(b))
    limit = float(sticks.most(np.asarray(1.0)))
    for x in (
        b - 0.5 + noise,
        b - 0.2 + noise,  # the middle is off
        np.sign(b - 0.5 + noise) * 9.0,  # all readings are far
        np.cbrt(b - 0.5 + noise),
        (b - 0.5 + noise) * 7.0,
    ):
        values = sticks.score(x, b)
        assert values.mean() <= limit + 5 * values.std() / len(b) ** 0.5


def exact_isotropic(epsilon: float, ratio: float, n: int) -> mpmath.mpf:
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
def test_epsilon_solves_the_exact_divergence(ratio, n):
    for delta in (0.3, 1e-3, 1e-5, 1e-10):
        epsilon = isotropic_pair_epsilon(ratio, n, delta)
        larger = max(exact_isotropic(epsilon, r, n) for r in (ratio, float(1 / ratio)))
        if epsilon:
            assert float(larger / delta) == pytest.approx(1.0, abs=1e-9)
        else:
            assert larger <= delta


@pytest.mark.parametrize("mu", [0.1, 1.0, 5.0])
def test_many_coordinates_of_nearly_one_scale_tend_to_gaussian_dp_as_their_root(mu):
    above = np.zeros((4, 2))
    for i, n in enumerate([10**6, 10**8, 10**10, 10**12]):
        log_ratio = mu / math.sqrt(2 * n)
        epsilon = isotropic_pair_epsilon(math.exp(log_ratio), n, 1e-5)
        delta = isotropic_pair_delta(0.5, math.exp(-log_ratio), n)
        above[i] = epsilon - gaussian_epsilon(mu, 1e-5), delta - gaussian_delta(0.5, mu)
    assert above[:-1] / above[1:] == pytest.approx(10.0, rel=0.04)
    assert np.all(above > 0)


def test_the_table_of_the_page_is_computed():
    page = (DOCS / "design-decisions.md").read_text()
    rows = re.findall(r"^\| (\d+), (\d+) \| (\d+), (\d+) \| (\S+) \|$", page, re.M)
    assert len(rows) == 5
    for *numbers, printed in rows:
        divisor, other, parameters, steps = map(int, numbers)
        epsilon = isotropic_pair_epsilon(divisor / other, parameters * steps, 1e-5)
        assert f"{epsilon:.4g}" == printed


@pytest.mark.parametrize("n", [1, 1000, 10**9])
def test_the_least_deltas_have_a_finite_epsilon(n):
    found = [isotropic_pair_epsilon(1.1, n, delta) for delta in (1e-100, 1e-305)]
    assert found[0] < found[1] < math.inf


def test_equal_scales_are_not_told_apart():
    assert isotropic_pair_epsilon(1.0, 10**9, 1e-10) == 0.0
    assert isotropic_pair_delta(0.0, 1.0, 10**9) == isotropic_pair_delta(math.inf, 2.0, 10) == 0.0


test_bad_arguments_are_named = refusals(
    (lambda: isotropic_pair_epsilon(0.0, 10, 1e-5), r"ratio=0\.0 must be a finite number > 0"),
    (lambda: isotropic_pair_epsilon(1e101, 10, 1e-5), r"=1e\+101 must be in \[1e-100, 1e100\]"),
    (lambda: isotropic_pair_epsilon(1.1, 0, 1e-5), r"coordinates=0 must be a whole .* of param"),
    (lambda: isotropic_pair_delta(-1, 1.1, 10), r"epsilon=-1 must be a finite number >= 0"),
)


# --- The cost of a step: Rényi divergences.
@pytest.mark.parametrize("mu", [0.1, 0.5, 1.0, 1.7, 3.0])
@pytest.mark.parametrize("rate", [1e-4, 0.01, 0.3, 0.99])
def test_they_are_what_a_renyi_accountant_adds(mu, rate):
    orders = [2, 3, 8, 32]
    accountant = RdpAccountant(orders=orders)
    step = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(1.0 / mu))
    accountant.compose(step)
    found = [float(renyi_divergence(mu, rate, order)) for order in orders]
    assert found == pytest.approx(accountant._rdp, rel=1e-6, abs=1e-14)
    # At order two the sum has a closed form.
    closed = np.log1p(rate**2 * np.expm1(mu**2))
    assert float(renyi_divergence(mu, rate, 2)) == pytest.approx(closed, rel=1e-12)


def test_a_small_divergence_keeps_its_digits_and_a_large_one_does_not_overflow():
    mu = np.array([0.0, 1e-5, 0.999, 1.001, 5.0, 1e3])
    for order in (2, 5, 64):
        assert renyi_divergence(mu, 1.0, order) == pytest.approx(0.5 * order * mu**2, rel=1e-12)
        assert renyi_slope(mu, 1.0, order) == pytest.approx(order * mu, rel=1e-12)
    assert renyi_divergence(1e-4, 1e-3, 2) == pytest.approx(1e-6 * math.expm1(1e-8), rel=1e-9)
    assert renyi_divergence(1e3, 0.01, 2) == pytest.approx(1e6 + 2 * np.log(0.01))
    assert renyi_slope(1e3, 0.01, 2) == pytest.approx(2e3)


@pytest.mark.parametrize("order", [2, 12, 64])
@pytest.mark.parametrize("rate", [1e-3, 0.05, 0.5])
def test_slope_is_the_derivative_and_the_cost_is_convex_in_the_square(rate, order):
    mu = np.geomspace(1e-2, 8.0, 200)
    h = 1e-5 * mu
    numeric = renyi_divergence(mu + h, rate, order) - renyi_divergence(mu - h, rate, order)
    assert renyi_slope(mu, rate, order) == pytest.approx(numeric / (2 * h), rel=1e-4)
    cost = renyi_divergence(np.sqrt(np.linspace(1e-4, 40.0, 2000)), rate, order)
    assert (np.diff(cost, n=2) > -1e-9).all()
