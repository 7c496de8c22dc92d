"""Epsilon* of known distributions: the paper's numbers, other forms, and the search for it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special, stats

from lightning_audit.stats.epsilon_star import GaussianMixture, epsilon_star_of_distributions
from lightning_audit.stats.tradeoff import gaussian_epsilon


def gaussian(mean: float, std: float = 1.0) -> GaussianMixture:
    return GaussianMixture((1.0,), (mean,), (std,))


deltas = st.sampled_from([0.0, 1e-5, 0.05, 0.4])


# Two Gaussians, training losses N(0, 1) and population N(3, 1).
@pytest.mark.parametrize(
    ("delta", "clip", "expected"),
    [
        (0, 1e-3, 6.1400),
        (0, 1e-4, 7.7667),
        (0, 1e-5, 9.2394),
        (0, 1e-6, 10.5907),
        (0, 1e-9, 14.1227),
        (0, 1e-12, 17.1246),
        (0, 0, math.inf),
        (1e-5, 1e-3, 6.1400),
        (1e-5, 1e-4, 7.7666),
        (1e-5, 1e-5, 9.2393),
        (1e-5, 1e-6, 10.5905),
        (1e-5, 1e-9, 14.1154),
        (1e-5, 1e-12, 16.6698),
        (1e-5, 0, 16.6755),
    ],
)
def test_known_gaussians_have_the_reference_values(
    delta: float, clip: float, expected: float
) -> None:
    star = epsilon_star_of_distributions(gaussian(0), gaussian(3), delta, clip=clip)
    # The reference is a maximum over a fixed grid: it may be short by one unit.
    assert expected - 6e-5 <= star.value <= expected + 1.1e-4
    if delta == 0 < clip:
        exact = special.log_ndtr(3 + special.ndtri(clip)) - math.log(clip)
        assert star.value == pytest.approx(exact, rel=1e-9)
        assert star.at_clip
    if max(delta, clip) > 0:
        scipy = epsilon_star_of_distributions(stats.norm(0, 1), stats.norm(3, 1), delta, clip=clip)
        assert scipy.value == pytest.approx(star.value, rel=1e-9)


@pytest.mark.parametrize("mu", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("delta", [1e-8, 1e-5, 1e-2])
def test_without_a_clip_gaussians_have_the_epsilon_of_gdp(mu: float, delta: float) -> None:
    """The likelihood ratio is monotone in the loss, so that thresholds are the best regions."""
    star = epsilon_star_of_distributions(gaussian(0), gaussian(mu), delta, clip=0)
    t = np.linspace(-12, 12, 200_001)
    ratio = (special.ndtr(t) - delta) / special.ndtr(t - mu)
    assert star.value == pytest.approx(math.log(ratio.max()), abs=1e-7)
    assert star.value == pytest.approx(gaussian_epsilon(mu, delta), rel=1e-9)
    assert not star.at_clip


@given(
    st.lists(st.floats(-3, 3), min_size=2, max_size=4),
    st.lists(st.floats(0.2, 3), min_size=2, max_size=4),
    deltas,
    st.sampled_from([1e-6, 1e-2]),
)
def test_no_threshold_of_mixtures_gives_more(means, stds, delta, clip) -> None:
    k = min(len(means), len(stds))
    train = GaussianMixture((1 / k,) * k, tuple(means[:k]), tuple(stds[:k]))
    population = gaussian(0.5, 1.5)
    star = epsilon_star_of_distributions(train, population, delta, clip=clip)
    t = np.linspace(-20, 20, 20_001)
    tpr, fnr = (
        sum(special.ndtr(sign * (t - m) / s) / k for m, s in zip(means, stds, strict=False))
        for sign in (1, -1)
    )
    fpr, tnr = special.ndtr((t - 0.5) / 1.5), special.ndtr(-(t - 0.5) / 1.5)
    best = 1.0
    for top, below in ((tpr, fpr), (fpr, tpr), (fnr, tnr), (tnr, fnr)):
        best = max(best, ((top - delta) / np.maximum(below, clip)).max())
    assert math.log(best) - 1e-9 <= star.value <= math.log(best) + 0.02


@pytest.mark.parametrize(
    ("mean", "std", "clip"), [(0.014, 1.51, 0.05), (0.019, 2.1, 0.05), (0.009, 2.63, 0.01)]
)
def test_of_two_maxima_that_are_nearly_equal_the_larger_one_is_found(mean, std, clip) -> None:
    """The population is wide: the upper tail's maximum is the larger one by what the mean adds."""
    star = epsilon_star_of_distributions(gaussian(0), gaussian(mean, std), 0, clip=clip)
    t = -special.ndtri(clip)
    assert star.value == pytest.approx(special.log_ndtr((mean - t) / std) - math.log(clip))
    assert star.inequality == "population_above"
    assert star.threshold == pytest.approx(t, rel=1e-9)


def test_without_delta_and_clip_only_the_same_tails_have_a_finite_value() -> None:
    assert epsilon_star_of_distributions(gaussian(0), gaussian(0), 0, clip=0).value == 0
    star = epsilon_star_of_distributions(gaussian(0, 1), gaussian(0, 1.01), 0, clip=0)
    assert star.value == math.inf
    assert star.at_clip
    train = GaussianMixture((0.5, 0.5), (0.0, 1.0), (2.0, 1.0))
    population = GaussianMixture((0.25, 0.75), (0.0, 1.0), (2.0, 1.0))
    star = epsilon_star_of_distributions(train, population, 0, clip=0)
    assert star.value == pytest.approx(math.log(2), abs=1e-6)


def test_disjoint_supports_are_limited_by_the_clip_alone() -> None:
    train, population = stats.uniform(0, 1), stats.uniform(2, 1)
    with np.errstate(divide="ignore"):
        star = epsilon_star_of_distributions(train, population, 0.1, clip=0)
        clipped = epsilon_star_of_distributions(train, population, 0.1, clip=1e-4)
    assert star.value == math.inf
    assert clipped.value == pytest.approx(math.log(0.9 / 1e-4))
