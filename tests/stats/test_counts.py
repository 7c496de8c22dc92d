import math

import numpy as np
import pytest
from drawn_counts import counts_of
from hypothesis import assume, given
from hypothesis import strategies as st
from refused_calls import refusals
from scipy import special, stats

from lightning_audit.stats.binomial import (
    clopper_pearson_lower,
    clopper_pearson_upper,
    jeffreys_lower,
    jeffreys_upper,
)
from lightning_audit.stats.counts import (
    ConfusionCounts,
    epsilon_at_rates,
    epsilon_clopper_pearson,
    epsilon_clopper_pearson_interval,
    epsilon_jeffreys,
    epsilon_jeffreys_interval,
    epsilon_katz,
    katz_log_ratios,
    mu_clopper_pearson,
    mu_pooled_clopper_pearson,
    subsampled_epsilon_clopper_pearson,
    subsampled_epsilon_of_mu,
)
from lightning_audit.stats.tradeoff import SubsampledGaussianTradeoff, gaussian_epsilon

EXAMPLE = ConfusionCounts(fn=35, tp=65, fp=25, tn=75)
CORNER = ConfusionCounts(fn=10, tp=90, fp=0, tn=100)
deltas = st.sampled_from([0.0, 1e-5, 0.05])
significances = st.sampled_from([1e-9, 1e-3, 0.05, 0.5])
rates = st.floats(0, 1)
DELTA = 1e-5


def published_epsilon(x: float, y: float, delta: float) -> float:
    """The largest of the four fractions as printed, for rates that leave none of them 0 / 0."""
    fractions = [(1 - delta - y, x), (1 - delta - x, y), (y - delta, 1 - x), (x - delta, 1 - y)]
    return max(0.0, *(math.log(a / b) if b else math.inf for a, b in fractions if a > 0))


@pytest.mark.parametrize("delta", [0.0, 1e-5])
def test_flawless_attacks_are_reproduced(delta):
    n = np.array([100, 500, 1000])
    low, high = epsilon_clopper_pearson_interval(ConfusionCounts(0, n, 0, n), delta, 0.1)
    assert low == pytest.approx([3.281, 4.906, 5.601], abs=5.1e-4)
    assert low[1:] == pytest.approx([4.9056, 5.6006], abs=5.1e-5)
    assert high.tolist() == [math.inf] * 3
    flawless = ConfusionCounts(0, 1000, 0, 1000)
    bounds = [f(flawless, delta, 0.1) for f in (epsilon_clopper_pearson, epsilon_jeffreys)]
    assert bounds == pytest.approx([5.8091, 6.2543], abs=5.1e-5)


def test_published_corner_case_is_reproduced():
    fnr, fpr = clopper_pearson_upper(10, 100, 0.025), clopper_pearson_upper(0, 100, 0.025)
    assert (fnr, fpr) == pytest.approx((0.17622, 0.03622), abs=5.1e-6)
    low, high = epsilon_clopper_pearson_interval(CORNER, 1e-5, 0.1)
    assert (epsilon_at_rates(fnr, fpr, 1e-5), low) == pytest.approx((3.12437,) * 2, abs=5.1e-6)
    assert high == math.inf
    bounds = [f(CORNER, 1e-5, 0.1) for f in (epsilon_clopper_pearson, epsilon_jeffreys)]
    assert bounds == pytest.approx([3.3441, 3.7928], abs=5.1e-5)


def test_published_minimum_at_no_false_positives_is_none():
    # Printed as 1.736 at (FNR+, 0): one of two terms there; by the other no epsilon is enough.
    fnr = clopper_pearson_upper(10, 100, 0.025)
    assert math.log((1 - 1e-5) / fnr) == pytest.approx(1.736, abs=5.1e-4)
    assert epsilon_at_rates(fnr, 0.0, 1e-5) == math.inf


