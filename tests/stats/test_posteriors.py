import math
from functools import partial

import numpy as np
import pytest
from beta_twins import epsilon_outside, mu_outside
from drawn_counts import counts_of
from hypothesis import given, settings
from hypothesis import strategies as st
from refused_calls import refusals, refused
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
    epsilon_clopper_pearson_interval,
    epsilon_jeffreys_interval,
)
from lightning_audit.stats.posteriors import GridDistribution, Posterior
from lightning_audit.stats.tradeoff import gaussian_epsilon

# --- The posteriors of epsilon and of mu by one name each; a delta of None stands for mu.
regions = st.sampled_from(["two_sided", "one_sided"])
deltas = st.sampled_from([None, None, 0.0, 1e-9, 1e-5, 0.05])
probabilities = st.sampled_from([1e-6, 0.05, 0.5, 0.975, 1 - 1e-9])
SOME = ConfusionCounts(1, 2, 3, 4)
heavy = pytest.mark.heavy
EXAMPLE = ConfusionCounts(fn=35, tp=65, fp=25, tn=75)
CLOPPER_PEARSON, JEFFREYS = (
    (clopper_pearson_lower, clopper_pearson_upper),
    (jeffreys_lower, jeffreys_upper),
)


def thresholds(n: int, shift: float) -> ConfusionCounts:
    """Counts at every threshold of two Gaussian samples."""
    rng = np.random.default_rng(int(10 * shift) + 20)
    inside, outside = rng.normal(shift, 1, n), rng.normal(0, 1, n)
    cuts = np.concatenate([[-np.inf], inside, outside])
    return ConfusionCounts.from_scores(inside, outside, cuts)


def posterior(part: str, value, counts, delta, **options):
    """Of epsilon, or of mu where delta is None."""
    of_mu, of_epsilon = Posterior.of_mu, Posterior.of_epsilon
    made = of_mu(counts, **options) if delta is None else of_epsilon(counts, delta, **options)
    return getattr(made, part)(value)


cdf, pdf, quantile, maximum = (
    partial(posterior, part) for part in ("cdf", "pdf", "quantile", "maximum")
)


def outside(value, counts, delta):
    """Exact masses below the claim's region and above it."""
    return mu_outside(value, *counts) if delta is None else epsilon_outside(value, *counts, delta)


@pytest.mark.parametrize(
    ("counts", "mu", "epsilon"),
    [
        ((35, 65, 25, 75), 0.751026, 3.151697),
        ((10, 990, 5, 995), 4.58925, 29.398621),
        ((309, 691, 309, 691), 0.900803, 3.880162),
    ],
)
def test_lower_quantiles_of_counts_are_reproduced(counts, mu, epsilon):
    quantile = Posterior.of_mu(ConfusionCounts(*counts)).quantile(0.05)
    assert quantile == pytest.approx(mu, abs=5.1e-7 if mu < 1 else 5.1e-6)
    assert gaussian_epsilon(quantile, 1e-5) == pytest.approx(epsilon, abs=5.1e-7)


@pytest.mark.parametrize(
    ("n", "at_025", "at_05"), [(100, 27.653, 29.262), (500, 38.183, 39.714), (1000, 42.557, 44.061)]
)
def test_largest_epsilons_of_flawless_attacks_are_reproduced(n, at_025, at_05):
    # Published as 44.0 for 1,000 observations a world.
    counts = ConfusionCounts(fn=0, tp=n, fp=0, tn=n)
    mus = [Posterior.of_mu(counts).quantile(p) for p in (0.025, 0.05)]
    assert gaussian_epsilon(np.array(mus), 1e-5) == pytest.approx([at_025, at_05], abs=5.1e-4)
    if n == 1000:
        assert mus == pytest.approx([5.97274, 6.11902], abs=5.1e-6)


