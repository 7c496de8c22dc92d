from __future__ import annotations

import math

import numpy as np
import pytest
from beta_twins import epsilon_outside
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from lightning_audit.stats.bounds.counts import (
    ConfusionCounts,
    epsilon_at_rates,
    epsilon_clopper_pearson_interval,
    epsilon_jeffreys_interval,
)
from lightning_audit.stats.bounds.intervals import (
    clopper_pearson_lower,
    clopper_pearson_upper,
    jeffreys_lower,
    jeffreys_upper,
)
from lightning_audit.stats.posteriors.gdp_posterior import (
    mu_posterior_cdf,
    mu_posterior_interval,
    mu_posterior_maximum,
    mu_posterior_pdf,
    mu_posterior_quantile,
)
from lightning_audit.stats.posteriors.posterior import (
    epsilon_posterior_cdf,
    epsilon_posterior_interval,
    epsilon_posterior_maximum,
    epsilon_posterior_pdf,
    epsilon_posterior_quantile,
)

EXAMPLE = ConfusionCounts(fn=35, tp=65, fp=25, tn=75)
regions = st.sampled_from(["two_sided", "one_sided"])
deltas = st.sampled_from([0.0, 1e-9, 1e-5, 0.05])
probabilities = st.sampled_from([1e-6, 0.05, 0.5, 0.975, 1 - 1e-9])


@st.composite
def counts_of(draw: st.DrawFn) -> ConfusionCounts:
    n_in, n_out = draw(st.integers(0, 3000)), draw(st.integers(0, 3000))
    fn, fp = draw(st.integers(0, n_in)), draw(st.integers(0, n_out))
    return ConfusionCounts(fn, n_in - fn, fp, n_out - fp)


def thresholds(n: int, shift: float, seed: int) -> ConfusionCounts:
    rng = np.random.default_rng(seed)
    inside, outside = rng.normal(shift, 1, n), rng.normal(0, 1, n)
    cuts = np.concatenate([[-np.inf], inside, outside])
    return ConfusionCounts.from_scores(inside, outside, cuts)


# Reference numbers, to the digits given.


def test_published_corner_case_is_reproduced() -> None:
    counts = ConfusionCounts(fn=10, tp=90, fp=0, tn=100)
    quantiles = [epsilon_posterior_quantile(p, counts, 1e-5) for p in (0.05, 0.1)]
    assert quantiles == pytest.approx([3.8534, 4.2014], abs=5.1e-5)


def test_flawless_attacks_are_reproduced() -> None:
    n = np.array([100, 500, 1000])
    counts = ConfusionCounts(fn=0, tp=n, fp=0, tn=n)
    assert epsilon_posterior_quantile(0.025, counts, 1e-5) == pytest.approx(
        [4.598, 6.216, 6.911], abs=5.1e-4
    )
    flawless = ConfusionCounts(fn=0, tp=1000, fp=0, tn=1000)
    quantiles = [epsilon_posterior_quantile(p, flawless, 1e-5) for p in (0.05, 0.1)]
    assert quantiles == pytest.approx([7.2072, 7.5957], abs=5.1e-5)


def test_published_implementation_s_example_is_reproduced() -> None:
    # Printed as [0.145, 6.399] by an implementation with a tolerance of 1e-2.
    counts = ConfusionCounts(fn=0, tp=487, fp=512, tn=1)
    interval = epsilon_posterior_interval(counts, delta=1e-5, significance=0.1)
    assert interval == pytest.approx((0.14389, 6.41560), abs=1e-5)


@pytest.mark.parametrize(
    ("lower", "upper", "interval", "rectangle", "between"),
    [
        # Published as those of Jeffreys' rectangle; they are Clopper and Pearson's.
        (
            clopper_pearson_lower,
            clopper_pearson_upper,
            epsilon_clopper_pearson_interval,
            0.9630,
            0.9979,
        ),
        (jeffreys_lower, jeffreys_upper, epsilon_jeffreys_interval, 0.9506, 0.9967),
    ],
)
def test_rectangles_cover_more_than_they_say(lower, upper, interval, rectangle, between) -> None:
    mass = 1.0
    for k in (35, 25):
        limits = np.array([lower(k, 100, 0.0125), upper(k, 100, 0.0125)])
        mass *= float(np.diff(stats.beta.cdf(limits, k + 0.5, 100.5 - k))[0])
    assert mass == pytest.approx(rectangle, abs=5.1e-5)
    inside = epsilon_posterior_cdf(np.array(interval(EXAMPLE, 0.05, 0.05)), EXAMPLE, 0.05)
    assert inside[1] - inside[0] == pytest.approx(between, abs=5.1e-5)


