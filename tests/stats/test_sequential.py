from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from coin_steps import RATIOS, simulated_steps

from lightning_audit.stats.canary_bets import CoinBet, LeakageBet, SignalBet
from lightning_audit.stats.sequential import PredictableCentre, is_look, log_mean_exp


def test_runs_along_a_leading_axis_are_the_runs_one_by_one() -> None:
    runs, k, steps = 3, 2, 15
    per_run = [simulated_steps(seed, steps, k, shift=1.7) for seed in range(runs)]

    def drive(shape: tuple[int, ...], pick: Callable[[int, int], np.ndarray]) -> list[np.ndarray]:
        coin, leakage, signal = CoinBet(shape), LeakageBet(shape), SignalBet(shape, RATIOS)
        for t in range(steps):
            coins, readings = pick(t, 0), pick(t, 1)
            coin.update(coins, readings)
            leakage.update(coins, readings, 1.5)
            signal.update(coins, readings)
        (ratios,) = leakage.ratios(0.5, [(steps, leakage.growth)], [(1.5, 1.0, steps)])
        return [coin.log_e, leakage.growth, signal.log_e, ratios]

    together = drive((runs, k), lambda t, part: np.array([run[t][part] for run in per_run]))
    for i, run in enumerate(per_run):
        alone = drive((k,), lambda t, part, run=run: run[t][part])
        for mine, theirs in zip(together, alone, strict=True):
            assert mine[i] == pytest.approx(theirs, abs=1e-12)


def test_centre_is_made_of_the_past_alone() -> None:
    rng = np.random.default_rng(0)
    centre, past = PredictableCentre((2, 3)), []
    for _ in range(20):
        expected = sum(past) / (len(past) + 10) if past else np.zeros((2, 3))
        assert centre.value == pytest.approx(expected, abs=1e-14)
        used = centre.value.copy()
        past.append(rng.standard_normal((2, 3)) * 100)
        assert (centre.value == used).all()
        centre.update(past[-1])


@pytest.mark.parametrize("k", [1, 8])
@pytest.mark.parametrize("readings_of", ["shift of 1e6", "constant", "coins alone", "one side"])
def test_extreme_readings_give_finite_results_without_warnings(k: int, readings_of: str) -> None:
    rng = np.random.default_rng(0)
    bets = CoinBet((k,)), SignalBet((k,), RATIOS)
    leakage = LeakageBet((k,))
    for _ in range(50):
        coins = rng.integers(0, 2, k).astype(float)
        if readings_of == "one side":
            coins = np.ones(k)
        readings = {
            "shift of 1e6": 1e6 * coins + rng.standard_normal(k),
            "constant": np.full(k, 0.1),
            "coins alone": coins,
            "one side": coins + rng.standard_normal(k),
        }[readings_of]
        leakage.update(coins, readings, 0.5)
        assert np.isfinite(leakage.growth).all()
        for bet in bets:
            bet.update(coins, readings)
            assert np.isfinite(bet.log_e).all()
    expected_shift = {"shift of 1e6": True, "constant": False, "coins alone": False}
    if k == 8 and readings_of in expected_shift:
        assert (float(bets[0].log_e) > math.log(1e4)) is expected_shift[readings_of]


def test_log_mean_exp_does_not_overflow() -> None:
    assert float(log_mean_exp([1e5, 1e5])) == 1e5
    assert float(log_mean_exp([-1e5, -1e5, -1e5])) == -1e5


def test_looks_are_taken_at_each_of_the_first_hundred_and_at_every_tenth_later() -> None:
    looks = [seen for seen in range(1, 151) if is_look(seen)]
    assert looks == [*range(1, 101), 110, 120, 130, 140, 150]
