from __future__ import annotations

import numpy as np
import pytest

from lightning_audit.stats.noise_tests import noise_log_e
from lightning_audit.stats.sequential import STEP_STAKES, SingleStepBet, log_mean_exp


def test_wealth_is_that_of_a_plain_loop() -> None:
    rng = np.random.default_rng(0)
    bet = SingleStepBet()
    wealth = np.ones(len(STEP_STAKES))
    for log_e in rng.normal(-0.5, 1.0, 50):
        bet.update(log_e)
        wealth *= 1.0 + STEP_STAKES * (np.exp(log_e) - 1.0)
    assert float(bet.log_e) == pytest.approx(np.log(wealth.mean()), rel=1e-12)


def test_a_factor_averages_to_one_where_the_steps_do() -> None:
    # Two equally likely e-values of mean one.
    after = []
    for log_e in (np.log(0.2), np.log(1.8)):
        bet = SingleStepBet()
        bet.update(log_e)
        after.append(np.exp(float(bet.log_e)))
    assert np.mean(after) == pytest.approx(1.0, rel=1e-12)


def test_an_enormous_step_neither_overflows_nor_is_lost() -> None:
    bet = SingleStepBet()
    for _ in range(1000):
        bet.update(-3.0)
    bet.update(900.0)
    assert 800.0 < float(bet.log_e) < 900.0
    assert np.isfinite(bet.log_e)


@pytest.mark.heavy
@pytest.mark.parametrize("data", [0.0, 0.9])
@pytest.mark.heavy_one_in(4)
def test_correct_runs_are_not_accused(data: float) -> None:
    """20,000 runs of 100 steps, 64 witnesses in each of 6 tensors, data that follow the past."""
    rng = np.random.default_rng(1)
    runs, tensors, witnesses = 20_000, 6, 64
    highest = np.zeros(runs)
    bet = SingleStepBet((runs,))
    mean = np.zeros((runs, tensors))
    for _ in range(100):
        # The sum of squares of normals around a common data term, by its mean and its spread.
        mean = data * mean + rng.standard_normal((runs, tensors)) / np.sqrt(witnesses)
        squares = witnesses * mean**2 + rng.chisquare(witnesses - 1, (runs, tensors))
        together = noise_log_e(tensors * witnesses, squares.sum(-1))
        each = log_mean_exp(noise_log_e(witnesses, squares))
        bet.update(log_mean_exp(np.stack([together, each], axis=-1)))
        highest = np.maximum(highest, bet.log_e)
    alarms = np.mean(highest >= np.log(20.0))
    assert alarms <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / runs)


def test_one_step_without_noise_among_hundreds_is_seen() -> None:
    rng = np.random.default_rng(2)
    bet = SingleStepBet((20,))
    for step in range(400):
        x = rng.standard_normal((20, 384)) * (0.05 if step == 250 else 1.0)
        bet.update(noise_log_e(np.full(20, 384.0), np.sum(x * x, axis=-1)))
    assert np.all(bet.log_e > np.log(1e4))
