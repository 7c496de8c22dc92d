"""Bounds on the epsilon of a subsampled step, against the game itself."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from lightning_audit.stats.binomial import clopper_pearson_upper
from lightning_audit.stats.counts import (
    ConfusionCounts,
    epsilon_clopper_pearson,
    mu_clopper_pearson,
    subsampled_epsilon_clopper_pearson,
    subsampled_epsilon_of_mu,
)
from lightning_audit.stats.tradeoff import SubsampledGaussianTradeoff, gaussian_epsilon

DELTA = 1e-5


def known_coin(
    rng: np.random.Generator, q: float, steps: int, sigma: float, threshold: float
) -> ConfusionCounts:
    """Guesses at a coin of probability q that the auditor knows."""
    coins = rng.random(steps) < q
    guesses = coins + sigma * rng.standard_normal(steps) > threshold
    return ConfusionCounts(
        fn=int((coins & ~guesses).sum()),
        tp=int((coins & guesses).sum()),
        fp=int((~coins & guesses).sum()),
        tn=int((~coins & ~guesses).sum()),
    )


@pytest.mark.parametrize("q", [0.1, 0.25, 0.9])
def test_rates_of_the_known_coin_are_those_of_the_game_that_is_played(q: float) -> None:
    rng, steps, sigma, threshold = np.random.default_rng(0), 400_000, 0.6, 0.9
    member = rng.random(steps) < 0.5
    joins = member & (rng.random(steps) < q)
    guesses = joins + sigma * rng.standard_normal(steps) > threshold
    played = float(np.mean(~guesses[member]))
    fnr, fpr = stats.norm.cdf((threshold - 1) / sigma), stats.norm.sf(threshold / sigma)
    told = q * fnr + (1 - q) * (1 - fpr)
    assert played == pytest.approx(told, abs=4 * math.sqrt(0.25 / (steps / 2)))
    # The best guesses are on the curve of the module that the epsilon is taken from.
    curve = SubsampledGaussianTradeoff(sigma, q, "remove")
    assert told == pytest.approx(curve(float(fpr)), abs=1e-12)


@pytest.mark.parametrize("q", [0.1, 0.25, 0.5, 1.0])
@pytest.mark.parametrize("counts", [(10, 90, 2, 898), (0, 50, 0, 450), (30, 70, 300, 700)])
def test_bound_from_counts_is_the_least_over_all_rates_not_rejected(
    q: float, counts: tuple[int, int, int, int]
) -> None:
    made = ConfusionCounts(*counts)
    fn, tp, fp, tn = counts
    most = [clopper_pearson_upper(k, n, 0.025) for k, n in ((fn, fn + tp), (fp, fp + tn))]
    # Where neither rate is zero an infinite ratio cannot be the least.
    fnr, fpr = np.meshgrid(*(np.linspace(1e-6, float(limit), 300) for limit in most))
    missed = q * fnr + (1 - q) * (1 - fpr)
    needed = np.maximum((1 - DELTA - missed) / fpr, (1 - DELTA - fpr) / missed)
    least = max(math.log(max(float(needed.min()), 1.0)), 0.0)
    found = subsampled_epsilon_clopper_pearson(made, q, DELTA, 0.05)
    assert found == pytest.approx(least, abs=1e-9)
    if q == 1.0:
        assert found == pytest.approx(float(epsilon_clopper_pearson(made, DELTA, 0.05)), abs=1e-9)


def test_epsilon_of_mu_is_that_of_the_gaussian_without_sampling_and_amplified_with() -> None:
    assert subsampled_epsilon_of_mu(1.0, 1.0, DELTA) == pytest.approx(gaussian_epsilon(1.0, DELTA))
    epsilons = [subsampled_epsilon_of_mu(1.0, q, DELTA) for q in (0.01, 0.1, 0.5, 1.0)]
    assert epsilons == sorted(epsilons)
    assert epsilons[0] > 0


@pytest.mark.parametrize(
    ("mu", "q", "epsilon"), [(0.0, 0.1, 0.0), (math.inf, 0.1, math.inf), (math.inf, 1e-6, 0.0)]
)
def test_epsilon_of_the_ends_of_mu(mu: float, q: float, epsilon: float) -> None:
    assert subsampled_epsilon_of_mu(mu, q, DELTA) == epsilon


@given(st.floats(1e-6, 30.0), st.floats(1e-3, 1.0))
def test_epsilon_of_mu_is_finite_and_below_that_of_the_step(mu: float, q: float) -> None:
    epsilon = subsampled_epsilon_of_mu(mu, q, DELTA)
    assert 0 <= epsilon <= gaussian_epsilon(mu, DELTA) + 1e-9


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda c: subsampled_epsilon_clopper_pearson(c, 0.0, DELTA, 0.05), "sample_rate"),
        (lambda c: subsampled_epsilon_clopper_pearson(c, 0.1, 0.0, 0.05), "delta"),
        (lambda c: subsampled_epsilon_clopper_pearson(c, 0.1, DELTA, 1.0), "significance"),
        (lambda c: subsampled_epsilon_of_mu(1.0, 1.1, DELTA), "sample_rate"),
        (lambda c: subsampled_epsilon_of_mu(-1.0, 0.1, DELTA), "mu"),
        (lambda c: subsampled_epsilon_of_mu(1.0, 0.1, 1.0), "delta"),
    ],
)
def test_arguments_are_checked(call: object, name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name}="):
        call(ConfusionCounts(1, 9, 2, 8))  # type: ignore[operator]


@pytest.mark.parametrize("q", [0.1, 0.3, 0.9])
def test_bounds_exceed_the_epsilon_of_the_game_no_oftener_than_their_significance(
    q: float,
) -> None:
    runs, steps, sigma, level = 400, 600, 0.4, 0.1
    true = SubsampledGaussianTradeoff(sigma, q).epsilon_at(DELTA)
    found = []
    for seed in range(runs):
        counts = known_coin(np.random.default_rng(seed), q, steps, sigma, 0.5)
        found.append(
            (
                subsampled_epsilon_clopper_pearson(counts, q, DELTA, level),
                subsampled_epsilon_of_mu(float(mu_clopper_pearson(counts, level)), q, DELTA),
            )
        )
    misses = np.sum(np.array(found) > true, axis=0)
    assert misses.max() <= stats.binom.isf(1e-3, runs, level)
    # They say something, and the one that knows the curve says more.
    of_rates, of_mu = np.median(found, axis=0)
    assert 0 < of_rates < of_mu
    assert of_mu > 0.5 * true