@pytest.mark.parametrize(
    ("counts", "expected"),
    [((35, 65, 25, 75), (0.64610, 0.51870)), ((10, 990, 5, 995), (4.55449, 4.08260))],
)
def test_log_ratios_are_reproduced(counts, expected):
    assert katz_log_ratios(ConfusionCounts(*counts), 0.05) == pytest.approx(expected, abs=5.1e-6)
    assert epsilon_katz(ConfusionCounts(*counts), 0.1) == pytest.approx(expected[0], abs=5.1e-6)


@given(rates, rates, deltas)
def test_epsilon_of_rates_is_the_published_maximum(x, y, delta):
    # Next to the diagonal the published fractions cancel, to the last digits of their parts.
    published = pytest.approx(published_epsilon(x, y, delta), rel=1e-9, abs=1e-9)
    assert epsilon_at_rates(x, y, delta) == published or min(x, y, 1 - x, 1 - y) < 1e-6


def test_epsilon_of_rates_is_exact_next_to_zero():
    # Rates that leave epsilon = 2^-40: one plus the gap over the rate, both exact in doubles.
    assert epsilon_at_rates(0.25, 0.75 - 2.0**-42, 0.0) == pytest.approx(2.0**-40, rel=1e-11)
    assert epsilon_at_rates(0.25 + 2.0**-42, 0.75, 0.0) == pytest.approx(2.0**-40, rel=1e-11)
    assert epsilon_at_rates(1e-310, 1e-310, 0.0) == pytest.approx(310 * math.log(10), rel=1e-12)


def test_no_epsilon_is_enough_for_certain_leaks():
    found = epsilon_at_rates(
        np.array([0.0, 0.5, 1.0, 0.0, 1e-6, 0.0]), np.array([0, 0, 0.4, 1, 0, 0.99999]), 1e-5
    )
    assert (found.tolist()[:4], found[5]) == ([math.inf, math.inf, math.inf, 0.0], 0.0)
    assert epsilon_at_rates(0.5, 0.5, 0.0) == 0.0


@pytest.mark.parametrize(
    ("interval", "lower", "upper"),
    [
        (epsilon_clopper_pearson_interval, clopper_pearson_lower, clopper_pearson_upper),
        (epsilon_jeffreys_interval, jeffreys_lower, jeffreys_upper),
    ],
)
@pytest.mark.parametrize(
    "counts", [(35, 65, 25, 75), (10, 90, 0, 100), (95, 5, 80, 20), (50, 50, 40, 60), (1, 0, 0, 1)]
)
def test_interval_is_the_range_over_the_rectangle(counts, interval, lower, upper):
    fn, tp, fp, tn = counts
    sides = [
        np.linspace(lower(k, n, 0.0125), upper(k, n, 0.0125), 401)
        for k, n in ((fn, fn + tp), (fp, fp + tn))
    ]
    grid = epsilon_at_rates(*np.meshgrid(*sides), 0.01)
    low, high = interval(ConfusionCounts(*counts), 0.01, 0.05)
    # The grid has both diagonal corners, but may miss the band where epsilon is zero.
    assert low == pytest.approx(grid.min(), abs=0.02 if low == 0 else 1e-12)
    assert high == pytest.approx(grid.max(), rel=1e-12)


#: Bounds on epsilon, and on mu by the significances that they are proved for.
BOUNDS = [
    epsilon_clopper_pearson,
    epsilon_jeffreys,
    lambda c, delta, level: epsilon_katz(c, level),
    lambda c, delta, level: mu_clopper_pearson(c, level),
    lambda c, delta, level: mu_pooled_clopper_pearson(c, min(level, 0.25)),
]


@pytest.mark.parametrize("bound", BOUNDS)
@given(counts_of(), deltas, significances)
def test_fewer_errors_never_lower_a_bound(bound, counts, delta, significance):
    if bound is BOUNDS[2]:
        # At small counts the normal limit is undefined, or widens faster than it moves.
        assume(counts.n_in > 0)
        assume(counts.fn * counts.tp / counts.n_in > special.ndtri(significance / 2) ** 2 / 4 + 2)
    one = int(counts.fn > 0)
    better = ConfusionCounts(counts.fn - one, counts.tp + one, counts.fp, counts.tn)
    # The bounds on mu are known to a rounding.
    slack = 1e-12 if bound in BOUNDS[3:] else 0.0
    assert bound(better, delta, significance) >= bound(counts, delta, significance) * (1 - slack)


