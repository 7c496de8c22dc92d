import math

import mpmath
import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from refused_calls import refusals
from scipy import special, stats
from scipy.spatial import ConvexHull

from lightning_audit.stats.tradeoff import (
    ApproxDPTradeoff,
    GaussianTradeoff,
    PiecewiseTradeoff,
    SubsampledGaussianTradeoff,
    TradeoffFunction,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_mu,
)

mus = st.floats(1e-3, 50)
deltas = st.floats(-12, math.log10(0.5)).map(lambda power: 10.0**power)
MUS = [1e-3, 3e-3, 0.01, 0.0999999, 0.1, 0.1000001, 0.33307, 1.0, 2.0, 3.0, 10.0, 27.0, 50.0]
DELTAS = [1e-12, 1e-9, 1e-5, 1e-3, 0.1, 0.5]
rates = st.floats(0, 1)
points = st.lists(st.tuples(rates, rates), max_size=20)
sigmas, qs = st.floats(0.1, 20), st.floats(1e-4, 1)
directions = st.sampled_from(["both", "remove", "add"])
CASES = [(0.3**0.5, 0.25), (1.0, 0.01), (0.4, 0.9), (3.0, 1.0), (0.2, 0.05)]
alphas = st.floats(0, 1)


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


@pytest.mark.parametrize(
    ("mu", "delta", "epsilon"),
    [
        *((1, 1e-5, 4.37717810), (50, 1e-12, 1600.78866)),
        *((6.11902, 1e-5, 44.061), (5.97274, 1e-5, 42.557)),
    ],
)
def test_reference_epsilons_of_mu(mu, delta, epsilon):
    digits = 2e-5 if epsilon in (44.061, 42.557) else 5e-9
    assert gaussian_epsilon(mu, delta) == pytest.approx(epsilon, rel=digits)


@pytest.mark.parametrize(
    ("epsilon", "mu", "digits"),
    [(1, 0.2681, 4), (1.27, 0.33307, 5), (1.57, 0.40348, 5), (4, 0.9249, 4), (8, 1.6660, 4)],
)
def test_reference_mus_of_epsilon(epsilon, mu, digits):
    assert gaussian_mu(epsilon, 1e-5) == pytest.approx(mu, abs=0.51 * 10**-digits)
    if epsilon == 1.27:  # the noise multiplier of the claim
        assert 1 / gaussian_mu(epsilon, 1e-5) == pytest.approx(3.0023, abs=6e-5)
        assert gaussian_epsilon(0.25, 1e-5) == pytest.approx(0.926, abs=6e-4)


@pytest.mark.parametrize("mu", MUS)
def test_delta_has_twelve_digits(mu):
    with mpmath.workdps(60):
        for delta in DELTAS:
            epsilon = gaussian_epsilon(mu, delta)
            for point in {epsilon, 0.3 * epsilon, 0.0, 0.1 * mu}:
                exact = exact_delta(point, mu)
                if exact >= 1e-12:
                    assert relative_error(gaussian_delta(point, mu), exact) < 1e-12


@pytest.mark.parametrize("epsilon", [0.0, 1e-6, 1e-3, 0.1, 1.0, 8.0, 100.0, 1600.0])
def test_mu_has_twelve_digits(epsilon):
    for delta in DELTAS:
        mu = gaussian_mu(epsilon, delta)
        assert relative_error(mu, exact_root(lambda m: exact_delta(epsilon, m), delta, mu)) < 1e-12


@pytest.mark.parametrize("delta", [1e-300, 1e-100])
@pytest.mark.parametrize("mu", [1e-6, 0.01, 1.0, 50.0])
def test_tiny_deltas_keep_ten_digits(mu, delta):
    epsilon = gaussian_epsilon(mu, delta)
    with mpmath.workdps(400):
        assert relative_error(gaussian_delta(epsilon, mu), exact_delta(epsilon, mu)) < 1e-10
    assert gaussian_mu(epsilon, delta) == pytest.approx(mu, rel=1e-10)


