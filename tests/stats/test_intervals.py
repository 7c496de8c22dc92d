from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, stats

from lightning_audit.stats.binomial import (
    clopper_pearson_lower,
    clopper_pearson_upper,
    jeffreys_lower,
    jeffreys_upper,
)

significances = st.sampled_from([1e-12, 1e-3, 0.025, 0.05, 0.5, 0.9])


@st.composite
def counts(draw: st.DrawFn) -> tuple[int, int]:
    trials = draw(st.integers(1, 5000))
    return draw(st.integers(0, trials)), trials


@pytest.mark.parametrize("significance", [0.01, 0.05, 0.3])
@pytest.mark.parametrize("trials", [1, 2, 7, 30, 200])
@pytest.mark.parametrize("p", [1e-3, 0.02, 0.3, 0.5, 0.77, 0.999])
def test_limits_miss_at_most_as_often_as_they_say(
    p: float, trials: int, significance: float
) -> None:
    k = np.arange(trials + 1)
    mass = stats.binom.pmf(k, trials, p)
    assert mass[clopper_pearson_lower(k, trials, significance) > p].sum() <= significance
    assert mass[clopper_pearson_upper(k, trials, significance) < p].sum() <= significance


@pytest.mark.parametrize(("k", "n"), [(0, 5), (3, 5), (1, 200), (117, 200), (199, 200)])
def test_no_tighter_limit_has_the_level(k: int, n: int) -> None:
    # At the limit itself, what was seen or anything further away has exactly the significance.
    upper = clopper_pearson_upper(k, n, 0.05)
    assert stats.binom.cdf(k, n, upper) == pytest.approx(0.05, rel=1e-11)
    if k:
        lower = clopper_pearson_lower(k, n, 0.05)
        assert stats.binom.sf(k - 1, n, lower) == pytest.approx(0.05, rel=1e-11)


@pytest.mark.parametrize(("k", "n", "level"), [(0, 9, 0.05), (4, 9, 1e-6), (500, 10_000, 0.3)])
def test_agrees_with_root_finding_on_the_binomial_tail(k: int, n: int, level: float) -> None:
    twin = optimize.brentq(lambda p: stats.binom.cdf(k, n, p) - level, 0.0, 1.0, xtol=1e-15)
    assert clopper_pearson_upper(k, n, level) == pytest.approx(twin, rel=1e-10)


@given(counts(), significances)
def test_lower_and_upper_mirror_each_other(count: tuple[int, int], significance: float) -> None:
    k, n = count
    lower = clopper_pearson_lower(k, n, significance)
    assert 1 - clopper_pearson_upper(n - k, n, significance) == pytest.approx(lower, abs=1e-12)


@given(counts(), significances)
def test_limits_rise_with_successes(count: tuple[int, int], significance: float) -> None:
    k, n = count
    successes = np.array([max(k - 1, 0), k])
    for limit in (clopper_pearson_lower, clopper_pearson_upper):
        below, here = limit(successes, n, significance)
        assert 0 <= below <= here <= 1
        assert (below < here) == (k > 0)


@given(counts())
def test_less_significance_gives_wider_limits(count: tuple[int, int]) -> None:
    lower = [clopper_pearson_lower(*count, level) for level in (1e-9, 1e-3, 0.05, 0.4)]
    upper = [clopper_pearson_upper(*count, level) for level in (1e-9, 1e-3, 0.05, 0.4)]
    assert lower == sorted(lower)
    assert upper == sorted(upper, reverse=True)
    assert lower[-1] <= count[0] / count[1] <= upper[-1]


def test_no_observation_proves_nothing() -> None:
    assert clopper_pearson_lower(0, 0, 0.05) == 0.0
    assert clopper_pearson_upper(0, 0, 0.05) == 1.0


def test_numbers_give_floats_and_arrays_broadcast() -> None:
    assert type(clopper_pearson_lower(1, 2, 0.05)) is float
    assert type(clopper_pearson_upper(np.int64(1), 2, 0.05)) is float
    table = clopper_pearson_upper(np.array([[0], [3]]), np.array([3, 5, 7]), 0.05)
    assert table.shape == (2, 3)
    assert table[1, 2] == clopper_pearson_upper(3, 7, 0.05)
    assert clopper_pearson_lower(np.array([], dtype=int), 3, 0.05).shape == (0,)


@pytest.mark.parametrize(("k", "n"), [(1, 5), (4, 5), (117, 200), (199, 200), (30, 10**6)])
def test_jeffreys_limits_are_quantiles_of_the_posterior(k: int, n: int) -> None:
    posterior = stats.beta(k + 0.5, n - k + 0.5)
    assert jeffreys_lower(k, n, 0.05) == pytest.approx(posterior.ppf(0.05), rel=1e-10)
    assert jeffreys_upper(k, n, 0.05) == pytest.approx(posterior.isf(0.05), rel=1e-10)


@given(counts(), significances)
def test_jeffreys_limits_are_inside_the_exact_ones(
    count: tuple[int, int], significance: float
) -> None:
    k, n = count
    lower, upper = jeffreys_lower(k, n, significance), jeffreys_upper(k, n, significance)
    assert clopper_pearson_lower(k, n, significance) <= lower
    assert upper <= clopper_pearson_upper(k, n, significance)
    assert 1 - jeffreys_upper(n - k, n, significance) == pytest.approx(lower, abs=1e-12)


def test_jeffreys_limits_at_the_ends_are_the_ends() -> None:
    for n in (0, 7):
        assert jeffreys_lower(0, n, 0.05) == 0.0
        assert jeffreys_upper(n, n, 0.05) == 1.0
    assert type(jeffreys_lower(1, 2, 0.05)) is float
    assert jeffreys_upper(np.array([[0], [3]]), np.array([3, 5, 7]), 0.05).shape == (2, 3)


def test_jeffreys_limits_hold_their_level_averaged_over_the_prior() -> None:
    # Where k = 0 or n the limits are clipped, so that they fail less often than they say.
    rng, n = np.random.default_rng(0), 20
    rates = rng.beta(0.5, 0.5, 200_000)
    k = rng.binomial(n, rates)
    inner = (k > 0) & (k < n)
    for missed in (jeffreys_lower(k, n, 0.05) > rates, jeffreys_upper(k, n, 0.05) < rates):
        error = 3 * math.sqrt(0.05 * 0.95 / inner.sum())
        assert abs(missed[inner].mean() - 0.05) < error
        assert missed.mean() <= 0.05


def test_a_jeffreys_limit_fails_more_often_than_it_says_at_some_rates() -> None:
    # Just beyond the limit for no success in a thousand, no success still has a chance of .147.
    rate = jeffreys_upper(0, 1000, 0.05) * 1.000001
    missed = stats.binom.pmf(0, 1000, rate)
    assert missed == pytest.approx(0.147, abs=5e-4)
    assert stats.binom.pmf(0, 1000, clopper_pearson_upper(0, 1000, 0.05)) <= 0.05


LIMITS = [clopper_pearson_lower, clopper_pearson_upper, jeffreys_lower, jeffreys_upper]


@pytest.mark.parametrize("limit", LIMITS)
def test_impossible_arguments_are_refused(limit) -> None:
    with pytest.raises(ValueError, match=r"successes=6 must be at most trials=5"):
        limit(6, 5, 0.05)
    with pytest.raises(ValueError, match=r"significance=.* must be in \(0, 1\); it is the prob"):
        limit(1, 2, 1.0)