@pytest.mark.parametrize("law", [stats.gamma(3.0), stats.beta(2.5, 4.0), stats.expon(scale=0.5)])
def test_quantiles_cdf_and_mean_are_those_of_the_density(law):
    points = np.linspace(0.0, law.ppf(1 - 1e-9), 400)
    found = GridDistribution(points, 7.0 * law.pdf(points))
    for p in (0.01, 0.3, 0.5, 0.99):
        assert found.quantile(p) == pytest.approx(law.ppf(p), abs=1e-4)
        assert found.cdf(found.quantile(p)) == pytest.approx(p, abs=1e-12)
    assert found.mean == pytest.approx(law.mean(), abs=1e-4)
    assert found.interval(0.1) == (found.quantile(0.05), found.quantile(0.95))
    assert found.cdf(np.array([0.0, law.median(), 1e9])) == pytest.approx([0.0, 0.5, 1.0], abs=1e-4)


test_what_is_no_density_is_refused = refused(
    lambda points, density: GridDistribution(np.array(points), np.array(density)),
    ([0.0, 1.0], [1.0, 1.0], r"points of shape \(2,\) must be at least three increasing"),
    ([0.0, 1.0, 1.0], [1.0] * 3, "must be at least three increasing numbers; sort them"),
    ([0.0, 1.0, 2.0], [1.0, -1.0, 1.0], "one finite value >= 0 for each of the 3 points"),
    ([0.0, 1.0, 2.0], [0.0] * 3, "density is 0 at every point, must be positive"),
)


# Naive twins; a delta of None stands for mu.
@pytest.mark.parametrize(
    ("counts", "delta", "value"),
    [
        *(((0, 2, 0, 2), 0.0, 5.0), ((1, 1, 1, 1), 0.01, 0.0051), ((998, 2, 999, 1), 1e-9, 5.0)),
        *(((1, 1, 1, 1), None, 0.01), ((0, 2, 0, 2), None, 3.0), ((998, 2, 999, 1), None, 5.0)),
        *(
            pytest.param(*case, marks=heavy)
            for case in (
                *(((35, 65, 25, 75), 0.05, 0.1), ((35, 65, 25, 75), None, 0.7)),
                *(((0, 1000, 0, 1000), 1e-5, 7.2), ((0, 1000, 0, 1000), None, 6.1)),
                ((10, 90, 0, 100), 1e-5, 4.0),
                # A million observations.
                *(
                    ((300, 700, 30_000, 970_000), delta, at)
                    for delta, at in ((1e-5, 3.1), (None, 2.41))
                ),
                *(((500, 500, 500_000, 500_000), delta, 0.05) for delta in (1e-5, None)),
                ((5, 999_995, 1000, 0), None, 1.0),
            )
        ),
        pytest.param((159_000, 841_000, 158_500, 841_500), 1e-9, 1.668, marks=pytest.mark.nightly),
    ],
)
@pytest.mark.heavy_one_in(6)
@pytest.mark.one_in(3)
def test_mass_has_twelve_digits_inside_and_outside(counts, delta, value):
    below, above = outside(value, counts, delta)
    for region, mass in (("two_sided", below + above), ("one_sided", below)):
        observed = ConfusionCounts(*counts)
        inside = cdf(value, observed, delta, region=region)
        assert inside == pytest.approx(float(1 - mass), rel=1e-12, abs=1e-15)
        # An upper quantile inverts the mass outside.
        if 1e-9 < mass < 0.99:
            found = quantile(float(1 - mass), observed, delta, region=region)
            assert found == pytest.approx(value, rel=1e-9)


@pytest.mark.parametrize("delta", [0.01, None])
@pytest.mark.parametrize(
    ("counts", "prior"), [((70, 30, 60, 40), 1.0), ((3, 4, 0, 9), 1.0), ((3, 4, 0, 9), 0.5)]
)
def test_agrees_with_draws_from_the_posterior(counts, prior, delta):
    rng, draws = np.random.default_rng(1), 200_000
    fn, tp, fp, tn = (count + prior for count in counts)
    rates = rng.beta(fn, tp, draws), rng.beta(fp, tn, draws)
    if delta is None:
        shift = -special.ndtri(rates[0]) - special.ndtri(rates[1])
        of_regions = np.abs(shift), np.maximum(shift, 0)
    else:
        epsilons = epsilon_at_rates(*rates, delta)
        of_regions = epsilons, np.where(rates[0] + rates[1] < 1, epsilons, 0.0)
    for region, drawn in zip(("two_sided", "one_sided"), of_regions, strict=True):
        for value in (0.0, 0.2, 0.9, 2.5):
            inside = cdf(value, ConfusionCounts(*counts), delta, region=region, prior=prior)
            error = 4 * math.sqrt(inside * (1 - inside) / draws) + 1e-6
            assert abs(np.mean(drawn <= value) - inside) < error