@pytest.mark.parametrize("bound", BOUNDS)
def test_a_bound_is_zero_without_data_and_without_leakage(bound):
    nothing = ConfusionCounts(
        [0, 0, 0, 500, 99, 0, 100], [0, 10, 9, 500, 1, 1000, 0],
        [0, 0, 0, 500, 99, 3, 100], [0, 0, 0, 500, 1, 0, 0],
    )  # fmt: skip
    for delta in (0.0, 1e-5):
        assert bound(nothing, delta, 0.05).tolist() == [0.0] * 7


def test_always_guessing_the_larger_world_proves_nothing():
    # 10 errors in 1,010 guesses look good, but need no distance at all.
    assert mu_pooled_clopper_pearson(ConfusionCounts(fn=10, tp=0, fp=0, tn=1000), 0.05) == 0.0


@pytest.mark.parametrize(
    ("counts", "corner", "pooled"),
    [
        ((35, 65, 25, 75), (0.515635, 2.062854), (0.728682, 3.045338)),
        ((10, 990, 5, 995), (4.359058, 27.39683), (4.545198, 29.011387)),
        ((309, 691, 309, 691), (0.832184, 3.543097), (0.899498, 3.873700)),
    ],
)
def test_bounds_of_counts_are_reproduced(counts, corner, pooled):
    for bound, (mu, epsilon) in ((mu_clopper_pearson, corner), (mu_pooled_clopper_pearson, pooled)):
        found = bound(ConfusionCounts(*counts), significance=0.05)
        assert found == pytest.approx(mu, abs=5.1e-7)
        assert gaussian_epsilon(found, 1e-5) == pytest.approx(epsilon, abs=5.1e-6)


def test_largest_bounds_of_flawless_attacks_are_reproduced():
    n = np.array([100, 500, 1000])
    mus = mu_clopper_pearson(ConfusionCounts(0, n, 0, n), significance=0.05)
    assert gaussian_epsilon(mus, 1e-5) == pytest.approx([21.120, 31.997, 36.489], abs=5.1e-4)
    flawless = ConfusionCounts(0, 1000, 0, 1000)
    found = [mu_clopper_pearson(flawless, level) for level in (0.05, 0.025)]
    assert found == pytest.approx([5.35982, 5.24374], abs=5.1e-6)
    assert gaussian_epsilon(found[1], 1e-5) == pytest.approx(35.383, abs=5.1e-4)
    pooled = mu_pooled_clopper_pearson(flawless, 0.05)
    assert pooled == pytest.approx(5.9368, abs=5.1e-5)
    assert gaussian_epsilon(pooled, 1e-5) == pytest.approx(42.191, abs=5.1e-4)


def test_equal_sizes_have_a_closed_form():
    counts = ConfusionCounts([309, 3, 90], [691, 97, 10], [309, 5, 70], [691, 95, 30])
    upper = clopper_pearson_upper(counts.fn + counts.fp, counts.n_in + counts.n_out, 0.01)
    expected = np.maximum(-2 * special.ndtri(upper), 0)
    assert mu_pooled_clopper_pearson(counts, 0.01) == pytest.approx(expected, rel=1e-12)


# --- Bounds on the epsilon of a subsampled step, against the game itself.
def known_coin(rng, q: float, steps: int, sigma: float, threshold: float) -> ConfusionCounts:
    """Guesses at a coin of probability q that the auditor knows."""
    coins = rng.random(steps) < q
    scores = coins + sigma * rng.standard_normal(steps)
    return ConfusionCounts.from_scores(scores[coins], scores[~coins], threshold)