# Naive twins.


def assert_mass_is_exact(counts: tuple[int, int, int, int], delta: float, epsilon: float) -> None:
    below, above = epsilon_outside(epsilon, *counts, delta)
    for region, outside in (("two_sided", below + above), ("one_sided", below)):
        observed = ConfusionCounts(*counts)
        inside = epsilon_posterior_cdf(epsilon, observed, delta, region=region)
        assert inside == pytest.approx(float(1 - outside), rel=1e-12, abs=1e-15)
        # An upper quantile inverts the mass outside.
        if 1e-9 < outside < 0.99:
            quantile = epsilon_posterior_quantile(
                float(1 - outside), observed, delta, region=region
            )
            assert quantile == pytest.approx(epsilon, rel=1e-9)


@pytest.mark.parametrize(
    ("counts", "delta", "epsilon"),
    [
        ((35, 65, 25, 75), 0.05, 0.1),
        ((35, 65, 25, 75), 0.05, 1.3),
        ((0, 2, 0, 2), 0.0, 5.0),
        ((1, 1, 1, 1), 0.01, 0.0051),
        ((0, 1000, 0, 1000), 1e-5, 7.2),
        ((10, 90, 0, 100), 1e-5, 4.0),
        ((998, 2, 999, 1), 1e-9, 5.0),
    ],
)
def test_mass_has_twelve_digits_inside_and_outside(counts, delta: float, epsilon: float) -> None:
    assert_mass_is_exact(counts, delta, epsilon)


@pytest.mark.parametrize(
    ("counts", "delta", "probability"),
    [((10, 990, 5, 995), 1e-5, 1e-10), ((3, 97, 30, 70), 0.0, 1e-6), ((0, 50, 0, 50), 0.05, 1e-8)],
)
def test_small_quantiles_have_nine_digits(counts, delta: float, probability: float) -> None:
    quantile = epsilon_posterior_quantile(
        probability, ConfusionCounts(*counts), delta, region="one_sided"
    )
    below, _ = epsilon_outside(quantile, *counts, delta)
    assert float(1 - below) == pytest.approx(probability, rel=1e-9)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("counts", "delta", "epsilon"),
    [
        ((900, 100, 2, 998), 0.0, 3.0),
        ((300, 700, 30_000, 970_000), 1e-5, 3.1),
        ((500, 500, 500_000, 500_000), 1e-5, 0.05),
        ((159_000, 841_000, 158_500, 841_500), 1e-9, 1.668),
    ],
)
def test_a_million_observations_keep_twelve_digits(counts, delta: float, epsilon: float) -> None:
    assert_mass_is_exact(counts, delta, epsilon)


@pytest.mark.parametrize("region", ["two_sided", "one_sided"])
def test_agrees_with_two_dimensional_quadrature(region: str) -> None:
    x, y = stats.beta(5.5, 10.5), stats.beta(3.5, 12.5)
    epsilon, delta = 1.0, 0.05

    def start(fnr: float) -> float:
        return max(0.0, 1 - delta - math.exp(epsilon) * fnr, (1 - delta - fnr) / math.e)

    def stop(fnr: float) -> float:
        mirrored = 1 - start(1 - fnr)
        return mirrored if region == "two_sided" else 1.0

    c = (1 - delta) / (1 + math.e)
    twin = sum(
        integrate.dblquad(lambda q, p: x.pdf(p) * y.pdf(q), low, high, start, stop, epsabs=1e-9)[0]
        for low, high in ((0, c), (c, 1 - c), (1 - c, 1))
    )
    counts = ConfusionCounts(5, 10, 3, 12)
    assert epsilon_posterior_cdf(epsilon, counts, delta, region=region) == pytest.approx(
        twin, abs=1e-7
    )


@pytest.mark.parametrize("prior", [0.5, 1.0])
@pytest.mark.parametrize("counts", [(35, 65, 25, 75), (70, 30, 60, 40), (3, 4, 0, 9)])
def test_agrees_with_draws_from_the_posterior(counts, prior: float) -> None:
    rng, draws = np.random.default_rng(1), 200_000
    fn, tp, fp, tn = (count + prior for count in counts)
    rates = rng.beta(fn, tp, draws), rng.beta(fp, tn, draws)
    epsilons = epsilon_at_rates(*rates, 0.01)
    one_sided = np.where(rates[0] + rates[1] < 1, epsilons, 0.0)
    for region, drawn in (("two_sided", epsilons), ("one_sided", one_sided)):
        for epsilon in (0.0, 0.2, 0.9, 2.5):
            inside = epsilon_posterior_cdf(
                epsilon, ConfusionCounts(*counts), 0.01, region=region, prior=prior
            )
            error = 4 * math.sqrt(inside * (1 - inside) / draws) + 1e-6
            assert abs(np.mean(drawn <= epsilon) - inside) < error