@given(mus, deltas)
def test_mu_undoes_epsilon(mu, delta):
    epsilon = gaussian_epsilon(mu, delta)
    # Where delta is above delta(0) there is nothing to undo, and next to it mu is ill-conditioned.
    assume(epsilon > 1e-3 * mu)
    assert gaussian_mu(epsilon, delta) == pytest.approx(mu, rel=1e-11)
    assert gaussian_delta(epsilon, mu) == pytest.approx(delta, rel=1e-11)


def test_ends_of_the_range():
    assert (gaussian_epsilon(0.0, 1e-5), gaussian_epsilon(math.inf, 1e-5)) == (0.0, math.inf)
    assert gaussian_epsilon(1e200, 1e-5) == math.inf
    assert gaussian_epsilon(1e8, 1e-5) == pytest.approx(5e15, rel=1e-6)
    assert gaussian_mu(math.inf, 1e-5) == math.inf
    assert gaussian_mu(1e300, 1e-5) == pytest.approx(math.sqrt(2e300), rel=1e-12)
    assert (gaussian_delta(0.0, 0.0), gaussian_delta(math.inf, 1.0)) == (0.0, 0.0)
    assert gaussian_delta(3.0, math.inf) == 1.0
    assert gaussian_delta(0.0, 1e-200) == pytest.approx(1e-200 / math.sqrt(2 * math.pi))
    assert gaussian_delta(5.0, 1e5) == 1.0


def of_points(found: list[tuple[float, float]]) -> PiecewiseTradeoff:
    return PiecewiseTradeoff([a for a, _ in found], [b for _, b in found])


def is_a_tradeoff_function(f: TradeoffFunction, alpha, other, weight) -> None:
    assert isinstance(f, TradeoffFunction)
    beta, other_beta = f(alpha), f(other)
    assert 0 <= beta <= 1 - alpha + 1e-12
    if alpha <= other:
        assert beta >= other_beta - 1e-12
    between = f(min(weight * alpha + (1 - weight) * other, 1.0))
    assert between <= weight * beta + (1 - weight) * other_beta + 1e-12


# Two points so near that rounding decides which is above the other's line: one of them must stay.
@example(
    [(0.7143257050979355, 0.28283178817419974), (0.714325705097931, 0.2828317881742041)], 0, 0, 0
)
@given(points, rates, rates, rates)
def test_is_a_tradeoff_function_on_or_below_its_points(found, alpha, other, weight):
    f = of_points(found)
    for a, b in found:
        assert f(a) <= b + 1e-12
    is_a_tradeoff_function(f, alpha, other, weight)
    assert (np.diff(f.alphas) > 0).all()
    assert (np.diff(f.betas) <= 0).all()
    assert f.betas[-1] == 0


def test_corners_are_those_of_a_library_hull():
    rng = np.random.default_rng(0)
    alpha = rng.random(500)
    beta = (1 - np.sqrt(alpha)) ** 2 + 0.2 * rng.random(500)
    f = PiecewiseTradeoff(np.minimum(alpha, 1), np.minimum(beta, 1))
    cloud = np.column_stack([alpha, beta])
    cloud = np.vstack([cloud[beta <= 1], [[0, 1], [1, 0], [1, 1]]])
    corners = cloud[ConvexHull(cloud).vertices]
    corners = corners[(corners != 1).any(axis=1)]
    order = np.argsort(corners[:, 0])
    assert f.alphas == pytest.approx(corners[order, 0])
    assert f.betas == pytest.approx(corners[order, 1])


@given(points, st.floats(0, 20))
def test_privacy_curve_is_the_maximum_over_the_corners(found, epsilon):
    f = of_points(found)
    naive = max(0.0, float(np.max(1 - f.betas - math.exp(epsilon) * f.alphas)))
    assert f.delta_at(epsilon) == pytest.approx(naive, abs=1e-14)


