"""The error rate's bets: against a naive twin, in expectation, and their lower limit."""

from __future__ import annotations

import numpy as np
import pytest
from coin_steps import RATIOS, simulated_steps
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from lightning_audit.stats.evalues.error_rate_bet import ERROR_STAKES, ErrorRateBet


def test_error_rate_bet_equals_a_plain_loop() -> None:
    k = 3
    bet = ErrorRateBet((k,), RATIOS)
    wealth = np.ones((len(RATIOS), len(ERROR_STAKES)))
    past: list[np.ndarray] = []
    for step, (coins, readings) in enumerate(simulated_steps(5, 50, k, shift=2.0)):
        sigma = 1.5 if step < 20 else 1.1
        centre = sum(past) / (len(past) + 10) if past else np.zeros(k)
        right = sum(
            (readings[i] - centre[i] > 0.5) == bool(coins[i]) for i in range(k)
        ) / k  # fmt: skip
        for a, ratio in enumerate(RATIOS):
            most = stats.norm.cdf(ratio / (2 * sigma))
            for b, stake in enumerate(ERROR_STAKES):
                wealth[a, b] *= (1 + stake * right) / (1 + stake * most)
        past.append(readings - coins)
        bet.update(coins, readings, sigma)
        assert bet.log_e == pytest.approx(np.log(wealth.mean(axis=1)), abs=1e-11)


@given(st.integers(0, 10**6), st.floats(0.2, 5.0), st.floats(0.0, 3.0))
def test_error_rate_e_value_decreases_in_the_ratio(seed: int, sigma: float, shift: float) -> None:
    bet = ErrorRateBet((2,), RATIOS)
    for coins, readings in simulated_steps(seed, 12, 2, shift, sigma):
        bet.update(coins, readings, sigma)
        assert (np.diff(bet.log_e) <= 1e-12).all()


def test_lower_ratio_rises_with_significance_and_is_of_the_steps_so_far() -> None:
    bet = ErrorRateBet((4,), np.geomspace(0.01, 12, 200))
    # A leak that stops: what is rejected by the e-values of now falls again.
    leaking = simulated_steps(0, 150, 4, shift=3.0, sigma=1.0)
    lower = []
    for coins, readings in leaking + simulated_steps(1, 300, 4, shift=0.0, sigma=1.0):
        bet.update(coins, readings, 1.0)
        now = np.array([bet.ratio_lower(level) for level in (1e-4, 1e-3, 0.05)])
        assert (np.diff(now) >= 0).all()
        lower.append(now[0])
    assert lower[149] == max(lower[:150]) > 2
    assert lower[-1] < 1.2


def test_lower_ratio_is_zero_before_anything_is_proved() -> None:
    assert float(ErrorRateBet((4,), RATIOS).ratio_lower(0.05)) == 0.0
