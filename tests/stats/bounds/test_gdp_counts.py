from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special

from lightning_audit.stats.bounds.counts import ConfusionCounts
from lightning_audit.stats.bounds.gdp_counts import mu_clopper_pearson, mu_pooled_clopper_pearson
from lightning_audit.stats.bounds.intervals import clopper_pearson_upper
from lightning_audit.stats.tradeoff.gdp import gaussian_epsilon

BOUNDS = [mu_clopper_pearson, mu_pooled_clopper_pearson]
significances = st.sampled_from([1e-9, 1e-3, 0.05, 0.25])


@st.composite
def counts_of(draw: st.DrawFn) -> ConfusionCounts:
    n_in, n_out = draw(st.integers(0, 5000)), draw(st.integers(0, 5000))
    fn, fp = draw(st.integers(0, n_in)), draw(st.integers(0, n_out))
    return ConfusionCounts(fn, n_in - fn, fp, n_out - fp)


# Reference numbers, to the digits given.


@pytest.mark.parametrize(
    ("counts", "corner", "pooled"),
    [
        ((35, 65, 25, 75), (0.515635, 2.062854), (0.728682, 3.045338)),
        ((10, 990, 5, 995), (4.359058, 27.39683), (4.545198, 29.011387)),
        ((309, 691, 309, 691), (0.832184, 3.543097), (0.899498, 3.873700)),
    ],
)
def test_bounds_of_counts_are_reproduced(counts, corner, pooled) -> None:
    for bound, (mu, epsilon) in ((mu_clopper_pearson, corner), (mu_pooled_clopper_pearson, pooled)):
        found = bound(ConfusionCounts(*counts), significance=0.05)
        assert found == pytest.approx(mu, abs=5.1e-7)
        assert gaussian_epsilon(found, 1e-5) == pytest.approx(epsilon, abs=5.1e-6)


def test_largest_bounds_of_flawless_attacks_are_reproduced() -> None:
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


# Naive twins.


def test_equal_sizes_have_a_closed_form() -> None:
    counts = ConfusionCounts([309, 3, 90], [691, 97, 10], [309, 5, 70], [691, 95, 30])
    upper = clopper_pearson_upper(counts.fn + counts.fp, counts.n_in + counts.n_out, 0.01)
    expected = np.maximum(-2 * special.ndtri(upper), 0)
    assert mu_pooled_clopper_pearson(counts, 0.01) == pytest.approx(expected, rel=1e-12)


# Laws.


@pytest.mark.parametrize("bound", BOUNDS)
@given(counts_of(), significances)
def test_fewer_errors_never_lower_a_bound(bound, counts, significance) -> None:
    one = int(counts.fn > 0)
    better = ConfusionCounts(counts.fn - one, counts.tp + one, counts.fp, counts.tn)
    assert bound(better, significance) >= bound(counts, significance) * (1 - 1e-12)


@pytest.mark.parametrize("bound", BOUNDS)
@given(counts_of())
def test_bounds_rise_with_significance(bound, counts) -> None:
    found = [bound(counts, level) for level in (1e-9, 1e-3, 0.05, 0.25)]
    assert found == sorted(found)
    assert found[0] >= 0


@pytest.mark.parametrize("bound", BOUNDS)
@given(counts_of(), significances)
def test_worlds_may_be_swapped(bound, counts, significance) -> None:
    swapped = ConfusionCounts(counts.fp, counts.tn, counts.fn, counts.tp)
    assert bound(swapped, significance) == pytest.approx(bound(counts, significance), rel=1e-11)


@pytest.mark.parametrize("bound", BOUNDS)
def test_a_bound_is_zero_without_data_and_without_leakage(bound) -> None:
    nothing = ConfusionCounts(
        [0, 0, 0, 500, 99, 0], [0, 0, 9, 500, 1, 1000], [0, 0, 0, 500, 99, 3], [0, 9, 0, 500, 1, 0]
    )
    assert bound(nothing, 0.05).tolist() == [0.0] * 6


def test_always_guessing_the_larger_world_proves_nothing() -> None:
    # 10 errors in 1,010 guesses look good, but need no distance at all.
    counts = ConfusionCounts(fn=10, tp=0, fp=0, tn=1000)
    assert mu_pooled_clopper_pearson(counts, 0.05) == 0.0


# Arguments.


@pytest.mark.parametrize("bound", BOUNDS)
def test_one_threshold_gives_a_float_and_many_give_arrays(bound) -> None:
    many = ConfusionCounts(np.array([[35], [10]]), 65, np.array([25, 0, 1]), 75)
    assert type(bound(ConfusionCounts(35, 65, 25, 75), 0.05)) is float
    assert bound(many, 0.05).shape == (2, 3)
    assert bound(many, 0.05)[0, 0] == bound(ConfusionCounts(35, 65, 25, 75), 0.05)


def test_impossible_significance_is_refused() -> None:
    counts = ConfusionCounts(35, 65, 25, 75)
    for bound in BOUNDS:
        with pytest.raises(ValueError, match=r"significance=0 must be in \(0, 1\); it is"):
            bound(counts, 0)
    with pytest.raises(ValueError, match=r"significance=0\.3 must be in \(0, 1/4\].*use mu_clop"):
        mu_pooled_clopper_pearson(counts, 0.3)
