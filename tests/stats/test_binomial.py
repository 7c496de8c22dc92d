import math
from functools import partial
from typing import Any

import mpmath as mp
import numpy as np
import pytest
from beta_twins import beta_cdf, log_beta_density
from hypothesis import assume, given
from hypothesis import strategies as st
from refused_calls import refusals
from scipy import integrate, optimize, special, stats

from lightning_audit.stats.binomial import (
    Beta,
    clopper_pearson_lower,
    clopper_pearson_upper,
    error_rate_confidence_sequence,
    error_rate_log_e,
    jeffreys_lower,
    jeffreys_upper,
    katz_log_lower,
)
from lightning_audit.stats.tradeoff import gaussian_mu

SHAPES = [0.5, 1.0, 1.5, 7.5, 15.0, 15.5, 300.5, 1e4 + 0.5, 1e6 + 0.5]


significances = st.sampled_from([1e-6, 1e-3, 0.05, 0.5])


LIMITS = [clopper_pearson_lower, clopper_pearson_upper, jeffreys_lower, jeffreys_upper]


@pytest.mark.parametrize("b", SHAPES)
@pytest.mark.parametrize("a", SHAPES)
def test_density_has_twelve_digits_up_to_a_million(a, b):
    rate = Beta.of(np.array([a]), np.array([b]), 1e-26)
    mean, std = float(stats.beta.mean(a, b)), float(stats.beta.std(a, b))
    for z in (-8, -2, 0, 1, 6):
        # The point and its complement are each rounded once; the twin's point is exact.
        x = mp.mpf(min(max(mean + z * std, mean * 1e-3), 1 - (1 - mean) * 1e-3))
        with mp.workdps(40):
            exact = mp.exp(log_beta_density(mp.mpf(a), mp.mpf(b), x, 1 - x)) * x * (1 - x)
            here = rate.density_of_logit(np.array([[float(x)]]), np.array([[float(1 - x)]]))
        if exact > 1e-280:
            assert float(mp.mpf(here[0, 0]) / exact - 1) == pytest.approx(0, abs=4e-12)


def test_distribution_function_keeps_small_values_on_either_side():
    rate = Beta.of(np.array([990.5]), np.array([10.5]), 1e-26)
    x, rest = np.array([0.9]), np.array([0.1])
    exact = beta_cdf(mp.mpf("990.5"), mp.mpf("10.5"), mp.mpf("0.9"))
    assert rate.below(x, rest)[0] == pytest.approx(float(exact), rel=1e-11)
    assert rate.mirrored_where(np.array([True])).above(rest, x)[0] == rate.below(x, rest)[0]
    assert rate.below(x, rest) + rate.above(x, rest) == pytest.approx(1.0, abs=1e-15)


@st.composite
def counts(draw: st.DrawFn, least: int = 0, most: int = 100_000) -> tuple[int, int]:
    trials = draw(st.integers(least, most))
    return draw(st.integers(0, trials)), trials


@pytest.mark.parametrize(("n", "expected"), [(1000, 0.8255), (5000, 0.9178), (20_000, 0.9562)])
def test_reference_bounds_on_mu_at_one(n, expected):
    limit = error_rate_confidence_sequence(round(2 * n * special.ndtr(-0.5)), 2 * n, 0.05)
    assert -2 * special.ndtri(limit) == pytest.approx(expected, abs=6e-4)


@pytest.mark.parametrize(("k", "n"), [(0, 1), (1, 1), (3, 10), (30, 80), (100, 400)])
@pytest.mark.parametrize("rate", [0.1, 0.4, 0.7])
def test_log_e_is_the_mixture_of_likelihood_ratios(k, n, rate):
    parts = [
        naive_e(k, n, rate, stats.beta(kappa * rate, kappa * (1 - rate))) for kappa in (3, 30, 300)
    ]
    assert float(error_rate_log_e(k, n, rate)) == pytest.approx(math.log(sum(parts) / 3), abs=1e-7)


def naive_e(k: int, n: int, rate: float, prior: Any) -> float:
    """The likelihood ratio, averaged over the prior below the rate."""

    pole = prior.args[0] - 1

    def smooth(p: float) -> float:
        ratio = k * math.log(p / rate) + (n - k) * math.log((1 - p) / (1 - rate))
        return math.exp(ratio + prior.logpdf(p) - pole * math.log(p))

    low, *cuts = sorted(min(prior.ppf(q), rate) for q in (0.01, 0.2, 0.6, 1.0))
    # The density has a pole at 0 where its first shape is below one.
    mass, _ = integrate.quad(
        lambda p: smooth(max(p, 1e-300)), 0, low, weight="alg", wvar=(pole, 0), epsabs=0, limit=200
    )
    for high in cuts:
        if high > low:
            part, _ = integrate.quad(lambda p: smooth(p) * p**pole, low, high, epsabs=0)
            mass, low = mass + part, high
    return float(mass / prior.cdf(rate))