@given(points, st.floats(1e-9, 1 - 1e-9))
def test_epsilon_is_the_least_with_its_delta(found, delta):
    f = of_points(found)
    epsilon = f.epsilon_at(delta)
    if math.isinf(epsilon):
        assert f.betas[0] < 1 - delta
        return
    assert f.delta_at(epsilon) <= delta + 1e-13
    if 1e-9 < epsilon < 700:  # beyond, e^epsilon is infinite
        assert f.delta_at(epsilon * (1 - 1e-9)) > delta - 1e-13


def test_named_cases():
    nothing = PiecewiseTradeoff([], [])
    assert nothing(0.3) == pytest.approx(0.7)
    assert (nothing.delta_at(0.0), nothing.epsilon_at(1e-5)) == (0.0, 0.0)
    everything = PiecewiseTradeoff([0.0], [0.0])
    assert everything(0.0) == 0.0
    assert (everything.delta_at(math.inf), everything.epsilon_at(0.5)) == (1.0, math.inf)
    leak = PiecewiseTradeoff([0.0], [0.9])
    assert leak.epsilon_at(np.array([0.05, 0.1, 0.2])).tolist() == [math.inf, 0.0, 0.0]
    assert repr(leak) == "PiecewiseTradeoff(2 corners)"
    assert type(leak(0.5)) is float
    assert leak(np.array([[0.0, 1.0]])).tolist() == [[0.9, 0.0]]


def test_reference_step():
    f = SubsampledGaussianTradeoff(0.3**0.5, 0.25)
    assert (f(0.1), f.epsilon_at(1e-5)) == pytest.approx((0.7483, 6.9533), abs=6e-5)
    same_epsilon = GaussianTradeoff(gaussian_mu(f.epsilon_at(1e-5), 1e-5))
    assert same_epsilon(0.1) == pytest.approx(0.4204, abs=6e-5)


def masses(edges: np.ndarray) -> np.ndarray:
    """Normal probabilities of the cells, with all digits in both tails."""
    low, high = edges[:-1], edges[1:]
    below = special.ndtr(high) - special.ndtr(low)
    return np.where(low < 0, below, special.ndtr(-low) - special.ndtr(-high))


def neyman_pearson(sigma: float, q: float, direction: str) -> tuple[np.ndarray, np.ndarray]:
    """Error rates of the likelihood ratio tests, by sorting cells of the real line."""
    edges = np.concatenate([[-np.inf], np.linspace(-9 * sigma, 1 + 9 * sigma, 40_001), [np.inf]])
    out = masses(edges / sigma)
    inside = (1 - q) * out + q * masses((edges - 1) / sigma)
    null, alternative = (inside, out) if direction == "add" else (out, inside)
    with np.errstate(divide="ignore", invalid="ignore"):
        order = np.argsort(-np.nan_to_num(alternative / null, nan=1.0), kind="stable")
    alpha, power = np.cumsum(null[order]), np.cumsum(alternative[order])
    return np.clip(alpha, 0, 1), np.clip(1 - power, 0, 1)


@pytest.mark.parametrize("direction", ["remove", "add"])
@pytest.mark.parametrize(("sigma", "q"), CASES)
def test_one_direction_is_the_neyman_pearson_curve(sigma, q, direction):
    alpha, beta = neyman_pearson(sigma, q, direction)
    assert SubsampledGaussianTradeoff(sigma, q, direction)(alpha) == pytest.approx(beta, abs=1e-9)


@pytest.mark.parametrize(("sigma", "q"), CASES)
def test_both_directions_are_the_hull_of_the_two(sigma, q):
    rates = [neyman_pearson(sigma, q, direction) for direction in ("remove", "add")]
    hull = PiecewiseTradeoff(*(np.concatenate(parts) for parts in zip(*rates, strict=True)))
    f = SubsampledGaussianTradeoff(sigma, q)
    tried = np.concatenate([np.geomspace(1e-9, 0.5, 200), np.linspace(0.5, 1, 100)])
    assert f(tried) == pytest.approx(hull(tried), abs=1e-7)
    assert (hull(tried) >= f(tried) - 1e-12).all()  # chords lie above a convex curve
    for epsilon in (0.0, 0.1, 1.0, 3.0):
        assert f.delta_at(epsilon) == pytest.approx(hull.delta_at(epsilon), abs=1e-7)