def test_published_numbers_of_epsilon_are_reproduced():
    n, flawless = np.array([100, 500, 1000]), ConfusionCounts(fn=0, tp=1000, fp=0, tn=1000)
    found = Posterior.of_epsilon(ConfusionCounts(fn=0, tp=n, fp=0, tn=n), 1e-5).quantile(0.025)
    assert found == pytest.approx([4.598, 6.216, 6.911], abs=5.1e-4)
    corner = ConfusionCounts(fn=10, tp=90, fp=0, tn=100)
    for counts, expected in ((corner, [3.8534, 4.2014]), (flawless, [7.2072, 7.5957])):
        quantiles = [Posterior.of_epsilon(counts, 1e-5).quantile(p) for p in (0.05, 0.1)]
        assert quantiles == pytest.approx(expected, abs=5.1e-5)
    # Printed as [0.145, 6.399] by an implementation with a tolerance of 1e-2.
    counts = ConfusionCounts(fn=0, tp=487, fp=512, tn=1)
    interval = Posterior.of_epsilon(counts, 1e-5).interval(0.1)
    assert interval == pytest.approx((0.14389, 6.41560), abs=1e-5)


# Published as those of Jeffreys' rectangle; the first are Clopper and Pearson's.
@pytest.mark.parametrize(
    ("limits", "interval", "rectangle", "between"),
    [
        (CLOPPER_PEARSON, epsilon_clopper_pearson_interval, 0.9630, 0.9979),
        (JEFFREYS, epsilon_jeffreys_interval, 0.9506, 0.9967),
    ],
)
def test_rectangles_cover_more_than_they_say(limits, interval, rectangle, between):
    mass = 1.0
    for k in (35, 25):
        ends = np.array([limit(k, 100, 0.0125) for limit in limits])
        mass *= float(np.diff(stats.beta.cdf(ends, k + 0.5, 100.5 - k))[0])
    assert mass == pytest.approx(rectangle, abs=5.1e-5)
    inside = Posterior.of_epsilon(EXAMPLE, 0.05).cdf(np.array(interval(EXAMPLE, 0.05, 0.05)))
    assert inside[1] - inside[0] == pytest.approx(between, abs=5.1e-5)


def test_null_scores_are_positive_in_the_published_region_only():
    counts = ConfusionCounts(500, 500, 500, 500)
    assert Posterior.of_epsilon(counts, 0.0).quantile(0.05) > 0
    assert Posterior.of_epsilon(counts, 0.0, region="one_sided").quantile(0.05) == 0.0
    assert (
        Posterior.of_epsilon(ConfusionCounts(0, 0, 0, 0), 0, region="one_sided").quantile(0.05) == 0
    )


def test_numbers_give_floats_and_arrays_broadcast():
    assert type(Posterior.of_epsilon(EXAMPLE, 0.0).cdf(1.0)) is float
    assert type(Posterior.of_epsilon(EXAMPLE, 0).quantile(0.05)) is float
    two = ConfusionCounts(fn=[35, 10], tp=[65, 90], fp=[25, 0], tn=[75, 100])
    table = Posterior.of_epsilon(two, 0.05).cdf(np.array([[0.5], [1.0], [2.0]]))
    assert (table.shape, table[1, 0]) == ((3, 2), Posterior.of_epsilon(EXAMPLE, 0.05).cdf(1.0))
    low, high = Posterior.of_epsilon(two, 0.05).interval(0.05)
    assert low.shape == high.shape == (2,)
    assert Posterior.of_mu(two).cdf(math.inf).tolist() == [1.0, 1.0]
    assert Posterior.of_mu(SOME).quantile(1e-100) < Posterior.of_mu(SOME).quantile(1e-10)
    assert Posterior.of_epsilon(EXAMPLE, 0.0).cdf(np.inf) == 1.0
    assert Posterior.of_epsilon(ConfusionCounts([], [], [], []), 1e-5).quantile(0.05).shape == (0,)