@pytest.mark.parametrize(
    ("errors", "trials", "one_look", "mu"),
    # -2.08, .84, .70, 4.84 and 3.53 with the single concentration 1,000.
    [
        *((0, 30, 2.62, 2.13), (0, 100, 3.78, 3.53), (2, 100, 3.08, 2.65)),
        *((0, 1000, 5.50, 5.43), (20, 1000, 3.79, 3.59)),
    ],
)
def test_few_guesses_prove_nearly_what_one_look_at_them_does(errors, trials, one_look, mu):
    limit = error_rate_confidence_sequence(errors, trials, 0.05)
    assert round(float(-2 * special.ndtri(limit)), 2) == mu
    fixed = float(clopper_pearson_upper(errors, trials, 0.05))
    assert round(float(-2 * special.ndtri(fixed)), 2) == one_look


@pytest.mark.parametrize("rate", [0.05, 0.2, 0.3085, 0.5])
@pytest.mark.one_in(4)
@pytest.mark.heavy_one_in(4)
def test_limits_of_all_looks_hold_at_once(rate):
    rng = np.random.default_rng(round(1e4 * rate))
    runs, looks = 2000, 400
    errors = np.cumsum(rng.random((runs, looks)) < rate, axis=1)
    trials = np.broadcast_to(np.arange(1, looks + 1), errors.shape)
    assert 0.0 < (error_rate_log_e(errors, trials, rate) >= math.log(20)).any(axis=1).mean() <= 0.05


@given(st.floats(0.01, 0.99), st.floats(0.01, 0.99), st.integers(0, 50), st.integers(0, 50))
def test_a_guess_of_at_least_the_rate_gains_nothing_on_average(rate, higher, k, more):
    actual = max(rate, higher)
    now = float(error_rate_log_e(k, k + more, rate))
    wrong, right = (float(error_rate_log_e(k + w, k + more + 1, rate)) for w in (1, 0))
    mean = actual * math.exp(wrong - now) + (1 - actual) * math.exp(right - now)
    assert mean <= 1 + 1e-9
    if actual == rate:
        assert mean == pytest.approx(1, abs=1e-9)  # nothing is given away at the rate itself


