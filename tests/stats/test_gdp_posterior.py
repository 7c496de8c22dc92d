from __future__ import annotations

import math

import numpy as np
import pytest
from refused_calls import refusals

from lightning_audit.stats.counts import ConfusionCounts
from lightning_audit.stats.posteriors import (
    mu_posterior_cdf,
    mu_posterior_interval,
    mu_posterior_maximum,
    mu_posterior_pdf,
    mu_posterior_quantile,
)
from lightning_audit.stats.tradeoff import gaussian_epsilon

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


# Arguments.

SOME = ConfusionCounts(1, 2, 3, 4)


def test_numbers_give_floats_and_arrays_broadcast() -> None:
    two = ConfusionCounts(fn=[35, 10], tp=[65, 90], fp=[25, 0], tn=[75, 100])
    assert type(mu_posterior_cdf(1.0, SOME)) is float
    assert mu_posterior_pdf(np.array([[0.5], [1.0], [2.0]]), two).shape == (3, 2)
    low, high = mu_posterior_interval(two, 0.05)
    assert np.all(low < high)
    assert mu_posterior_cdf(math.inf, two).tolist() == [1.0, 1.0]


test_arguments_out_of_range_are_refused = refusals(
    (lambda: mu_posterior_cdf(-1.0, SOME), r"mu=-1\.0 must be a finite number >= 0"),
    (lambda: mu_posterior_quantile(1.0, SOME), r"probability=1\.0 must be in \(0, 1\); such as 0"),
    (lambda: mu_posterior_maximum(ConfusionCounts([], [], [], []), 0.05), "counts hold no thresh"),
)


def test_a_quantile_of_next_to_nothing_is_refused() -> None:
    counts = ConfusionCounts(fn=3, tp=20, fp=2, tn=20)
    assert mu_posterior_quantile(1e-100, counts) < mu_posterior_quantile(1e-10, counts)
    with pytest.raises(ValueError, match=r"probability=1e-200 must be at least 1e-100"):
        mu_posterior_quantile(1e-200, counts)