test_arguments_out_of_range_are_refused = refusals(
    (lambda: Posterior.of_mu(SOME).cdf(-1.0), r"value=-1\.0 must be a finite number >= 0"),
    (lambda: Posterior.of_mu(SOME).quantile(1e-200), r"probability=1e-200 must be at least 1e-100"),
    (lambda: Posterior.of_epsilon(EXAMPLE, 1.0).cdf(1.0), r"delta=1\.0 must be in \(0, 1\); or 0"),
    (lambda: Posterior.of_mu(0.5), "^counts="),
    (
        lambda: Posterior.of_epsilon(EXAMPLE, 0, region="both").quantile(0.5),
        r"region='both' must be one of \['one_sided', 'two_sided'\]",
    ),
    (
        lambda: Posterior.of_epsilon(EXAMPLE, 0, prior=0.3).quantile(0.5),
        r"prior=0\.3 must be a whole multiple of 1/2.*use 0\.5",
    ),
    (
        lambda: Posterior.of_epsilon(ConfusionCounts([], [], [], []), 0.0).maximum(0.05),
        r"counts hold no threshold",
    ),
)


@settings(max_examples=60)
@given(counts_of(3000), deltas, probabilities, regions)
def test_quantile_undoes_the_distribution_function(counts, delta, probability, region):
    found = quantile(probability, counts, delta, region=region)
    inside = cdf(found, counts, delta, region=region)
    if found > 0:
        assert inside == pytest.approx(probability, rel=1e-9, abs=1e-14)
        assert 1 - inside == pytest.approx(1 - probability, rel=1e-6, abs=1e-14)
    else:
        assert inside >= probability - 1e-14


@given(counts_of(3000), deltas, regions)
def test_density_is_the_slope_of_the_distribution_function(counts, delta, region):
    at = quantile(0.6, counts, delta, region=region)
    density = pdf(at, counts, delta, region=region)
    h = 1e-4 * max(at, 1e-3)
    up, down = cdf(np.array([at + h, max(at - h, 0.0)]), counts, delta, region=region)
    if at > h:
        assert (up - down) / (2 * h) == pytest.approx(density, rel=1e-4)


@pytest.mark.parametrize("region", ["two_sided", "one_sided"])
@pytest.mark.parametrize(
    ("delta", "probability"), [(1e-5, 1e-9), (1e-5, 0.05), (1e-5, 0.5), (1e-5, 0.9), (None, 0.05)]
)
@pytest.mark.parametrize("shift", [-1.0, 0.0, 0.3, 2.0])
@pytest.mark.heavy_one_in(6)
@pytest.mark.one_in(4)
def test_pruned_maximum_is_the_maximum(shift, delta, probability, region):
    counts = thresholds(60, shift)
    every = quantile(probability, counts, delta, region=region)
    value, index = maximum(probability, counts, delta, region=region)
    assert (value, every[index]) == pytest.approx((every.max(), every.max()), rel=1e-10)


def test_pruned_maximum_of_samples_of_different_sizes_is_the_maximum():
    rng = np.random.default_rng(3)
    n = rng.integers(5, 300, (2, 40))
    fn, fp = rng.integers(0, n[0] + 1), rng.integers(0, n[1] + 1)
    counts = ConfusionCounts(fn, n[0] - fn, fp, n[1] - fp)
    every = quantile(0.05, counts, 1e-5)
    assert maximum(0.05, counts, 1e-5) == pytest.approx((every.max(), every.argmax()))
