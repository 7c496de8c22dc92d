from __future__ import annotations

import math

import numpy as np
import pytest
from beta_twins import mu_outside
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, special

from lightning_audit.stats.bounds.counts import ConfusionCounts
from lightning_audit.stats.posteriors.gdp_posterior import (
    mu_posterior_cdf,
    mu_posterior_interval,
    mu_posterior_maximum,
    mu_posterior_pdf,
    mu_posterior_quantile,
)
from lightning_audit.stats.tradeoff.gdp import gaussian_epsilon

regions = st.sampled_from(["two_sided", "one_sided"])
probabilities = st.sampled_from([1e-6, 0.05, 0.5, 0.975, 1 - 1e-9])


@st.composite
def counts_of(draw: st.DrawFn) -> ConfusionCounts:
    n_in, n_out = draw(st.integers(0, 3000)), draw(st.integers(0, 3000))
    fn, fp = draw(st.integers(0, n_in)), draw(st.integers(0, n_out))
    return ConfusionCounts(fn, n_in - fn, fp, n_out - fp)


# Reference numbers, to the digits given.


@pytest.mark.parametrize(
    ("counts", "mu", "epsilon"),
    [
        ((35, 65, 25, 75), 0.751026, 3.151697),
        ((10, 990, 5, 995), 4.58925, 29.398621),
        ((309, 691, 309, 691), 0.900803, 3.880162),
    ],
)
def test_lower_quantiles_of_counts_are_reproduced(counts, mu: float, epsilon: float) -> None:
    quantile = mu_posterior_quantile(0.05, ConfusionCounts(*counts))
    assert quantile == pytest.approx(mu, abs=5.1e-7 if mu < 1 else 5.1e-6)
    assert gaussian_epsilon(quantile, 1e-5) == pytest.approx(epsilon, abs=5.1e-7)


@pytest.mark.parametrize(
    ("n", "at_025", "at_05"),
    [(100, 27.653, 29.262), (500, 38.183, 39.714), (1000, 42.557, 44.061)],
)
def test_largest_epsilons_of_flawless_attacks_are_reproduced(n, at_025, at_05) -> None:
    # Published as 44.0 for 1,000 observations a world.
    counts = ConfusionCounts(fn=0, tp=n, fp=0, tn=n)
    found = [gaussian_epsilon(mu_posterior_quantile(p, counts), 1e-5) for p in (0.025, 0.05)]
    assert found == pytest.approx([at_025, at_05], abs=5.1e-4)


def test_largest_mus_of_flawless_attacks_are_reproduced() -> None:
    counts = ConfusionCounts(fn=0, tp=1000, fp=0, tn=1000)
    found = [mu_posterior_quantile(p, counts) for p in (0.05, 0.025)]
    assert found == pytest.approx([6.11902, 5.97274], abs=5.1e-6)


# Naive twins.


def assert_mass_is_exact(counts: tuple[int, int, int, int], mu: float) -> None:
    below, above = mu_outside(mu, *counts)
    for region, outside in (("two_sided", below + above), ("one_sided", below)):
        observed = ConfusionCounts(*counts)
        inside = mu_posterior_cdf(mu, observed, region=region)
        assert inside == pytest.approx(float(1 - outside), rel=1e-12, abs=1e-15)
        if 1e-9 < outside < 0.99:
            quantile = mu_posterior_quantile(float(1 - outside), observed, region=region)
            assert quantile == pytest.approx(mu, rel=1e-9)


@pytest.mark.parametrize(
    ("counts", "mu"),
    [
        ((35, 65, 25, 75), 0.7),
        ((1, 1, 1, 1), 0.01),
        ((0, 2, 0, 2), 3.0),
        ((0, 1000, 0, 1000), 6.1),
        ((998, 2, 999, 1), 5.0),
    ],
)
def test_mass_has_twelve_digits_inside_and_outside(counts, mu: float) -> None:
    assert_mass_is_exact(counts, mu)


def test_small_quantiles_have_nine_digits() -> None:
    counts = (10, 990, 5, 995)
    quantile = mu_posterior_quantile(1e-10, ConfusionCounts(*counts))
    below, above = mu_outside(quantile, *counts)
    assert float(1 - below - above) == pytest.approx(1e-10, rel=1e-9)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("counts", "mu"),
    [
        ((900, 100, 2, 998), 1.6),
        ((300, 700, 30_000, 970_000), 2.41),
        ((500, 500, 500_000, 500_000), 0.05),
        ((5, 999_995, 1000, 0), 1.0),
    ],
)
def test_a_million_observations_keep_twelve_digits(counts, mu: float) -> None:
    assert_mass_is_exact(counts, mu)