@pytest.mark.parametrize("direction", ["both", "remove", "add"])
@pytest.mark.parametrize(("sigma", "q"), CASES)
def test_privacy_curve_is_the_hockey_stick_divergence(sigma, q, direction):
    x = np.linspace(-10 * sigma, 1 + 10 * sigma, 400_001)
    out, shifted = stats.norm.pdf(x, 0, sigma), stats.norm.pdf(x, 1, sigma)
    inside = (1 - q) * out + q * shifted
    f = SubsampledGaussianTradeoff(sigma, q, direction)
    for epsilon in (0.0, 0.05, 0.5, 2.0):
        remove = np.maximum(inside - math.exp(epsilon) * out, 0).sum() * (x[1] - x[0])
        add = np.maximum(out - math.exp(epsilon) * inside, 0).sum() * (x[1] - x[0])
        naive = {"both": max(remove, add), "remove": remove, "add": add}[direction]
        assert f.delta_at(epsilon) == pytest.approx(naive, abs=1e-8)


@given(sigmas, qs, directions, st.floats(-10, -0.01).map(lambda power: 10.0**power))
@example(0.25, 1.0, "add", 1e-4)
def test_epsilon_undoes_delta(sigma, q, direction, delta):
    f = SubsampledGaussianTradeoff(sigma, q, direction)
    epsilon = f.epsilon_at(delta)
    assert 0 <= epsilon < math.inf
    if epsilon == 0:
        assert f.delta_at(0.0) <= delta * (1 + 1e-12)
    else:
        # Near epsilon = -ln(1 - q) delta may fall by orders of magnitude within a few digits.
        above, below = f.delta_at(epsilon * (1 - 1e-12)), f.delta_at(epsilon * (1 + 1e-12))
        assert below * (1 - 1e-9) - 1e-15 <= delta <= above * (1 + 1e-9) + 1e-15


def test_ends_and_shapes():
    for direction in ("both", "remove", "add"):
        f = SubsampledGaussianTradeoff(0.7, 0.2, direction)
        assert (f(np.array([0.0, 1.0])).tolist(), f.delta_at(math.inf)) == ([1.0, 0.0], 0.0)
        assert f.epsilon_at(0.5) == 0.0
        assert type(f(0.5)) is type(f.delta_at(1.0)) is type(f.epsilon_at(1e-5)) is float
        assert f.epsilon_at(np.array([[1e-9], [1e-5]])).shape == (2, 1)
    # Whatever adding a record does, its loss is at most ln 1/(1 - q).
    assert SubsampledGaussianTradeoff(0.1, 0.2, "add").epsilon_at(1e-12) <= -math.log(0.8)


