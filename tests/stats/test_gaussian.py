import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refused_calls import refusals
from scipy import optimize, special, stats

from lightning_audit.stats.gaussian import (
    distance_of_bayes_error,
    log_bayes_error,
    mu_noncentral_t,
    mu_noncentral_t_from_scores,
    mu_white_box,
    mu_white_box_from_scores,
)
from lightning_audit.stats.tradeoff import gaussian_epsilon, gaussian_mu

sizes = st.integers(1, 10**6)


significances = st.sampled_from([1e-9, 1e-3, 0.05, 0.5, 0.9])


@pytest.mark.parametrize("weight", [1e-4, 0.1, 0.5, 0.7, 0.999])
@pytest.mark.parametrize("mu", [0.0, 0.2, 1.0, 4.0])
def test_bayes_error_is_the_least_of_all_thresholds(mu, weight):
    t = np.linspace(-60, 60, 480_001)
    error = (weight * special.ndtr(t - mu) + (1 - weight) * special.ndtr(-t)).min()
    log_error, slope = log_bayes_error(np.array([mu, mu + 1e-5]), np.array([weight, weight]))
    assert np.exp(log_error[0]) == pytest.approx(error, rel=1e-6)
    assert (log_error[1] - log_error[0]) / 1e-5 == pytest.approx(slope[0], rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("weight", [1e-4, 0.1, 0.5, 0.7])
@pytest.mark.parametrize("share", [1e-8, 0.01, 0.5, 0.99, 1.0])
def test_distance_agrees_with_bracketing(weight, share):
    error = share * min(weight, 1 - weight)
    found = distance_of_bayes_error(np.array([error]), np.array([weight]))[0]
    if share == 1.0:
        assert found == 0.0
        return

    def excess(mu: float) -> float:
        return float(log_bayes_error(np.array([mu]), np.array([weight]))[0][0] - np.log(error))

    assert found == pytest.approx(optimize.brentq(excess, 1e-3, 30, xtol=1e-14), rel=1e-11)


def of_t(t: float, n_in: int, n_out: int, significance: float) -> float:
    """The limit on the noncentrality from the t statistic itself."""
    root, squares = math.sqrt(n_in * n_out / (n_in + n_out)), float(n_in + n_out - 2)
    return mu_noncentral_t(n_in, n_out, t / root, squares, significance) * root


@pytest.mark.parametrize("significance", [1e-3, 0.05, 0.5, 0.9])
@pytest.mark.parametrize(("n_in", "n_out"), [(2, 1), (5, 5), (50, 50), (30, 900)])
@pytest.mark.parametrize("t", [-1.0, 0.5, 3.0, 12.0])
def test_agrees_with_root_of_scipys_noncentral_t(t, n_in, n_out, significance):
    df, ours = n_in + n_out - 2, of_t(t, n_in, n_out, significance)
    if stats.t.sf(t, df) >= significance:
        assert ours == 0
        return

    def excess(c: float) -> float:
        # Where its left tail is next to zero, scipy gives nan.
        return np.nan_to_num(special.nctdtr(df, c, t)) - (1 - significance)

    twin = optimize.brentq(excess, 1e-12, 3 * abs(t) + 20, xtol=1e-12)
    assert ours == pytest.approx(twin, rel=1e-8, abs=1e-8)


def upper_tail(t: float, df: int, noncentrality: float) -> mpmath.mpf:
    """Pr[T >= t] by quadrature over the scale in 30 digits."""
    with mpmath.workdps(30):
        centre, width = mpmath.mpf(noncentrality) / t, mpmath.mpf(12) / abs(t)
        low, high = (
            mpmath.mpf(math.sqrt(2 * quantile(df / 2, 1e-30) / df))
            for quantile in (special.gammaincinv, special.gammainccinv)
        )
        low = max(low, mpmath.mpf(10) ** -25)
        points = [low + (high - low) * i / 16 for i in range(17)]
        points = sorted(p for p in [*points, centre - width, centre, centre + width])
        points = [p for p in points if low <= p <= high]

        def density(s: mpmath.mpf) -> mpmath.mpf:
            return mpmath.exp((df - 1) * mpmath.log(s) - df * (s * s - 1) / 2)

        mass = mpmath.quad(lambda s: density(s) * mpmath.ncdf(noncentrality - t * s), points)
        return mass / mpmath.quad(density, points)


# Group sizes (in, out), effects and significances.
@pytest.mark.parametrize(
    ("n", "m", "mu", "significance"),
    [
        *((2, 1, 3.0, 0.05), (2, 2, 100.0, 1e-9), (50, 50, 0.1, 0.05), (50, 50, 60.0, 0.5)),
        *((30, 900, 0.4, 0.9), (10**6, 10**6, 0.005, 0.05), (10**6, 10**6, 50.0, 0.05)),
        (10**6, 10**6, 1.0, 1e-9),
    ],
)
@pytest.mark.one_in(4)
def test_tail_at_the_limit_is_the_significance(n, m, mu, significance):
    t, df = mu * math.sqrt(n * m / (n + m)), n + m - 2
    limit = of_t(t, n, m, significance)
    if limit == 0:
        assert upper_tail(t, df, 0.0) >= significance
    else:
        assert float(upper_tail(t, df, limit)) == pytest.approx(significance, rel=1e-6)
        assert float(upper_tail(t, df, limit * (1 + 1e-9)) / significance) > 1
        assert float(upper_tail(t, df, limit * (1 - 1e-9)) / significance) < 1


def test_scores_give_what_their_statistics_give():
    rng = np.random.default_rng(0)
    inside, outside = 3 + 2 * rng.standard_normal(40), 1 + 2 * rng.standard_normal(70)
    twin = of_t(float(stats.ttest_ind(inside, outside).statistic), 40, 70, 0.05)
    found = mu_noncentral_t_from_scores(inside, outside, 0.05)
    assert found == pytest.approx(twin / math.sqrt(40 * 70 / 110), rel=1e-10)


@given(sizes, sizes, st.floats(-3, 30), st.floats(1e-3, 1e3), significances)
def test_limit_is_free_of_unit_and_rises_with_difference_and_level(n, m, mu, unit, level):
    squares = float(n + m)
    limit = mu_noncentral_t(n, m, mu, squares, level)
    assert limit >= 0
    scaled = mu_noncentral_t(n, m, unit * mu, unit**2 * squares, level)
    assert scaled == pytest.approx(limit, rel=1e-8, abs=1e-12)
    slack = 1e-9 * (1 + limit)
    assert mu_noncentral_t(m, n, mu, squares, level) == pytest.approx(limit, rel=1e-9)
    assert mu_noncentral_t(n, m, mu + 0.1, squares, level) >= limit - slack
    assert mu_noncentral_t(n, m, mu, squares, level / 2) <= limit + slack


# Coverage and tightness on simulated experiments, from the laws of the two statistics.
def simulated_limits(n_in: int, n_out: int, mu: float, repetitions: int) -> np.ndarray:
    rng = np.random.default_rng([n_in, n_out, round(1000 * mu)])
    difference = mu + math.sqrt(1 / n_in + 1 / n_out) * rng.standard_normal(repetitions)
    squares = rng.chisquare(n_in + n_out - 2, repetitions)
    return mu_noncentral_t(n_in, n_out, difference, squares, 0.05)


@pytest.mark.heavy
@pytest.mark.heavy_one_in(8)
@pytest.mark.parametrize("epsilon", [0.0, 1.0, 4.0, 8.0])
@pytest.mark.parametrize(("n_in", "n_out"), [(50, 50), (500, 500), (5000, 5000), (40, 900)])
def test_limit_misses_exactly_as_often_as_it_says(n_in, n_out, epsilon):
    repetitions = 40_000
    mu = gaussian_mu(epsilon, 1e-5) if epsilon else 0.0
    miss = float(np.mean(simulated_limits(n_in, n_out, mu, repetitions) > mu))
    assert miss == pytest.approx(0.05, abs=4 * math.sqrt(0.05 * 0.95 / repetitions))


@pytest.mark.parametrize(
    ("n", "tightness"),
    [(200, (0.36, 0.79, 0.87)), (1000, (0.71, 0.90, 0.94)), (5000, (0.87, 0.96, 0.97))],
)
def test_reference_tightness(n, tightness):
    for epsilon, expected in zip((1.0, 4.0, 8.0), tightness, strict=True):
        mu = gaussian_mu(epsilon, 1e-5)
        limits = simulated_limits(n, n, mu, 4000)
        assert 0.04 <= np.mean(limits > mu) <= 0.06
        # Medians of 1,500 runs or fewer, printed to two digits.
        median = gaussian_epsilon(float(np.median(limits)), 1e-5) / epsilon
        assert median == pytest.approx(expected, abs=0.025 if n == 200 else 0.012)


def naive(inside: np.ndarray, outside: np.ndarray, significance: float) -> float:
    """Both facts of the module, one after the other: the least shift that is not rejected."""
    z = np.concatenate([inside, outside])
    signs = np.repeat([1.0, -1.0], [len(inside), len(outside)])
    x = stats.norm.isf(significance / 2 * 4 * stats.norm.sf(math.sqrt(2)))

    def excess(shift: float) -> float:
        y = z - shift * (signs > 0)
        return signs @ (y - y.mean()) - x * np.linalg.norm(y - y.mean())

    within = sum(np.sum((g - g.mean()) ** 2) for g in (inside, outside))
    sigma = math.sqrt(within / stats.chi2.ppf(significance / 2, len(z) - 2))
    if excess(0.0) <= 0:
        return 0.0
    return optimize.brentq(excess, 0.0, inside.mean() - outside.mean(), xtol=1e-13) / sigma


@given(st.integers(0, 2**32), st.integers(2, 60), st.integers(2, 60), st.sampled_from([0.5, 3.0]))
def test_bound_is_the_least_shift_not_rejected_over_the_largest_noise(seed, n, m, mu):
    rng = np.random.default_rng(seed)
    inside, outside = mu + rng.standard_normal(n), rng.standard_normal(m)
    for significance in (1e-3, 0.05, 0.3):
        bound = mu_white_box_from_scores(inside, outside, significance)
        assert bound == pytest.approx(naive(inside, outside, significance), rel=1e-8, abs=1e-9)
        assert bound <= mu_noncentral_t_from_scores(inside, outside, significance) + 1e-9
        moved = mu_white_box_from_scores(7 + 3 * inside, 7 + 3 * outside, significance)
        assert moved == pytest.approx(bound, rel=1e-6, abs=1e-9)


def test_bound_nears_mu_with_many_canaries():
    for n, least in ((50, 0.3), (500, 0.8), (500_000, 0.99)):
        assert least < mu_white_box(n, n, 1.0, 2 * n - 2, 0.05) < 1.0


def test_too_little_data_proves_nothing():
    for given_data in ((0, 1000, 5.0, 1.0), (1000, 0, 5.0, 1.0), (1, 1, 5.0, 0.0)):
        assert mu_noncentral_t(*given_data, 0.05) == 0.0
    assert mu_white_box(0, 5, 1.0, 1.0, 0.05) == mu_white_box(1, 1, 1.0, 0.0, 0.05) == 0.0
    assert mu_white_box(3, 3, 100.0, 1e-6, 1e-3) == 0.0
    for scores in (([], []), ([1.0], [0.0])):
        assert mu_noncentral_t_from_scores(*scores, 0.05) == 0.0
    assert mu_white_box_from_scores([], [1.0], 0.05) == 0.0


test_arguments_out_of_range_are_refused = refusals(
    (lambda: mu_noncentral_t(-1, 5, 1.0, 1.0, 0.05), "n_in=-1 must be a whole number >= 0"),
    (lambda: mu_noncentral_t(5, 5, math.nan, 1.0, 0.05), "difference=nan must be"),
    (lambda: mu_noncentral_t(5, 5, 1.0, 0.0, 0.05), r"sum_squares=0\.0 .* no Gaussian noise"),
    (lambda: mu_noncentral_t_from_scores([[1.0]], [1.0], 0.05), r"scores_in has shape \(1, 1"),
    (lambda: mu_noncentral_t_from_scores([1.0], [math.nan], 0.05), "scores_out=nan must be"),
    (lambda: mu_white_box(5, 2.5, 1.0, 1.0, 0.05), r"n_out=2\.5 must be a whole number"),
    (lambda: mu_white_box(5, 5, 1.0, 0.0, 0.05), r"sum_squares=0\.0 must be finite and > 0"),
    (lambda: mu_white_box_from_scores([math.inf], [0.0], 0.05), "scores_in holds infinity"),
)


#: What the data give along the directions, by the number of canaries.
DATA = {
    "none": lambda m: np.zeros(m),
    "three far out": lambda m: np.where(np.arange(m) < 3, 1e4, 0.0),
    "six far out": lambda m: np.where(np.arange(m) < 6, 1e4, 0.0),
    "heavy": lambda m: np.geomspace(0.01, 1e3, m),
    "two clusters": lambda m: 20.0 * (np.arange(m) % 2),
}


def missed(data: str, m: int, mu: float, repetitions: int) -> tuple[float, float]:
    """Failures of this bound and of the noncentral t."""
    rng = np.random.default_rng([len(data), m, round(10 * mu)])
    a, found = DATA[data](m), np.zeros(2)
    for _ in range(repetitions):
        coins = rng.random(m) < 0.5
        if not 0 < coins.sum() < m:
            continue
        z = a + mu * coins + rng.standard_normal(m)
        for i, bound in enumerate((mu_white_box_from_scores, mu_noncentral_t_from_scores)):
            found[i] += bound(z[coins], z[~coins], 0.05) > mu
    return tuple(found / repetitions)


def test_data_along_few_directions_deceive_the_noncentral_t_and_not_this_bound():
    this, student = missed("three far out", 300, 0.0, 1500)
    assert student > 0.09  # all three are in with probability 1/8
    assert this <= 0.05


@pytest.mark.heavy
@pytest.mark.parametrize("data", list(DATA))
@pytest.mark.parametrize("mu", [0.0, 1.0, 5.0])
@pytest.mark.heavy_one_in(6)
def test_bound_fails_no_more_often_than_it_says_whatever_the_data(data, mu):
    for m in (20, 300):
        this, student = missed(data, m, mu, 700)
        print(f"\n{data} m={m} mu={mu}: missed {this}, noncentral t {student}")
        assert this <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 700)
