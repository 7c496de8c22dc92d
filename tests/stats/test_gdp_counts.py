from __future__ import annotations

import numpy as np
import pytest
from scipy import special

from lightning_audit.stats.binomial import clopper_pearson_upper
from lightning_audit.stats.counts import (
    ConfusionCounts,
    mu_clopper_pearson,
    mu_pooled_clopper_pearson,
)
from lightning_audit.stats.tradeoff import gaussian_epsilon

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


def test_always_guessing_the_larger_world_proves_nothing() -> None:
    # 10 errors in 1,010 guesses look good, but need no distance at all.
    counts = ConfusionCounts(fn=10, tp=0, fp=0, tn=1000)
    assert mu_pooled_clopper_pearson(counts, 0.05) == 0.0


# Arguments.


def test_impossible_significance_is_refused() -> None:
    counts = ConfusionCounts(35, 65, 25, 75)
    for bound in (mu_clopper_pearson, mu_pooled_clopper_pearson):
        with pytest.raises(ValueError, match=r"significance=0 must be in \(0, 1\); it is"):
            bound(counts, 0)
    with pytest.raises(ValueError, match=r"significance=0\.3 must be in \(0, 1/4\].*use mu_clop"):
        mu_pooled_clopper_pearson(counts, 0.3)