@pytest.mark.parametrize("prior", [0.5, 1.0])
@pytest.mark.parametrize("counts", [(35, 65, 25, 75), (70, 30, 60, 40), (3, 4, 0, 9)])
def test_agrees_with_draws_from_the_posterior(counts, prior: float) -> None:
    rng, draws = np.random.default_rng(1), 200_000
    fn, tp, fp, tn = (count + prior for count in counts)
    shift = -special.ndtri(rng.beta(fn, tp, draws)) - special.ndtri(rng.beta(fp, tn, draws))
    for region, drawn in (("two_sided", np.abs(shift)), ("one_sided", np.maximum(shift, 0))):
        for mu in (0.0, 0.2, 0.9, 2.5):
            inside = mu_posterior_cdf(mu, ConfusionCounts(*counts), region=region, prior=prior)
            error = 4 * math.sqrt(inside * (1 - inside) / draws) + 1e-6
            assert abs(np.mean(drawn <= mu) - inside) < error


# Laws.


@settings(max_examples=40)
@given(counts_of(), probabilities, regions)
def test_quantile_undoes_the_distribution_function(counts, probability, region) -> None:
    quantile = mu_posterior_quantile(probability, counts, region=region)
    inside = mu_posterior_cdf(quantile, counts, region=region)
    if quantile > 0:
        assert inside == pytest.approx(probability, rel=1e-9, abs=1e-14)
    else:
        assert inside >= probability - 1e-14


@settings(max_examples=40)
@given(counts_of(), probabilities, regions)
def test_worlds_may_be_swapped(counts, probability, region) -> None:
    swapped = ConfusionCounts(counts.fp, counts.tn, counts.fn, counts.tp)
    quantile = mu_posterior_quantile(probability, counts, region=region)
    assert mu_posterior_quantile(probability, swapped, region=region) == pytest.approx(
        quantile, rel=1e-9, abs=1e-12
    )


@settings(max_examples=40)
@given(counts_of(), probabilities)
def test_fewer_errors_give_a_larger_one_sided_quantile(counts, probability) -> None:
    fewer = np.minimum(counts.fp, 1)
    better = ConfusionCounts(counts.fn, counts.tp, counts.fp - fewer, counts.tn + fewer)
    first = mu_posterior_quantile(probability, counts, region="one_sided")
    second = mu_posterior_quantile(probability, better, region="one_sided")
    assert second >= first * (1 - 1e-9)


def test_density_and_atom_add_up_to_one() -> None:
    for counts in (ConfusionCounts(35, 65, 25, 75), ConfusionCounts(50, 50, 48, 52)):
        for region in ("two_sided", "one_sided"):
            atom = mu_posterior_cdf(0.0, counts, region=region)
            mass, _ = integrate.quad(
                lambda mu, c=counts, r=region: mu_posterior_pdf(mu, c, region=r), 0, 5
            )
            assert atom + mass == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("region", ["two_sided", "one_sided"])
@pytest.mark.parametrize("shift", [-1.0, 0.0, 0.3, 2.0])
def test_pruned_maximum_is_the_maximum(shift: float, region: str) -> None:
    rng = np.random.default_rng(int(10 * shift) + 20)
    inside, outside = rng.normal(shift, 1, 60), rng.normal(0, 1, 60)
    counts = ConfusionCounts.from_scores(inside, outside, np.concatenate([inside, outside]))
    every = mu_posterior_quantile(0.05, counts, region=region)
    value, index = mu_posterior_maximum(counts, 0.05, region=region)
    assert value == pytest.approx(every.max(), rel=1e-10)
    assert every[index] == pytest.approx(every.max(), rel=1e-10)


# Arguments.


def test_numbers_give_floats_and_arrays_broadcast() -> None:
    two = ConfusionCounts(fn=[35, 10], tp=[65, 90], fp=[25, 0], tn=[75, 100])
    assert type(mu_posterior_cdf(1.0, ConfusionCounts(1, 2, 3, 4))) is float
    assert mu_posterior_pdf(np.array([[0.5], [1.0], [2.0]]), two).shape == (3, 2)
    low, high = mu_posterior_interval(two, 0.05)
    assert np.all(low < high)
    assert mu_posterior_cdf(math.inf, two).tolist() == [1.0, 1.0]


def test_arguments_out_of_range_are_refused() -> None:
    counts = ConfusionCounts(1, 2, 3, 4)
    with pytest.raises(ValueError, match=r"mu=-1\.0 must be a finite number >= 0"):
        mu_posterior_cdf(-1.0, counts)
    with pytest.raises(ValueError, match=r"probability=1\.0 must be in \(0, 1\); such as 0\.05"):
        mu_posterior_quantile(1.0, counts)
    with pytest.raises(ValueError, match="counts hold no threshold"):
        mu_posterior_maximum(ConfusionCounts([], [], [], []), 0.05)


def test_a_quantile_of_next_to_nothing_is_refused() -> None:
    counts = ConfusionCounts(fn=3, tp=20, fp=2, tn=20)
    assert mu_posterior_quantile(1e-100, counts) < mu_posterior_quantile(1e-10, counts)
    with pytest.raises(ValueError, match=r"probability=1e-200 must be at least 1e-100"):
        mu_posterior_quantile(1e-200, counts)