# Laws.


@settings(max_examples=40)
@given(counts_of(), deltas, probabilities, regions)
def test_quantile_undoes_the_distribution_function(counts, delta, probability, region) -> None:
    quantile = epsilon_posterior_quantile(probability, counts, delta, region=region)
    inside = epsilon_posterior_cdf(quantile, counts, delta, region=region)
    if quantile > 0:
        assert inside == pytest.approx(probability, rel=1e-9, abs=1e-14)
        assert 1 - inside == pytest.approx(1 - probability, rel=1e-6, abs=1e-14)
    else:
        assert inside >= probability - 1e-14


@settings(max_examples=40)
@given(counts_of(), deltas, probabilities, regions)
def test_worlds_may_be_swapped(counts, delta, probability, region) -> None:
    swapped = ConfusionCounts(counts.fp, counts.tn, counts.fn, counts.tp)
    assert epsilon_posterior_quantile(probability, swapped, delta, region=region) == pytest.approx(
        epsilon_posterior_quantile(probability, counts, delta, region=region), rel=1e-9, abs=1e-12
    )


@settings(max_examples=40)
@given(counts_of(), deltas, probabilities)
def test_published_region_ignores_the_attack_s_direction(counts, delta, probability) -> None:
    turned = ConfusionCounts(counts.tp, counts.fn, counts.tn, counts.fp)
    assert epsilon_posterior_quantile(probability, turned, delta) == pytest.approx(
        epsilon_posterior_quantile(probability, counts, delta), rel=1e-9, abs=1e-12
    )


@settings(max_examples=40)
@given(counts_of(), deltas, probabilities)
def test_fewer_errors_give_a_larger_one_sided_quantile(counts, delta, probability) -> None:
    better = ConfusionCounts(
        counts.fn - np.minimum(counts.fn, 1),
        counts.tp + np.minimum(counts.fn, 1),
        counts.fp,
        counts.tn,
    )
    first, second = (
        epsilon_posterior_quantile(probability, c, delta, region="one_sided")
        for c in (counts, better)
    )
    assert second >= first * (1 - 1e-9)


@settings(max_examples=40)
@given(counts_of(), deltas, regions)
def test_quantiles_rise_with_probability(counts, delta, region) -> None:
    levels = (1e-9, 1e-3, 0.05, 0.5, 0.9, 1 - 1e-6)
    found = [epsilon_posterior_quantile(p, counts, delta, region=region) for p in levels]
    assert found == sorted(found)


@given(counts_of(), regions)
def test_density_is_the_slope_of_the_distribution_function(counts, region) -> None:
    quantile = epsilon_posterior_quantile(0.6, counts, 1e-5, region=region)
    density = epsilon_posterior_pdf(quantile, counts, 1e-5, region=region)
    h = 1e-4 * max(quantile, 1e-3)
    up, down = epsilon_posterior_cdf(
        np.array([quantile + h, max(quantile - h, 0.0)]), counts, 1e-5, region=region
    )
    if quantile > h:
        assert (up - down) / (2 * h) == pytest.approx(density, rel=1e-4)


def test_density_and_atom_add_up_to_one() -> None:
    for counts in (EXAMPLE, ConfusionCounts(50, 50, 48, 52)):
        for region in ("two_sided", "one_sided"):
            atom = epsilon_posterior_cdf(0.0, counts, 0.05, region=region)
            mass, _ = integrate.quad(
                lambda e, c=counts, r=region: epsilon_posterior_pdf(e, c, 0.05, region=r), 0, 9
            )
            assert atom + mass == pytest.approx(1.0, abs=1e-9)


def test_null_scores_are_positive_in_the_published_region_only() -> None:
    counts = ConfusionCounts(500, 500, 500, 500)
    assert epsilon_posterior_quantile(0.05, counts, 0.0) > 0
    assert epsilon_posterior_quantile(0.05, counts, 0.0, region="one_sided") == 0.0
    assert epsilon_posterior_quantile(0.05, ConfusionCounts(0, 0, 0, 0), 0, region="one_sided") == 0


# The largest quantile.


