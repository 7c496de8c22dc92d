"""Coins of several trainings as those of one, against recipe R7 of the lab and by simulation."""

from __future__ import annotations

import numpy as np
import pytest
from stages import most_failures, staged

from lightning_audit.accounting.claims import PrivacyClaim
from lightning_audit.many.training_audit import PooledRun, conclude
from lightning_audit.many.verdict import mu_of_error, promise_of
from lightning_audit.stats.one_run import (
    epsilon_one_run,
    mu_one_run,
    one_run_fdp_p_value,
    one_run_p_value,
)
from lightning_audit.stats.sequential import share_error_upper
from lightning_audit.stats.tradeoff import GaussianTradeoff, gaussian_mu

DELTA = 1e-5


def flawless(trainings: int, canaries: int) -> PooledRun:
    rng = np.random.default_rng(0)
    coins = rng.random((trainings, canaries)) < 0.5
    return PooledRun(coins + 0.5 * rng.random(coins.shape), coins, np.zeros(trainings, bool))


@pytest.mark.parametrize(
    ("right", "coins", "mu", "epsilon"),
    [
        (95, 100, 1.08333, 2.17171),
        (760, 1000, 0.48250, 1.02874),
        (1990, 2000, 1.83142, 4.75526),
        (1000, 1000, 2.36807, 5.78228),
    ],
)
def test_bounds_of_all_coins_are_those_of_the_lab(
    right: int, coins: int, mu: float, epsilon: float
) -> None:
    assert mu_one_run(right, coins, coins, 0.05) == pytest.approx(mu, abs=1e-5)
    assert epsilon_one_run(right, coins, coins, DELTA, 0.05) == pytest.approx(epsilon, abs=1e-5)


@pytest.mark.parametrize(
    ("epsilon", "significance", "steinke", "gaussian"),
    [
        (1, 0.05, 10, 6),
        (4, 0.05, 168, 16),
        (8, 0.05, 13_045, 90),
        (1, 1e-3, 23, 16),
        (4, 1e-3, 456, 75),
        (8, 1e-3, None, 1334),
    ],
)
def test_coins_of_one_training_that_refute_if_all_are_right_are_those_of_the_lab(
    epsilon: float, significance: float, steinke: int | None, gaussian: int
) -> None:
    # The lab searched in steps: its numbers are up to 0.7 % above the least ones.
    claim = GaussianTradeoff(float(gaussian_mu(epsilon, DELTA)))
    for n, refuted in ((gaussian, True), (int(0.993 * gaussian) - 1, False)):
        assert (one_run_fdp_p_value(n, n, n, claim) <= significance) is refuted
    if steinke is not None:
        for n, refuted in ((steinke, True), (int(0.993 * steinke) - 1, False)):
            assert (one_run_p_value(n, n, n, epsilon, DELTA) <= significance) is refuted


def test_bets_on_trainings_prove_more_from_16_trainings_on() -> None:
    # As docs/many-trainings-statistics.md has it, for 760 right guesses of 1,000.
    def of_bets(trainings: int) -> float:
        return mu_of_error(share_error_upper([0.76] * trainings, 0.05))

    pooled = mu_one_run(760, 1000, 1000, 0.05)
    assert of_bets(15) < pooled < of_bets(16)
    assert [round(of_bets(n), 2) for n in (30, 100)] == [0.87, 1.23]


def test_three_trainings_of_many_canaries_refute_what_three_bets_cannot() -> None:
    rng = np.random.default_rng(1)
    coins = rng.random((3, 400)) < 0.5
    scores = coins + 0.2 * rng.standard_normal((3, 400))
    audit = conclude(scores, coins, np.zeros(3, bool), promise_of((1.0, DELTA)), planned=3)
    assert audit.verdict.outcome == "VIOLATION"
    assert audit.seen.refuted_after == 3
    assert audit.epsilon_lower == 0  # no bound at any time
    assert audit.epsilon_lower_at_end is not None
    assert audit.epsilon_lower_at_end > 1
    assert {b.name for b in audit.bounds if b.looks == "single"} == {"coins_one_run"}
    before = conclude(scores, coins, np.zeros(3, bool), promise_of((1.0, DELTA)), planned=4)
    assert before.verdict.outcome == "INCONCLUSIVE"


def test_claims_are_refuted_in_their_form() -> None:
    pooled = flawless(4, 100)
    assert pooled.refutes(promise_of(GaussianTradeoff(1.0)), 1e-3)
    full = PrivacyClaim(noise_multiplier=10.0, sample_rate=1.0, steps=100, delta=DELTA)
    assert pooled.refutes(promise_of(full), 1e-3)
    assert pooled.refutes(promise_of((1.0, DELTA)), 1e-3)
    assert not pooled.refutes(promise_of((8.0, DELTA)), 1e-3)
    sampled = PrivacyClaim(noise_multiplier=2.0, sample_rate=0.25, steps=10, delta=DELTA)
    assert not pooled.refutes(promise_of(sampled), 1e-3)  # not tested
    names = [bound.name for bound in pooled.bounds(promise_of(full), 0.05)]
    assert names == ["coins_one_run", "coins_one_run_mu"]


def test_coins_of_failed_trainings_count_and_are_not_guessed() -> None:
    rng = np.random.default_rng(2)
    coins = rng.random((6, 50)) < 0.5
    failed = np.array([True, True, False, True, False, False])
    scores = np.where(failed[:, None], np.nan, coins + 0.5 * rng.random(coins.shape))
    lost, whole = PooledRun(scores, coins, failed), flawless(6, 50)
    assert 0 < lost.mu_lower(0.05) < whole.mu_lower(0.05)


@pytest.mark.parametrize("runs", staged(quick=[40], heavy=[300]))
def test_a_true_claim_is_seldom_refuted(runs: int) -> None:
    # By simulation: each canary is seen with mu 1.
    rng, promise, refuted = np.random.default_rng(3), promise_of(GaussianTradeoff(1.0)), 0
    for _ in range(runs):
        coins = rng.random((5, 40)) < 0.5
        scores = rng.standard_normal((5, 40)) + coins
        refuted += PooledRun(scores, coins, np.zeros(5, bool)).refutes(promise, 0.05)
    assert refuted <= most_failures(runs, 0.05, 4000)
