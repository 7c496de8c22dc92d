from __future__ import annotations

import numpy as np
import pytest
from refused_calls import refusals
from scipy import stats

from lightning_audit.stats.binomial import (
    clopper_pearson_lower,
    clopper_pearson_upper,
    jeffreys_lower,
    jeffreys_upper,
)
from lightning_audit.stats.counts import (
    ConfusionCounts,
    epsilon_clopper_pearson_interval,
    epsilon_jeffreys_interval,
)
from lightning_audit.stats.posteriors import (
    epsilon_posterior_cdf,
    epsilon_posterior_interval,
    epsilon_posterior_maximum,
    epsilon_posterior_quantile,
    mu_posterior_cdf,
    mu_posterior_interval,
    mu_posterior_maximum,
    mu_posterior_pdf,
    mu_posterior_quantile,
)

EXAMPLE = ConfusionCounts(fn=35, tp=65, fp=25, tn=75)
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


def test_null_scores_are_positive_in_the_published_region_only() -> None:
    counts = ConfusionCounts(500, 500, 500, 500)
    assert epsilon_posterior_quantile(0.05, counts, 0.0) > 0
    assert epsilon_posterior_quantile(0.05, counts, 0.0, region="one_sided") == 0.0
    assert epsilon_posterior_quantile(0.05, ConfusionCounts(0, 0, 0, 0), 0, region="one_sided") == 0


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


test_arguments_out_of_range_are_refused = refusals(
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
)


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
    ],
)
def test_arguments_that_are_swapped_are_shown_in_a_line(call, name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name}=.* must ") as caught:
        call()
    assert len(str(caught.value)) < 250
    assert "\n" not in str(caught.value)