@pytest.mark.parametrize("q", [0.1, 0.25, 0.5, 1.0])
@pytest.mark.parametrize("counts", [(10, 90, 2, 898), (0, 50, 0, 450), (30, 70, 300, 700)])
def test_bound_from_counts_is_the_least_over_all_rates_not_rejected(q, counts):
    made = ConfusionCounts(*counts)
    fn, tp, fp, tn = counts
    most = [clopper_pearson_upper(k, n, 0.025) for k, n in ((fn, fn + tp), (fp, fp + tn))]
    # Where neither rate is zero an infinite ratio cannot be the least.
    fnr, fpr = np.meshgrid(*(np.linspace(1e-6, float(limit), 300) for limit in most))
    missed = q * fnr + (1 - q) * (1 - fpr)
    needed = np.maximum((1 - DELTA - missed) / fpr, (1 - DELTA - fpr) / missed)
    least = max(math.log(max(float(needed.min()), 1.0)), 0.0)
    found = subsampled_epsilon_clopper_pearson(made, q, DELTA, 0.05)
    assert found == pytest.approx(least, abs=1e-9)
    if q == 1.0:
        assert found == pytest.approx(float(epsilon_clopper_pearson(made, DELTA, 0.05)), abs=1e-9)


def test_epsilon_of_mu_is_that_of_the_gaussian_without_sampling_and_amplified_with():
    assert subsampled_epsilon_of_mu(1.0, 1.0, DELTA) == pytest.approx(gaussian_epsilon(1.0, DELTA))
    epsilons = [subsampled_epsilon_of_mu(1.0, q, DELTA) for q in (0.01, 0.1, 0.5, 1.0)]
    assert epsilons == sorted(epsilons)
    assert epsilons[0] > 0
    for mu, q, epsilon in ((0.0, 0.1, 0.0), (math.inf, 0.1, math.inf), (math.inf, 1e-6, 0.0)):
        assert subsampled_epsilon_of_mu(mu, q, DELTA) == epsilon


test_arguments_are_checked = refusals(
    (lambda: epsilon_at_rates(1.5, 0.1, 0.0), r"fnr=1\.5 must be in \(0, 1\]; an error rate"),
    (lambda: epsilon_clopper_pearson(EXAMPLE, 1.0, 0.05), r"delta=1\.0 must be in \(0, 1\); or"),
    (lambda: epsilon_jeffreys(EXAMPLE, 0.0, 0.0), r"significance=0\.0 must be in \(0, 1\); it"),
    (lambda: mu_pooled_clopper_pearson(EXAMPLE, 0.3), r"=0\.3 must be in \(0, 1/4\].*use mu_clop"),
    (lambda: subsampled_epsilon_clopper_pearson(EXAMPLE, 0.0, DELTA, 0.05), "^sample_rate="),
    (lambda: subsampled_epsilon_clopper_pearson(EXAMPLE, 0.1, 0.0, 0.05), "^delta="),
    (lambda: subsampled_epsilon_of_mu(1.0, 1.1, DELTA), "^sample_rate="),
    (lambda: subsampled_epsilon_of_mu(-1.0, 0.1, DELTA), "^mu="),
)


@pytest.mark.parametrize("q", [0.1, 0.3, 0.9])
def test_bounds_exceed_the_epsilon_of_the_game_no_oftener_than_their_significance(q):
    runs, level = 400, 0.1
    true = SubsampledGaussianTradeoff(0.4, q).epsilon_at(DELTA)
    found = np.zeros((runs, 2))
    for seed in range(runs):
        counts = known_coin(np.random.default_rng(seed), q, 600, 0.4, 0.5)
        mu = float(mu_clopper_pearson(counts, level))
        found[seed, 0] = subsampled_epsilon_clopper_pearson(counts, q, DELTA, level)
        found[seed, 1] = subsampled_epsilon_of_mu(mu, q, DELTA)
    assert np.sum(found > true, axis=0).max() <= stats.binom.isf(1e-3, runs, level)
    # They say something, and the one that knows the curve says more.
    of_rates, of_mu = np.median(found, axis=0)
    assert 0 < of_rates < of_mu
    assert of_mu > 0.5 * true