test_arguments_out_of_range_are_refused = refusals(
    (lambda: gaussian_delta(-1.0, 1.0), r"epsilon=-1\.0 must be a finite number >= 0"),
    (lambda: gaussian_delta(1.0, math.nan), "mu=nan must be"),
    (lambda: gaussian_delta("1", 1.0), "epsilon='1' must be"),
    (lambda: gaussian_epsilon(1.0, 0.0), r"delta=0\.0 must be in \(0, 1\); Gaussian noise"),
    (lambda: gaussian_mu(1.0, np.array([0.5, 1.0])), r"delta=1\.0 must be in \(0, 1\)"),
    (lambda: PiecewiseTradeoff([1.1], [0.5]), r"alpha=1\.1 must be in \(0, 1\]"),
    (lambda: PiecewiseTradeoff([0.5], [0.5, 0.1]), r"shape \(1,\) and beta \(2,\), must be"),
    (lambda: PiecewiseTradeoff([], [])(-0.1), r"alpha=-0\.1 must be"),
    (lambda: SubsampledGaussianTradeoff(0.0, 0.5), r"noise_multiplier=0\.0 must be"),
    (lambda: SubsampledGaussianTradeoff(1.0, 0.0), r"sample_rate=0\.0 must be in \(0, 1\]"),
    (lambda: SubsampledGaussianTradeoff(1.0, 0.5, "in"), "direction='in' must be one of"),
    (lambda: GaussianTradeoff(math.inf), "mu=inf must be a finite number"),
    (lambda: ApproxDPTradeoff(1.0, 1.0), r"delta=1\.0 must be in \(0, 1\); or 0 for pure DP"),
    (lambda: ApproxDPTradeoff(1.0, 0.1)(np.array([0.5, -0.1])), r"alpha=-0\.1 must be"),
    (lambda: ApproxDPTradeoff(1.0, 0.1).epsilon_at(0.0), r"delta=0\.0 must be in \(0, 1\)"),
)


functions = st.one_of(
    st.builds(GaussianTradeoff, st.floats(0, 10)),
    st.builds(ApproxDPTradeoff, st.floats(0, 10), st.floats(0, 0.9)),
)
subsampled = st.builds(SubsampledGaussianTradeoff, sigmas, qs, directions)


@given(st.one_of(functions, subsampled), alphas, alphas, st.floats(0, 1))
def test_is_a_tradeoff_function(f, alpha, other, weight):
    is_a_tradeoff_function(f, alpha, other, weight)


@pytest.mark.parametrize(
    "f", [GaussianTradeoff(0.3), GaussianTradeoff(2.0), ApproxDPTradeoff(1.0, 0.05)]
)
@pytest.mark.parametrize("epsilon", [0.0, 0.5, 1.0, 3.0])
def test_privacy_curve_is_the_conjugate(f, epsilon):
    # delta = max over alpha of 1 - f(alpha) - e^epsilon alpha, here by brute force.
    alpha = np.concatenate([[0.0], np.geomspace(1e-12, 1, 200_001)])
    brute = np.max(1 - f(alpha) - math.exp(epsilon) * alpha)
    assert f.delta_at(epsilon) == pytest.approx(brute, abs=1e-5)
    assert f.delta_at(epsilon) >= brute - 1e-12


@given(st.floats(0, 10), st.floats(0, 0.9), st.floats(0, 12))
def test_approx_dp_curve_and_its_inverse(epsilon, delta, other):
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


def test_approx_dp_below_its_delta_has_no_epsilon():
    found = ApproxDPTradeoff(1.0, 0.1).epsilon_at(np.array([0.05, 0.1, 0.9]))
    assert found.tolist() == [math.inf, 1.0, 0.0]


def test_named_points():
    assert GaussianTradeoff(0.0)(0.3) == pytest.approx(0.7, rel=1e-15)
    assert GaussianTradeoff(2.0)(np.array([0.0, 1.0])).tolist() == [1.0, 0.0]
    # Total variation: alpha + beta is smallest where both are equal, at Phi(-mu / 2).
    assert GaussianTradeoff(2.0)(float(special.ndtr(-1.0))) == pytest.approx(special.ndtr(-1.0))
    at = ApproxDPTradeoff(0.0, 0.2)(np.array([0.0, 0.5, 0.8, 1.0]))
    assert at == pytest.approx([0.8, 0.3, 0.0, 0.0])
    assert ApproxDPTradeoff(1000.0, 0.2)(np.array([0.0, 0.5])).tolist() == [0.8, 0.0]
    # Reference: epsilon 6.9533 at 1e-5 as a Gaussian has FNR .4204 at FPR .1.
    assert GaussianTradeoff(gaussian_mu(6.9533, 1e-5))(0.1) == pytest.approx(0.4204, abs=6e-5)
