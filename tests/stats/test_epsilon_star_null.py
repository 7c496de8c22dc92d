from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from lightning_audit.stats.epsilon_star import (
    Empirical,
    Method,
    Parametric,
    PermutationNull,
    epsilon_star,
    epsilon_star_null,
)

METHODS = [Empirical(clip=1e-3), Parametric(clip=1e-6)]


def null(train, population, method: Method, permutations: int = 99, seed: int = 0):
    rng = np.random.default_rng(seed)
    return epsilon_star_null(train, population, 1e-5, method, permutations=permutations, rng=rng)


@pytest.mark.parametrize("method", [*METHODS, Empirical(clip=0), Parametric(1e-3)])
def test_the_p_value_is_that_of_all_deals(method: Method) -> None:
    """Of 126 deals of nine losses, with ties, the share with a value at least as large."""
    losses = np.array([0.1, 0.4, 0.4, 0.5, 1.1, 1.3, 1.3, 1.3, 2.0])
    train, population = losses[[0, 1, 2, 5]], losses[[3, 4, 6, 7, 8]]
    value = epsilon_star(train, population, 1e-5, method).value
    deals = [list(deal) for deal in itertools.combinations(range(9), 4)]
    dealt = [
        epsilon_star(losses[deal], np.delete(losses, deal), 1e-5, method).value for deal in deals
    ]
    exact = np.mean(np.array(dealt) >= value * (1 - 1e-9))
    found = null(train, population, method, permutations=500)
    assert found.value == pytest.approx(value, rel=1e-12)
    # Four standard errors.
    assert found.p_value == pytest.approx(exact, abs=4 * math.sqrt(exact * (1 - exact) / 500))
    assert min(dealt) - 1e-9 <= found.median <= found.quantile_95 <= max(dealt) + 1e-9
    assert found.quantile_95 == pytest.approx(np.quantile(dealt, 0.95), abs=0.3)


@pytest.mark.parametrize("method", METHODS)
def test_leakage_has_the_smallest_p_value_there_is(method: Method) -> None:
    rng = np.random.default_rng(1)
    found = null(rng.gamma(5, size=800), rng.gamma(10, size=500), method)
    assert found.p_value == 1 / 100
    assert found.value > found.quantile_95 > found.median > 0
    assert found.permutations == 99


@pytest.mark.parametrize("method", METHODS)
def test_identical_sides_have_the_p_value_one(method: Method) -> None:
    losses = np.random.default_rng(1).gamma(5, size=100)
    found = null(losses, losses, method, permutations=19)
    assert (found.value, found.p_value) == (0, 1)


@pytest.mark.parametrize("method", METHODS)
def test_the_generator_alone_decides_the_deals(method: Method) -> None:
    rng = np.random.default_rng(2)
    train, population = rng.gamma(5, size=50), rng.gamma(5, size=70)
    state = np.random.get_state()[1].tolist()
    assert null(train, population, method, 9) == null(train, population, method, 9)
    assert null(train, population, method, 9) != null(train, population, method, 9, seed=3)
    assert np.random.get_state()[1].tolist() == state
    # It is the caller's: a second call goes on where the first one ended.
    first = epsilon_star_null(train, population, 1e-5, method, permutations=9, rng=rng)
    again = epsilon_star_null(train, population, 1e-5, method, permutations=9, rng=rng)
    assert first.median != again.median


def test_constant_losses_have_the_p_value_one() -> None:
    assert null([1.0] * 5, [1.0] * 3, Empirical(1e-3), 19) == PermutationNull(0, 1, 0, 0, 19)


def test_a_deal_that_has_no_fit_counts_as_large() -> None:
    found = null([1.0, 1.0, 2.0], [1.0, 1.0, 3.0], Parametric(1e-6), 199)
    # Both large losses on one side: the other side is constant, in 2 of 5 deals.
    assert found.p_value > 0.35
    assert found.quantile_95 == math.inf


@pytest.mark.parametrize("permutations", [0, -1, 1.5, True, math.nan])
def test_a_number_of_permutations_that_is_none_is_named(permutations) -> None:
    with pytest.raises(ValueError, match=r"permutations=.* must be a whole number >= 1; 999 are"):
        null([1.0, 2.0], [1.0, 3.0], Empirical(0.1), permutations)


def test_other_bad_arguments_are_named() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(TypeError, match=r"rng=0 must be a numpy\.random\.Generator"):
        epsilon_star_null([1.0], [2.0], 0.0, Empirical(0.1), permutations=9, rng=0)
    with pytest.raises(TypeError, match="method=None must be Empirical"):
        null([1.0], [2.0], None)
    with pytest.raises(ValueError, match="losses_train holds nan"):
        null([math.nan], [2.0], Empirical(0.1))
    with pytest.raises(ValueError, match=r"losses_population=\[\] must hold"):
        null([1.0], [], Empirical(0.1))
    with pytest.raises(ValueError, match="losses_train has 1 losses"):
        null([1.0], [2.0, 3.0], Parametric(0.1))
    with pytest.raises(ValueError, match="delta=1 must be"):
        epsilon_star_null([1.0], [2.0], 1, Empirical(0.1), permutations=9, rng=rng)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("method", "n", "m", "runs", "permutations"),
    [
        (Empirical(clip=1e-3), 200, 200, 1500, 39),
        (Empirical(clip=0), 50, 300, 1500, 39),
        (Parametric(clip=1e-6), 100, 200, 150, 19),
    ],
)
def test_without_leakage_the_p_value_has_its_level(method, n, m, runs, permutations) -> None:
    """Levels 1/20 to 1/2; losses with ties, so that the p-value may be larger than needed."""
    rng = np.random.default_rng(7)
    p_values = []
    for _ in range(runs):
        losses = rng.gamma(2, size=n + m).round(2)
        found = epsilon_star_null(
            losses[:n], losses[n:], 1e-5, method, permutations=permutations, rng=rng
        )
        p_values.append(found.p_value)
    for level in (0.05, 0.1, 0.25, 0.5):
        rejected = int(np.count_nonzero(np.array(p_values) <= level + 1e-9))
        assert stats.binom.sf(rejected - 1, runs, level) > 1e-4
        # Equal values cost some of the level, not most of it.
        assert stats.binom.cdf(rejected, runs, level * 0.6) > 1e-4
