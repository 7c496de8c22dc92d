"""The coin bet: against a naive twin, in expectation, and on a gross fault."""

from __future__ import annotations

import math

import numpy as np
import pytest
from coin_steps import mean_over_coins, normal_mean
from hypothesis import given
from hypothesis import strategies as st

from lightning_audit.stats.canary_bets import COIN_SLOPES, CoinBet

residual = st.floats(-1e4, 1e4)


@given(st.lists(residual, min_size=1, max_size=4), st.integers(0, 8))
def test_coin_bet_gains_exactly_nothing_over_the_coins_whatever_the_residual(
    residuals: list[float], history: int
) -> None:
    assert mean_over_coins(np.array(residuals), 1.0, history) == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("shift", [0.0, 0.5, 0.9, 1.0])
def test_coin_bet_has_expectation_at_most_one_up_to_the_signal(shift: float) -> None:
    mean = normal_mean(lambda r: mean_over_coins(np.array([r]), shift, history=0), 0.4, 0.7)
    assert mean <= 1 + 1e-9
    assert (mean < 1 - 1e-4) == (shift < 0.95)


def test_coin_bet_gains_on_average_if_the_canary_adds_more() -> None:
    assert normal_mean(lambda r: mean_over_coins(np.array([r]), 2.0, 0), 0.0, 0.7) > 1.01


def test_first_step_is_judged_by_its_size_and_not_by_its_own_centre() -> None:
    # Were the centre to use the present step, a constant would have no residual at all.
    bet = CoinBet((1,))
    bet.update(np.array([1.0]), np.array([6.0]))
    assert float(bet.log_e) == pytest.approx(
        math.log(np.mean(2 / (1 + np.exp(-5 * COIN_SLOPES)))), abs=1e-12
    )


def test_coin_bet_flags_a_missing_clipping_within_four_steps() -> None:
    rng, runs = np.random.default_rng(0), 20_000
    bet, flagged = CoinBet((runs, 8), initial_scale=1.0), np.zeros(runs, dtype=bool)
    for _ in range(4):
        coins = rng.integers(0, 2, (runs, 8)).astype(float)
        bet.update(coins, 1000 * coins + rng.standard_normal((runs, 8)))
        flagged |= bet.log_e >= -math.log(1e-4)
    assert flagged.mean() >= 0.95