@given(st.floats(0.01, 0.99), st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_a_pair_of_unequal_rates_gains_nothing_either(rate, p, fnr, fpr):
    assume((fnr + fpr) / 2 >= rate)
    means = [r * p + (1 - r) * (1 - p * rate) / (1 - rate) for r in (fnr, fpr)]
    assert math.prod(means) <= 1 + 1e-9


@given(counts(), significances)
def test_all_rates_above_the_limit_are_rejected_and_none_below(found, significance):
    limit = error_rate_confidence_sequence(*found, significance)
    threshold = -math.log(significance)
    above = limit + (1 - limit) * np.linspace(1e-6, 1 - 1e-9, 40)
    below = limit * np.linspace(0.5, 1 - 1e-6, 40)
    above, below = above[above < 1], below[below > 0]
    assert (error_rate_log_e(*found, above) >= threshold - 1e-4).all()
    assert (error_rate_log_e(*found, below) <= threshold + 1e-4).all()


def flagged(noise: float, looks: int, runs: int, every: int) -> np.ndarray:
    """First observation a world at which the claim of epsilon 1.27 is rejected, at .05."""
    claimed = gaussian_mu(1.27, 1e-5)
    rate = float(special.ndtr(-claimed / 2))
    rng = np.random.default_rng([round(100 * noise), looks])
    actual = float(special.ndtr(-claimed / noise / 2))
    errors = np.cumsum(rng.binomial(2 * every, actual, (runs, looks)), axis=1)
    trials = 2 * every * np.arange(1, looks + 1)
    hit = error_rate_log_e(errors, np.broadcast_to(trials, errors.shape), rate) >= math.log(20)
    return np.where(hit.any(axis=1), (np.argmax(hit, axis=1) + 1.0) * every, np.inf)


@pytest.mark.heavy
def test_correct_runs_are_flagged_less_often_than_the_significance():
    rate = float(np.mean(np.isfinite(flagged(1.0, looks=100, runs=6000, every=50))))
    assert rate == pytest.approx(0.013, abs=0.008)


@pytest.mark.parametrize("significance", [0.01, 0.05, 0.3])
@pytest.mark.parametrize("trials", [1, 2, 7, 30, 200])
@pytest.mark.parametrize("p", [1e-3, 0.02, 0.3, 0.5, 0.77, 0.999])
def test_limits_miss_at_most_as_often_as_they_say(p, trials, significance):
    k = np.arange(trials + 1)
    mass = stats.binom.pmf(k, trials, p)
    assert mass[clopper_pearson_lower(k, trials, significance) > p].sum() <= significance
    assert mass[clopper_pearson_upper(k, trials, significance) < p].sum() <= significance


@pytest.mark.parametrize(
    ("k", "n", "level"),
    [
        *((k, n, 0.05) for k, n in ((0, 5), (3, 5), (1, 200), (117, 200), (199, 200))),
        *((0, 9, 0.05), (4, 9, 1e-6), (500, 10_000, 0.3)),
    ],
)
def test_no_tighter_limit_has_the_level(k, n, level):
    # At the limit itself, what was seen or anything further away has exactly the significance.
    upper = clopper_pearson_upper(k, n, level)
    assert stats.binom.cdf(k, n, upper) == pytest.approx(level, rel=1e-11)
    twin = optimize.brentq(lambda p: stats.binom.cdf(k, n, p) - level, 0.0, 1.0, xtol=1e-15)
    assert upper == pytest.approx(twin, rel=1e-10)
    if k:
        lower = clopper_pearson_lower(k, n, level)
        assert stats.binom.sf(k - 1, n, lower) == pytest.approx(level, rel=1e-11)


def test_no_observation_proves_nothing():
    assert [limit(0, 0, 0.05) for limit in LIMITS] == [0.0, 1.0, 0.0, 1.0]


@pytest.mark.parametrize(("k", "n"), [(1, 5), (4, 5), (117, 200), (199, 200), (30, 10**6)])
def test_jeffreys_limits_are_quantiles_of_the_posterior(k, n):
    posterior = stats.beta(k + 0.5, n - k + 0.5)
    assert jeffreys_lower(k, n, 0.05) == pytest.approx(posterior.ppf(0.05), rel=1e-10)
    assert jeffreys_upper(k, n, 0.05) == pytest.approx(posterior.isf(0.05), rel=1e-10)


def test_jeffreys_limits_hold_their_level_averaged_over_the_prior():
    # Where k = 0 or n the limits are clipped, so that they fail less often than they say.
    rng, n = np.random.default_rng(0), 20
    rates = rng.beta(0.5, 0.5, 200_000)
    k = rng.binomial(n, rates)
    inner = (k > 0) & (k < n)
    for missed in (jeffreys_lower(k, n, 0.05) > rates, jeffreys_upper(k, n, 0.05) < rates):
        assert abs(missed[inner].mean() - 0.05) < 3 * math.sqrt(0.05 * 0.95 / inner.sum())
        assert missed.mean() <= 0.05


def test_a_jeffreys_limit_fails_more_often_than_it_says_at_some_rates():
    # Just beyond the limit for no success in a thousand, no success still has a chance of .147.
    missed = stats.binom.pmf(0, 1000, jeffreys_upper(0, 1000, 0.05) * 1.000001)
    assert missed == pytest.approx(0.147, abs=5e-4)
    assert stats.binom.pmf(0, 1000, clopper_pearson_upper(0, 1000, 0.05)) <= 0.05


test_impossible_arguments_are_refused = refusals(
    (lambda: error_rate_confidence_sequence(-1, 5, 0.05), "errors=-1 must hold whole"),
    (lambda: error_rate_confidence_sequence(1, 5, 0.0), r"significance=0\.0 must be in"),
    (lambda: error_rate_log_e(1, 5, 0.0), r"rate=0\.0 must be in \(0, 1\)"),
    *((partial(limit, 6, 5, 0.05), "successes=6 must be at most trials=5") for limit in LIMITS),
    *((partial(limit, 1, 2, 1.0), r"significance=.* must be in \(0, 1\); it") for limit in LIMITS),
    (lambda: katz_log_lower(1, 5, 1, 5, 1.0), r"significance=1\.0 must be in \(0, 1\)"),
)


def test_agrees_with_the_textbook_formula():
    k1, n1, k0, n0 = 990, 1000, 5, 1000
    spread = math.sqrt(1 / k1 - 1 / n1 + 1 / k0 - 1 / n0)
    textbook = math.log(k1 / n1 / (k0 / n0)) - 1.6448536269514722 * spread
    assert katz_log_lower(k1, n1, k0, n0, 0.05) == pytest.approx(textbook, rel=1e-13)


def test_nothing_is_proved_where_a_count_is_zero_and_certain_rates_have_no_spread():
    limits = katz_log_lower(np.array([0, 5, 0, 5]), 10, np.array([5, 0, 0, 5]), 10, 0.05)
    assert limits[:3].tolist() == [-math.inf] * 3
    assert limits[3] < 0
    assert katz_log_lower(0, 0, 0, 0, 0.05) == -math.inf
    assert katz_log_lower(7, 7, 9, 9, 0.05) == 0.0