@pytest.mark.parametrize("region", ["two_sided", "one_sided"])
@pytest.mark.parametrize("probability", [1e-9, 0.05, 0.5, 0.9])
@pytest.mark.parametrize("shift", [-1.0, 0.0, 0.3, 2.0])
def test_pruned_maximum_is_the_maximum(shift: float, probability: float, region: str) -> None:
    counts = thresholds(60, shift, seed=int(10 * shift) + 20)
    every = epsilon_posterior_quantile(probability, counts, 1e-5, region=region)
    value, index = epsilon_posterior_maximum(counts, 1e-5, probability, region=region)
    assert value == pytest.approx(every.max(), rel=1e-9)
    assert every[index] == pytest.approx(every.max(), rel=1e-9)


def test_pruned_maximum_of_samples_of_different_sizes_is_the_maximum() -> None:
    rng = np.random.default_rng(3)
    n = rng.integers(5, 300, (2, 40))
    fn, fp = rng.integers(0, n[0] + 1), rng.integers(0, n[1] + 1)
    counts = ConfusionCounts(fn, n[0] - fn, fp, n[1] - fp)
    every = epsilon_posterior_quantile(0.05, counts, 1e-5)
    assert epsilon_posterior_maximum(counts, 1e-5, 0.05) == pytest.approx(
        (every.max(), every.argmax())
    )


# Arguments.


def test_numbers_give_floats_and_arrays_broadcast() -> None:
    assert type(epsilon_posterior_cdf(1.0, EXAMPLE, 0.0)) is float
    assert type(epsilon_posterior_quantile(0.05, EXAMPLE, 0)) is float
    two = ConfusionCounts(fn=[35, 10], tp=[65, 90], fp=[25, 0], tn=[75, 100])
    table = epsilon_posterior_cdf(np.array([[0.5], [1.0], [2.0]]), two, 0.05)
    assert table.shape == (3, 2)
    assert table[1, 0] == epsilon_posterior_cdf(1.0, EXAMPLE, 0.05)
    low, high = epsilon_posterior_interval(two, 0.05, 0.05)
    assert low.shape == high.shape == (2,)
    assert epsilon_posterior_cdf(np.inf, EXAMPLE, 0.0) == 1.0
    empty = ConfusionCounts([], [], [], [])
    assert epsilon_posterior_quantile(0.05, empty, 1e-5).shape == (0,)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: epsilon_posterior_cdf(-1.0, EXAMPLE, 0.0), r"epsilon=-1\.0 must be a finite"),
        (lambda: epsilon_posterior_cdf(1.0, EXAMPLE, 1.0), r"delta=1\.0 must be in \(0, 1\); or 0"),
        (lambda: epsilon_posterior_quantile(0.0, EXAMPLE, 0.0), r"probability=0\.0 must be in"),
        (lambda: epsilon_posterior_interval(EXAMPLE, 0.0, 1.5), r"significance=1\.5 must be in"),
        (
            lambda: epsilon_posterior_quantile(0.5, EXAMPLE, 0, region="both"),
            r"region='both' must be one of \['one_sided', 'two_sided'\]",
        ),
        (
            lambda: epsilon_posterior_quantile(0.5, EXAMPLE, 0, prior=0.3),
            r"prior=0\.3 must be a whole multiple of 1/2.*use 0\.5",
        ),
        (
            lambda: epsilon_posterior_maximum(ConfusionCounts([], [], [], []), 0.0, 0.05),
            r"counts hold no threshold",
        ),
    ],
)
def test_arguments_out_of_range_are_refused(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


MANY = ConfusionCounts(*(np.arange(500) + i for i in range(4)))


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: mu_posterior_cdf(MANY, 0.5), "mu"),
        (lambda: mu_posterior_pdf(MANY, 0.5), "mu"),
        (lambda: mu_posterior_quantile(MANY, 0.5), "probability"),
        (lambda: mu_posterior_interval(0.5, MANY), "significance"),
        (lambda: mu_posterior_maximum(0.5, MANY), "probability"),
        (lambda: epsilon_posterior_cdf(MANY, 0.5, 0.0), "epsilon"),
        (lambda: epsilon_posterior_quantile(MANY, 0.05, 0.0), "probability"),
        (lambda: epsilon_posterior_interval(0.05, 0.0, MANY), "significance"),
        (lambda: ConfusionCounts(MANY, 1, 1, 1), "fn"),
        (lambda: ConfusionCounts(1, 1, np.full(500, 0.5), 1), "fp"),
    ],
)
def test_arguments_that_are_swapped_are_shown_in_a_line(call, name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name}=.* must ") as caught:
        call()
    assert len(str(caught.value)) < 250
    assert "\n" not in str(caught.value)
