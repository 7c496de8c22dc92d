"""The error rate's bets and their lower limit; the naive twin is that of known coins."""

from __future__ import annotations

import numpy as np
from coin_steps import RATIOS, simulated_steps
from hypothesis import given
from hypothesis import strategies as st

from lightning_audit.stats.evalues.error_rate_bet import ErrorRateBet


@given(
    st.integers(0, 10**6),
    st.floats(0.2, 5.0),
    st.floats(0.0, 3.0),
    st.sampled_from([0.1, 0.5, 0.9]),
)
def test_error_rate_e_value_decreases_in_the_ratio(
    seed: int, sigma: float, shift: float, p: float
) -> None:
    bet = ErrorRateBet((2,), RATIOS, p)
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
